"""The team's cost per success, to be compared with that of the model that learnt from the team."""

from collections import defaultdict
from collections.abc import AsyncIterator

from actors.tools.remote import ToolClient
from coa.agent.codec import Codec
from coa.errors import InfrastructureError
from coa.json_object import Json
from coa.reporting.statistics import Cost, cost_per_success
from coa.teams.roles import ROLES
from coa.teams.run import Assignment, FailedRun
from coa.teams.store import read_transcripts
from coa.teams.teams import plays_free
from coa.teams.transcript import AgentStep, Graded, ToolStep, Transcript, prompt_of
from jobs.run.run_dir import RunDir

SCRIPTED = "one attempt of the team at the evaluation tasks, as if its experts were language models"
PAID = "the team's runs that the model was distilled from"


async def team_cost(run: RunDir, tools: ToolClient) -> Json:
    """{"counted": on which runs, "families": a Cost by family and for "all"}; families without runs are left out.

    Tokens are those of the prompt plus those of the reply, over all calls of agents.
    """
    if done := run.result("team-cost"):
        return done
    taught = run.config.distill.transcripts is None and run.config.distils
    free = taught and plays_free(run.config.team)
    codec = Codec.load(run.start_model)
    spent: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
    async for graded in _attempts(run, tools) if free else _distilled(run):
        transcript = graded.transcript
        row = (tokens_of(transcript, codec), calls_of(transcript), bool(graded.correct))
        spent[transcript.task.family].append(row)
        spent["all"].append(row)
    costs = {family: cost_per_success(*map(list, zip(*rows, strict=True))) for family, rows in spent.items()}
    return run.finish("team-cost", {"counted": SCRIPTED if free else PAID, "families": costs})


def no_cost() -> Cost:
    return cost_per_success([], [], [])


async def _attempts(run: RunDir, tools: ToolClient) -> AsyncIterator[Graded]:
    from jobs.teachers.teaching import teaching

    async with teaching(run, tools, {}) as team:
        played = await team.play([Assignment(task) for task in run.evaluation_tasks()])
    for outcome in played.outcomes:
        if isinstance(outcome, FailedRun):
            raise InfrastructureError(f"the teachers can't be measured: {outcome.where}: {outcome.why}")
        if isinstance(outcome, Graded):
            yield outcome


async def _distilled(run: RunDir) -> AsyncIterator[Graded]:
    for graded in read_transcripts(run.teachers):
        yield graded


def tokens_of(transcript: Transcript, codec: Codec) -> int:
    """Tokens as the team's language models counted them; for scripted experts, the tokens that such models
    would have been sent and would have generated."""
    if transcript.usage.requests:
        return transcript.usage.tokens
    texts: list[str] = []
    for index, step in enumerate(transcript.steps):
        if isinstance(step, AgentStep) and step.agent in ROLES:
            texts.extend(message.content for message in prompt_of(transcript, index).messages)
            texts.append(step.output)
    return codec.count(texts)


def calls_of(transcript: Transcript) -> int:
    return sum(isinstance(step, ToolStep) for step in transcript.steps)

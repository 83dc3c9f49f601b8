"""What each kind of team gives for its tokens on the tiny world: demonstrations per million tokens, alone and routed.

    python -m benchmarks.team_kinds

Each kind plays the same tasks, and its runs go through the filter: with the paper's thresholds, and with those of the
recipe `tiny`, which keep chains of the lazy route. The scripted experts play every role; tokens are the words that
language models would have been sent and would have written. The experts are equally fallible in all kinds: half of
those who check do not notice that nobody looked. So the figures compare how kinds spend tokens on one skill, not which
kind a language model is best in.

`routed` chooses a kind for each question (`coa.teams.routing`), learnt from the other tasks.
"""

import asyncio

from benchmarks.harness import report
from coa.agent.profiles import profile as find_profile
from coa.demo import World, WorldConfig, training_task
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.distill import FilterConfig, to_chain
from coa.distill.duplicates import DuplicateConfig
from coa.distill.filters import Filter
from coa.distill.grade import grade
from coa.teams.kinds import KINDS, start
from coa.teams.play import play
from coa.teams.routing import measure, outcome_of, tokens_of
from coa.teams.run import Assignment
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Graded, Prompt, Reply
from coa.tools.base import PLAIN, ToolCall

TASKS, SEED = 600, 0
FILTERS = {
    "paper": FilterConfig(),
    "tiny": FilterConfig(
        min_interactions=2,
        keep_without_reflection=1.0,
        reflection_required=(),
        correction_copies=1.0,
        duplicates=DuplicateConfig(threshold=None),
    ),
}
TARGETS = {f"{kind}/broken": "<= 0" for kind in KINDS}
"""Chains that break their profile's table."""


async def main() -> None:
    figures: dict[str, float] = {}
    runs = {kind: await play_all(kind) for kind in KINDS}
    for kind, graded in runs.items():
        chains = [(find_profile(run.transcript.task.profile), to_chain(run.transcript)) for run in graded]
        figures[f"{kind}/broken"] = sum(not profile.transitions_hold(chain) for profile, chain in chains)
        figures[f"{kind}/right"] = round(sum(bool(run.correct) for run in graded) / TASKS, 3)
        figures[f"{kind}/tokens_per_run"] = round(sum(tokens_of(run.transcript) for run in graded) / TASKS)
    for name, config in FILTERS.items():
        filter = Filter(config)
        saving = measure([outcome_of(run, filter.demonstrations(run)) for graded in runs.values() for run in graded])
        assert saving is not None
        figures |= {f"{name}/{kind}": round(1e6 * value, 1) for kind, value in saving.alone.items()}
        figures[f"{name}/routed"] = round(1e6 * saving.routed, 1)
        figures[f"{name}/routed_to_best"] = round(saving.routed / saving.alone[saving.best], 3)
    report("team_kinds", figures, TARGETS)


async def play_all(kind: str) -> list[Graded]:
    """A graded run for each task."""
    world = World(WorldConfig())
    mind = ScriptedMind(world, ExpertConfig())

    async def ask(prompt: Prompt) -> Reply:
        return Reply(mind.reply(prompt))

    async def use(call: ToolCall, key: str = "") -> str:
        return world.observe(call)

    async def run(index: int) -> Graded:
        task = training_task(world, seed=SEED, purpose="sft", index=index)
        team = start(Assignment(task), TeamConfig(rules=kind), seed=SEED, layouts=(PLAIN,))
        return await grade(await play(team, ask, use), use)

    return [await run(index) for index in range(TASKS)]


if __name__ == "__main__":
    asyncio.run(main())

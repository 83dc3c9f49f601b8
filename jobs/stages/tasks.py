"""Makes tasks of a user's documents (`coa.tasks.made`), and keeps those that the team solves with its tools.

    documents -> corpus.jsonl -> a wave of passages -> questions -> the team -> tasks.jsonl, made.jsonl, transcripts/

Each request is paid once: replies and observations are in the ledgers below `teachers/`, from which an interrupted
command goes through the same waves again. The team's right runs are transcripts, so that distillation has
demonstrations of these tasks without another request.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from actors.tools.remote import ToolClient
from coa.config import dump
from coa.errors import InfrastructureError
from coa.json_object import Json, JsonView
from coa.storage.files import write_atomically
from coa.storage.jsonl import write_lines
from coa.tasks.loading import row_of
from coa.tasks.made.documents import read_passages
from coa.tasks.made.questions import Question
from coa.tasks.made.questions import to_json as line_of
from coa.teams.store import write_transcripts
from coa.tools.layouts import Passage
from coa.tools.search.corpus import read_corpus as stored_passages
from coa.tools.search.wiki import open_index
from coa.usage import Usage
from jobs.recipe.needs import models_of_team
from jobs.run.run_dir import CONFIG, RunDir
from jobs.teachers.teaching import language_models, teaching, watched
from jobs.teachers.workshop import Solved, Tally, Workshop

STAGE = "tasks"
CORPUS, UNREAD = "corpus.jsonl", "unread.jsonl"
TASKS, MADE, TRANSCRIPTS = "tasks.jsonl", "made.jsonl", "transcripts"
SHOWN = 4
"""Reasons that an error lists."""


async def read_corpus(run: RunDir) -> list[Passage]:
    """The passages of the documents, as they were read when the run began, and the run's folder with them. Raises
    UserError for documents without a text."""
    path, folder = run.folder / CORPUS, run.world.settings.corpus
    run.teachers.mkdir(parents=True, exist_ok=True)
    run.checkpoints.mkdir(exist_ok=True)
    (run.folder / TRANSCRIPTS).mkdir(exist_ok=True)
    write_atomically(run.folder / CONFIG, dump(run.config))
    if not path.exists():
        with run.console.waiting("corpus", f"reading the documents in {folder}"):
            passages, unread = await read_passages(Path(folder))
        reasons = Counter(one.why.partition(":")[0] for one in unread)
        write_lines(run.folder / UNREAD, ({"document": one.name, "why": one.why} for one in unread))
        write_lines(path, ({"title": passage.title, "text": passage.text} for passage in dict.fromkeys(passages)))
        for why, count in reasons.most_common():
            run.console.say(f"left out: {count} documents, {why} ({UNREAD})")
    return list(stored_passages(path))


async def make_tasks(run: RunDir, tools: ToolClient, passages: Sequence[Passage], count: int) -> Json:
    """Runs the stage and returns its result, at once if there are so many tasks already, or no more of these documents.
    Raises InfrastructureError for a model that makes nothing of use."""
    done = run.result(STAGE)
    if done and (done["tasks"] >= count or done["exhausted"]):
        return done
    config, tally, name = run.config, Tally(), run.config.team.model
    index = await asyncio.to_thread(open_index, config.tools.wiki, run.console.say)
    async with language_models(run, {name} | models_of_team(config)) as models, teaching(run, tools, models) as team:
        workshop = Workshop(run, team, models[name], passages, index, tally)
        with run.console.stage(STAGE, count) as stage:
            async with watched(models, stage, run.console.say):
                for wave in itertools.count():
                    right = await workshop.play_wave(count - len(tally.made), stage)
                    write_transcripts(run.folder / TRANSCRIPTS / f"{wave:05}.parquet", (one.run for one in right))
                    write(run.folder, tally)
                    if len(tally.made) == count or tally.stopped or workshop.is_empty:
                        break
        if not tally.made and not tally.stopped:
            raise InfrastructureError(nothing_made(tally))
        result = result_of(tally, len(passages), team.finished)
        return run.finish(STAGE, {**result, "exhausted": workshop.is_empty and not tally.stopped})


def ids_of(question: Question) -> set[str]:
    """The ids of the question and of those that it was made of: "made-3-0.2+made-7-1" is made of the drafts "made-3-0"
    and "made-7-1"."""
    parts = question.id.split("+")
    return {question.id, *parts, *(part.partition(".")[0] for part in parts)}


def write(folder: Path, tally: Tally) -> None:
    """Writes the tasks, and what each rests on and has cost."""
    write_lines(folder / TASKS, (row_of(one.run.transcript.task) for one in tally.made))
    write_lines(folder / MADE, (made_line(one, tally) for one in tally.made))


def made_line(solved: Solved, tally: Tally) -> Json:
    cost = sum((tally.costs.get(id, Usage()) for id in ids_of(solved.question)), Usage())
    transcript = solved.run.transcript
    team = {"attempt": transcript.attempt, "steps": len(transcript.steps)}
    return {**line_of(solved.question), "team": team, "requests": cost.requests, "tokens": cost.tokens}


def nothing_made(tally: Tally) -> str:
    most = ", ".join(f"{why} ({count})" for why, count in tally.dropped.most_common(SHOWN))
    return f"no task could be made of {tally.passages} passages: {most or 'nothing was proposed'}"


def result_of(tally: Tally, passages: int, usage: Usage) -> Json:
    questions = [one.question for one in tally.made]
    return {
        "tasks": len(questions),
        "kinds": dict(Counter(one.kind.value for one in questions)),
        "hops": dict(sorted(Counter(str(len(one.evidence)) for one in questions).items())),
        "passages": {"used": tally.passages, "all": passages},
        "dropped": dict(tally.dropped.most_common()),
        "not_deepened": dict(tally.not_deepened.most_common()),
        "not_merged": dict(tally.not_merged.most_common()),
        "stopped": tally.stopped or None,
        "requests": usage.requests,
        "tokens": usage.tokens,
    }


def show(run: RunDir, result: JsonView, count: int) -> None:
    """Says what was made, why the rest was dropped, and what to type next."""
    say, tasks = run.console.say, result["tasks"]
    dropped = [["dropped", why, n] for why, n in result["dropped"].items()]
    kept = [["kept as it is", why, n] for key in ("not_deepened", "not_merged") for why, n in result[key].items()]
    run.console.table("questions that became no task, or none of more passages", ["", "why", "number"], dropped + kept)
    if result["stopped"]:
        say(f"{tasks} of {count} tasks: teaching.budget is spent; a larger one goes on")
    elif result["exhausted"] and tasks < count:
        say(f"{tasks} of {count} tasks: there are no more passages")
    if tasks:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(result["kinds"].items()))
        each = f"{result['requests'] / tasks:.0f} requests and {result['tokens'] / tasks:,.0f} tokens each"
        say(f"{tasks} tasks ({kinds}), {each}: {run.folder / TASKS}; {MADE} has the evidence of each")

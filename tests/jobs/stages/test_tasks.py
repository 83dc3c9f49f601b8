"""Tasks of documents, made by a model behind an endpoint and solved by a team of it: nothing is paid for twice."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from actors.teachers.team import Played
from coa.config import load
from coa.errors import InfrastructureError
from coa.llm.ask import Message
from coa.llm.completions import Completion
from coa.tasks.loading import load as load_tasks
from coa.tasks.made.questions import Evidence, Kind, Question, occurs
from coa.teams.run import Assignment
from coa.teams.store import read_transcripts
from coa.teams.transcript import Ending, Graded, Transcript
from coa.tools.layouts import Passage
from coa.usage import Usage
from jobs.commands.tasks import check, recipe_of
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Stage, open_console
from jobs.run.run_dir import RunDir
from jobs.stages.services import tool_client
from jobs.stages.tasks import ids_of, make_tasks, read_corpus, show
from jobs.teachers.workshop import Candidate, Tally, Workshop, pairs_of
from tests.project.test_docs import ROOT
from tests.support import librarian
from tests.support.endpoints import EndpointProcess, read_log, wait_for_log
from tests.support.mistakes import mistake
from tests.support.weights import LocalActor

LIBRARIAN = ("--reply", "tests.support.librarian:reply")
MAKERS = ("Nora Lind", "Jo Ueda", "Ada Berg", "Kim Tran", "Ole Rook", "Eva York", "Tom Gray")
THINGS = ("mill", "bridge", "tower", "church", "canal", "harbour", "dyke")
PLACES = ("Arden", "Brook", "Cray", "Dale")


def write_documents(folder: Path) -> Path:
    """A document on each thing, which names who built it; the first half name the next thing, too."""
    folder.mkdir()
    names = [f"{place} {thing}" for place in PLACES for thing in THINGS]
    for number, name in enumerate(names):
        maker, following = MAKERS[number % len(MAKERS)], names[number + 1] if number < len(names) / 2 else "sea"
        text = f"It was built by {maker} in {1800 + number}.\n\nFrom its top one sees the {following} on clear days."
        (folder / f"{number}.md").write_text(f"# {name}\n\n{text}\n")
    return folder


def settings(endpoint: str, run: Path, corpus: Path, *overrides: str) -> list[str]:
    model = "models.teacher.endpoint"
    return [
        *(f"run_dir={run}", f"world.corpus={corpus}", f"{model}.url={endpoint}", f"{model}.name=scripted"),
        *("teaching.reissues=0", "distill.filters.duplicates.threshold=null", *overrides),
    ]


@contextmanager
def run_of(endpoint: str, folder: Path, corpus: Path, *overrides: str) -> Iterator[RunDir]:
    with open_console(folder.with_suffix(".log")) as console:
        config = load(Recipe, find_recipe("documents"), settings(endpoint, folder, corpus, *overrides))
        yield RunDir(recipe_of(config), console)


def make(run: RunDir, count: int) -> dict[str, Any]:
    async def body() -> dict[str, Any]:
        passages = await read_corpus(run)
        async with tool_client(run) as tools:
            return await make_tasks(run, tools, passages, count)

    result = asyncio.run(body())
    show(run, result, count)
    return result


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_made(folder: Path, corpus: Path) -> None:
    """Each task is right by the documents themselves, and rests on what stands in them."""
    documents = {path.read_text().splitlines()[0].removeprefix("# "): path.read_text() for path in corpus.iterdir()}
    tasks = {task.id: task for task in load_tasks(str(folder / "tasks.jsonl"))}
    made = lines(folder / "made.jsonl")
    assert [row["id"] for row in made] == list(tasks)
    for row in made:
        assert tasks[row["id"]].answers == tuple(row["answers"])
        assert all(evidence["quote"] in documents[evidence["title"]] for evidence in row["evidence"])
        quotes = " ".join(evidence["quote"] for evidence in row["evidence"])
        assert all(occurs(answer, quotes) for answer in row["answers"][0].split(" | "))
        assert len(row["evidence"]) == {"atomic": 1, "deeper": 2}.get(row["kind"], len(row["evidence"]))
    runs = list(read_transcripts(folder / "transcripts"))
    assert [run.transcript.task.id for run in runs] == list(tasks)
    assert all(run.correct for run in runs)


def test_documents_become_tasks_that_the_team_has_solved_and_nothing_is_paid_for_twice(
    ray_session: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus, folder, log = write_documents(tmp_path / "corpus"), tmp_path / "run", tmp_path / "log.jsonl"
    with EndpointProcess(*LIBRARIAN, "--log", str(log)) as endpoint:
        with run_of(endpoint.url, folder, corpus, "teaching.budget.requests=60") as run:
            first = make(run, 8)
            assert first["stopped"] == "budget"
            assert first["tasks"] < 8
            assert first["requests"] == len(read_log(log)) <= 60 + 16, "those under way are finished"
        with run_of(endpoint.url, folder, corpus) as run:
            result = make(run, 8)
            seen = read_log(log)
            assert result["requests"] == len(seen) == len({one.id for one in seen})
            assert result["tasks"] == sum(result["kinds"].values()) == 8
            check_made(folder, corpus)
            first_ids = [task["id"] for task in lines(folder / "tasks.jsonl")]
            costs = [row["requests"] for row in lines(folder / "made.jsonl")]
            assert all(cost > 5 for cost in costs)
            assert sum(costs) < result["requests"]
            assert make(run, 8) == make(run, 5) == result
            assert len(read_log(log)) == len(seen)
            more = make(run, 10_000)
            assert more["tasks"] > 16
            assert more["passages"] == {"used": 28, "all": 28}
            assert set(more["kinds"]) == {"atomic", "deeper", "wider"}
            check_made(folder, corpus)
            assert [task["id"] for task in lines(folder / "tasks.jsonl")][:8] == first_ids
            seen = read_log(log)
            assert more["requests"] == len(seen) == len({one.id for one in seen})
            (folder / "made.jsonl").unlink()
            assert make(run, 10_000) == more
            assert not (folder / "made.jsonl").exists(), "there are no more passages, and nothing is done again"
    said = capfd.readouterr().out
    assert "of 8 tasks: teaching.budget is spent; a larger one goes on" in said
    assert "of 10000 tasks: there are no more passages" in said


def test_a_model_that_makes_no_question_ends_the_command_with_the_reasons(ray_session: None, tmp_path: Path) -> None:
    corpus, folder = write_documents(tmp_path / "corpus"), tmp_path / "run"
    with (
        EndpointProcess() as endpoint,
        run_of(endpoint.url, folder, corpus) as run,
        pytest.raises(
            InfrastructureError, match=r"no task could be made of 28 passages: no question in the reply \(28\)"
        ),
    ):
        make(run, 8)


def test_questions_of_evaluation_sets_are_not_made(ray_session: None, tmp_path: Path) -> None:
    corpus, folder, held_out = write_documents(tmp_path / "corpus"), tmp_path / "run", tmp_path / "held_out.jsonl"
    asked = [f"By whom was {place} {thing} built ?" for place in PLACES for thing in THINGS]
    held_out.write_text("".join(f"{json.dumps({'question': text, 'answer': 'x'})}\n" for text in asked))
    with (
        EndpointProcess(*LIBRARIAN) as endpoint,
        run_of(endpoint.url, folder, corpus, f"distill.against=[{held_out}]") as run,
        pytest.raises(InfrastructureError, match="in an evaluation set: exact"),
    ):
        make(run, 8)


@pytest.mark.slow
def test_a_killed_command_goes_on_without_paying_again(tmp_path: Path) -> None:
    corpus, folder, log = write_documents(tmp_path / "corpus"), tmp_path / "run", tmp_path / "log.jsonl"
    with EndpointProcess(*LIBRARIAN, "--log", str(log)) as endpoint:
        words = ["tasks", "--recipe", "documents", "--count", "12", *settings(endpoint.url, folder, corpus)]
        command = [sys.executable, "-m", "jobs.cli", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for kill_at in (40, 120):
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
            wait_for_log(log, kill_at)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
        assert done.returncode == 0
    check_made(folder, corpus)
    seen = [one for one in read_log(log) if one.finished is not None]
    again = len(seen) - len({one.id for one in seen})
    assert again <= 2 + 2 * 16, "the question before each start, and at most what was under way at a kill"
    assert len(lines(folder / "tasks.jsonl")) == 12


class Team:
    """A team that solves no question of these kinds."""

    def __init__(self, *unsolved: Kind) -> None:
        self._unsolved = {kind.value for kind in unsolved}
        self.finished = Usage()

    async def play(self, assignments: Sequence[Assignment]) -> Played:
        [assignment] = assignments
        task, attempt = assignment.task, assignment.attempt
        run = Transcript(task=task, attempt=attempt, seed=0, steps=(), ending=Ending.OUT_OF_STEPS)
        return Played(outcomes=[Graded(run, task.family not in self._unsolved)], failures={})


class Model:
    async def complete(self, messages: Sequence[Message], seed: int, options: object) -> Completion:
        return Completion(librarian.reply(messages, seed), "stop", Usage(requests=1))


class Shelf:
    """An index that finds all passages."""

    name = "shelf"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def search(self, query: str, topk: int) -> list[Passage]:
        return list(self._passages)


@pytest.mark.parametrize(
    ("unsolved", "kinds"),
    [
        ((), {"deeper": 3, "wider": 1}),
        ((Kind.DEEPER,), {"atomic": 3, "wider": 1}),
        ((Kind.WIDER,), {"atomic": 2, "deeper": 3}),
        ((Kind.ATOMIC, Kind.WIDER), {"deeper": 3}),
    ],
)
def test_a_question_that_the_team_does_not_solve_makes_way_for_those_that_it_was_made_of(
    tmp_path: Path, unsolved: tuple[Kind, ...], kinds: dict[str, int]
) -> None:
    """Five things, three of which another passage names; with as many as possible in pairs."""
    names = ("Arden dyke", "Arden tower", "Brook dyke", "Brook tower", "Cray mill")
    sees = (*names[1:4], "sea", "sea")
    passages = [
        Passage(name, f"{name}\nIt was built by {maker} Berg. One sees the {there}.")
        for name, maker, there in zip(names, ("Nora", "Jo", "Ada", "Kim", "Eva"), sees, strict=True)
    ]
    with run_of("http://127.0.0.1:9/v1", tmp_path / "run", tmp_path, "world.merged=1", "world.tries=1") as run:
        tally, team = Tally(), Team(*unsolved)
        model: Any = LocalActor(Model())
        workshop = Workshop(run, cast(Any, team), model, passages, Shelf(passages), tally)
        made = asyncio.run(workshop.play_wave(100, Stage("tasks", 100)))
        assert Counter(one.question.kind.value for one in made) == kinds
        assert workshop.is_empty


def test_passages_are_given_up_if_the_first_two_hundred_give_nothing(tmp_path: Path) -> None:
    passages = [Passage(str(number), f"{number}\nNothing of note.") for number in range(1000)]
    with run_of("http://127.0.0.1:9/v1", tmp_path / "run", tmp_path) as run:
        tally, model = Tally(), LocalActor(Model())
        workshop = Workshop(run, cast(Any, Team()), cast(Any, model), passages, Shelf(passages), tally)
        assert asyncio.run(workshop.play_wave(100, Stage("tasks", 100))) == []
    assert workshop.is_empty
    assert tally.passages == 208, "whole parts of sixteen"


def question(number: int, answer: str = "") -> Question:
    evidence = Evidence(passage=number, title="", quote="")
    text = answer or f"answer {number}"
    return Question(id=f"made-{number}-0", text="?", answers=(text,), name="", evidence=(evidence,))


def test_pairs_are_neighbours_with_different_passages_and_answers() -> None:
    one, same_passage, same_answer, other, last = map(
        Candidate, (question(1), question(1, "b"), question(2), question(3, "answer 2"), question(4))
    )
    assert pairs_of([one, other, last], 5) == [(one, other)]
    assert pairs_of([one, same_passage, same_answer, other], 5) == []
    assert pairs_of([one, other, last, same_answer], 1) == [(one, other)]
    assert pairs_of([], 3) == []


def test_a_questions_costs_are_those_of_all_that_it_was_made_of() -> None:
    made = Question(id="made-3-0.2+made-7-1", text="?", answers=("a | b",), name="", evidence=(), kind=Kind.WIDER)
    assert ids_of(made) == {made.id, "made-3-0.2", "made-3-0", "made-7-1"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tasks.path=a.jsonl"], "coa tasks needs tasks.world=documents and no tasks.path, as in the recipe documents"),
        (["world.corpus=''"], "no documents: name their folder by --corpus"),
        (["world.corpus=away"], "world.corpus: no folder at away"),
        (["world.profile=mhqq"], "world.profile is 'mhqq': known are "),
        (["world.profile=code"], "world.profile=code does not call wiki_search, which finds the passages"),
        (["team.model=''"], "no model is set for the role critic: set team.model to one of `models`"),
        (["team.model=x"], "team: no model 'x' for the critic; `models` has teacher"),
        (["models.teacher.endpoint.url=null"], "models.teacher: name an endpoint.url or a serve.model, one of the two"),
        (["world.hops=9"], "world.hops is 9, expected from 1 to 5"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], overrides: list[str], message: str, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"question": "Who ?", "answer": "I"}\n{"question": "Whom ?", "answer": "I"}\n')
    corpus = write_documents(tmp_path / "corpus")
    words = settings("http://127.0.0.1:9/v1", tmp_path / "run", corpus, *overrides)
    assert mistake(capfd, "tasks", "--recipe", "documents", *words).startswith(message)
    assert not (tmp_path / "run").exists()


def test_the_command_is_for_documents_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = mistake(capfd, "tasks", "--recipe", "tiny", f"run_dir={tmp_path / 'run'}")
    assert told == "coa tasks needs tasks.world=documents and no tasks.path, as in the recipe documents"


def test_what_was_looked_at_names_the_documents_and_the_model(tmp_path: Path) -> None:
    corpus = write_documents(tmp_path / "corpus")
    words = settings("http://127.0.0.1:9/v1", tmp_path / "run", corpus)
    found = check(load(Recipe, find_recipe("documents"), words), count=3)
    assert [one.what for one in found] == [
        "settings",
        "documents (28 files)",
        "models.teacher (scripted at http://127.0.0.1:9/v1)",
    ]

"""Functions that `import coa` offers to programs: the commands train, evaluate and ask as functions, with the same
checks.

    run = coa.train("own_tasks", tasks="tasks.jsonl", settings={"models.teacher.endpoint.url": "http://..."})
    coa.evaluate(run.model, tasks="held_out.jsonl").results["pass_at_1"]
    with coa.load_agent(run.model) as agent:
        agent.ask("What is 2 + 3 ?").answer

A user's mistake is a `UserError`; any other error that ends a job is raised unchanged. The terminal shows what the
commands show; what libraries print goes to the log of the job's folder. A program that calls these needs the usual
`if __name__ == "__main__":`, since some parts run in spawned processes.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coa.agent.grammar import OBSERVATION, Span
from coa.errors import InfrastructureError, UserError
from coa.json_object import Json, JsonView
from coa.paths import local
from coa.serving.chain import Closed
from coa.serving.events import Broke, Finished, Returned, ServedUsage
from coa.storage.files import write_atomically
from coa.types import Status
from coa.unicode import whole
from coa.user_reward import USER_REWARD, UserReward, grade_by_user, user_reward
from jobs.commands import evaluate as evaluate_command
from jobs.commands import train as train_command
from jobs.commands.ask import command as ask_command
from jobs.commands.command import Job
from jobs.launch import Prepared, launch, prepare, unwrapped
from jobs.run.console import open_console

if TYPE_CHECKING:
    from actors.serving.agent import ServedAgent
    from coa.serving.requests import AgentRequest
    from jobs.recipe.schema import Recipe

Settings = Mapping[str, Any] | Sequence[str]
"""`{"rl.steps": 5}`, `{"rl": {"steps": 5}}` or `["rl.steps=5"]`."""
Tasks = str | Path | Sequence[JsonView]
"""A value of `--tasks`, or rows such as {"question": "What is 2 + 3 ?", "answer": "5"}."""

ROWS = Path("runs/tasks")
"""Folder for rows that a program passes, each set in a file named by the hash of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    folder: Path
    """The run's folder; docs/run_directory.md describes its layout."""
    model: Path
    """The trained model, in Hugging Face layout."""
    report: Json
    """Content of `report.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    folder: Path
    results: Json
    """Content of `evaluation.json`: "pass_at_1" and "greedy" with intervals, as far as they were measured,
    "benchmarks", "families", "statuses"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    answer: str
    """The final answer; if it is empty, `status` says why."""
    chain: tuple[Span, ...]
    """The model's texts and the tools' results, tag by tag."""
    status: Status
    cost: ServedUsage
    """Tokens, tool calls and turns."""


def train(
    recipe: str | Path = "own_tasks",
    *,
    tasks: Tasks | None = None,
    reward: UserReward | None = None,
    settings: Settings = (),
    run_dir: str | Path | None = None,
) -> Trained:
    """`coa train`: all stages of a recipe; the same call resumes a run that was interrupted.

    tasks: None takes the recipe's. reward: (task, answer) -> a grade from 0 (wrong) to 1 (right), used in every stage
    instead of the tasks' own graders, except for rows that name a grader. Raises UserError.
    """
    _require_no_loop()
    overrides = [
        *overrides_of(settings),
        *([] if tasks is None else [f"tasks.path={json.dumps(_as_file(tasks))}"]),
        *([] if reward is None else [f"tasks.grader={USER_REWARD}"]),
        *([] if run_dir is None else [f"run_dir={json.dumps(str(run_dir))}"]),
    ]
    with user_reward(reward):
        prepared = _prepare(train_command.COMMAND, recipe, overrides)
        if reward is not None:
            _try(prepared.config)
        launch(prepared)
    folder = prepared.folder.resolve()
    report = json.loads((folder / "report.json").read_text())
    return Trained(folder=folder, model=folder / "model", report=report)


def evaluate(
    model: str | Path,
    *,
    tasks: Tasks | None = None,
    rows: int | None = None,
    best_of: int | None = None,
    against: str | Path | None = None,
    reward: UserReward | None = None,
    recipe: str | Path | None = None,
    settings: Settings = (),
    out: str | Path | None = None,
) -> Evaluated:
    """`coa evaluate`: measures the model on tasks. tasks: None takes held-out tasks of the world that it was trained
    in. reward: as in `train`. Raises UserError."""
    _require_no_loop()
    arguments = {
        "model": _path(model, "model"),
        "tasks": None if tasks is None else _as_file(tasks),
        "rows": rows,
        "best_of": best_of,
        "against": None if against is None else _path(against, "against"),
        "out": None if out is None else _path(out, "out"),
    }
    overrides = [*overrides_of(settings), *([] if reward is None else [f"tasks.grader={USER_REWARD}"])]
    with user_reward(reward):
        prepared = _prepare(evaluate_command.COMMAND, recipe, overrides, **arguments)
        launch(prepared)
    folder = prepared.folder.resolve()
    return Evaluated(folder=folder, results=json.loads((folder / "evaluation.json").read_text()))


def load_agent(
    model: str | Path,
    *,
    profile: str | None = None,
    grammar: str | None = None,
    recipe: str | Path | None = None,
    settings: Settings = (),
    out: str | Path = "runs/ask",
) -> "Agent":
    """`coa ask`: the model with its tools in this process, until `close`. out: folder of the logs. Raises UserError."""
    named = {
        "question": "?",
        "model": _path(model, "model"),
        "profile": profile,
        "grammar": grammar,
        "out": _path(out, "out"),
    }
    prepared = _prepare(ask_command.COMMAND, recipe, overrides_of(settings), **named)
    with unwrapped(prepared.folder):
        ask_command.COMMAND.check(prepared.config, **prepared.arguments)
        return Agent(prepared)


class Agent:
    """A model with its tools. Use it in a `with` statement, or call `close` to end its engine."""

    def __init__(self, prepared: Prepared) -> None:
        """prepared: the job `coa ask`."""
        from anyio.from_thread import start_blocking_portal

        from jobs.commands.ask.episode import agent_of

        arguments = {name: value for name, value in prepared.arguments.items() if name != "question"}
        self._log = prepared.log
        self._config, self._profile = ask_command.settings_of(prepared.config, **arguments)
        with ExitStack() as stack, open_console(prepared.log) as console:
            self._portal = stack.enter_context(start_blocking_portal())
            entering = agent_of(self._config, console, arguments["model"])
            self._agent = stack.enter_context(self._portal.wrap_async_context_manager(entering))
            self._stack = stack.pop_all()

    def ask(self, question: str) -> Answered:
        """Plays one episode greedily. Raises UserError for an empty question, and InfrastructureError if a part of the
        system failed."""
        from jobs.commands.ask.episode import request_of

        if not question.strip():
            raise UserError("the question is empty")
        return self._portal.call(answered, self._agent, request_of(self._config, question, self._profile))

    def close(self) -> None:
        with open_console(self._log):  # vLLM prints much while it shuts down
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def answered(agent: "ServedAgent", request: "AgentRequest") -> Answered:
    """Plays one episode; raises InfrastructureError if a part of the system failed."""
    chain: list[Span] = []
    async for event in agent.play(request):
        match event:
            case Closed(tag, text):
                chain.append(Span(tag, text.strip()))
            case Returned():
                chain.append(Span(OBSERVATION, event.text.strip()))
            case Finished():
                return Answered(answer=event.answer, chain=tuple(chain), status=event.status, cost=event.usage)
            case Broke():
                raise InfrastructureError(event.message)
    raise InfrastructureError("the episode ended without a result")


def overrides_of(settings: Settings, prefix: str = "") -> list[str]:
    """Settings as command-line overrides: {"rl": {"steps": 5}} is ["rl.steps=5"]."""
    if isinstance(settings, str):
        raise UserError(f"settings is {settings!r}, expected a list of key=value, or a mapping")
    if not isinstance(settings, Mapping):
        return list(settings)
    found: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += overrides_of(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={json.dumps(value, ensure_ascii=False, default=str)}")
    return found


def _path(path: str | Path, name: str) -> Path:
    return Path(local(str(path), name))


def _prepare(job: Job, recipe: str | Path | None, overrides: Sequence[str], **arguments: Any) -> Prepared:
    return prepare(job, {"recipe": None if recipe is None else str(recipe), "overrides": overrides, **arguments})


def _require_no_loop() -> None:
    """Raises UserError if an event loop is running: a job runs its own, which ends on an interrupt."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UserError(
        "coa can't start a job within an event loop, such as a notebook's: run it in a script, or type the command "
        "in a cell, as `!coa train --recipe NAME`"
    )


def _try(config: "Recipe") -> None:
    """Raises UserError if the given reward function fails on a task, so that it does not fail after fine-tuning."""
    from jobs.recipe.worlds import world_of

    world = world_of(config)
    if not world.mistake():  # otherwise the job's own check reports it
        task = world.training_task("rl", 0, seed=config.seed)
        asyncio.run(grade_by_user(task.answers[0] if task.answers else "", task))


def _as_file(tasks: Tasks) -> str:
    """The path or name of the tasks; rows are written to a file first. Raises UserError for rows that are no objects of
    JSON."""
    if isinstance(tasks, str | Path):
        return str(tasks)
    text = "".join(f"{_line(number, row)}\n" for number, row in enumerate(tasks, start=1))
    path = ROWS / f"{sha256(text.encode()).hexdigest()[:12]}.jsonl"
    if not path.exists():
        write_atomically(path, text)
    return str(path)


def _line(number: int, row: object) -> str:
    if not isinstance(row, Mapping):
        raise UserError(
            f"tasks: row {number} is {row!r:.80}, expected a mapping with a question and an answer (a data frame gives "
            "them by frame.to_dict('records'))"
        )
    try:
        return whole(json.dumps(dict(row), ensure_ascii=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise UserError(f"tasks: row {number} is not plain JSON: {error}") from error


def _plain(value: Any) -> Any:
    """The plain value of a number or an array of NumPy, or of a decimal number."""
    if isinstance(value, Decimal | Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.80} is a {type(value).__name__}")

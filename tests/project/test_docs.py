"""What the documents show is what there is: commands parse, targets and links exist."""

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from string import Template
from typing import Any

import pytest

from benchmarks import algorithms, table
from coa.config import load
from coa.grading.graders import check_graders, grader_of
from coa.learning.algorithms import ALGORITHMS
from coa.learning.algorithms.policy_gradient import PolicyGradient
from coa.teams.kinds import check_team
from jobs import cli
from jobs.recipe.find import RECIPES, find_recipe
from jobs.recipe.schema import Recipe
from tests.support.released import laid_out, row_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(path: Path, language: str = "") -> list[str]:
    """The fenced blocks of a language."""
    every = re.findall(r"^```([^\n]*)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [text for info, text in every if info == language]


def commands() -> Iterator[str]:
    for path in DOCUMENTS:
        shared = dict(re.findall(r'^(\w+)="(.*)"$', "\n".join(blocks(path, "bash")), re.MULTILINE))
        for block in (*blocks(path), *blocks(path, "bash")):
            for line in block.splitlines():
                if line.startswith(("coa ", "make ")):
                    # What follows two blanks says what the command is for.
                    yield Template(re.split(r"\s{2,}|\s\[", line)[0]).safe_substitute(shared)


COMMANDS = sorted(set(commands()))


def test_every_recipe_that_is_shown_resolves(tmp_path: Path) -> None:
    shown = tmp_path / "shown.yaml"
    [block] = blocks(ROOT / "docs" / "distillation.md", "yaml")
    shown.write_text(block)
    config = load(Recipe, shown)
    check_team(config.team, config.models, {config.tasks.profile})
    check_graders({grader_of(config.tasks.profile, ())}, config.tools, config.executor.limit_s)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_the_documents_is_one(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = laid_out(("plan", "look"), ("web_search", "Arden"), ("observation", "Berg"), ("answer", "Berg"))
    Path("WebAgentSFTDataset.json").write_text(json.dumps([row_of("Write <answer>.\n\nQuestion: Who ?", said)]))
    program, *words = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    try:
        options = vars(cli._parser(words).parse_args(words))
    except SystemExit as ended:  # one that prints a table and ends, as --help does
        if ended.code:
            raise
        return
    recipe = options.get("recipe")
    shipped = recipe in {path.stem for path in RECIPES.glob("*.yaml")}  # others are the reader's own files
    config = load(Recipe, find_recipe(recipe) if recipe and shipped else None, options.get("overrides", ()))
    if config.sft.data and shipped:
        assert config.agent.limits.max_tokens > 4096, "chains of real agents have thousands of tokens"


def test_every_benchmark_that_is_named_is_there() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"python -m (benchmarks\.[\w.]+\w)", path.read_text())}
    assert "benchmarks.loop_limit" in named
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()


def test_the_table_of_performance_is_that_of_the_results() -> None:
    text = table.DOCUMENT.read_text()
    assert table.filled(text, "\n".join(table.lines(table.read()))) == text, "python -m benchmarks.table writes it"
    for row in table.ROWS:
        if importlib.util.find_spec(f"benchmarks.{row.benchmark}") is not None:
            assert f"python -m benchmarks.{row.benchmark}" in text


def test_the_table_of_the_algorithms_is_that_of_the_results() -> None:
    text = algorithms.DOCUMENT.read_text()
    assert table.filled(text, algorithms.table(algorithms.results()), algorithms.BEGIN) == text


def anchors(path: Path) -> set[str]:
    """What links may name in a page: its headings in small letters, a hyphen for a blank."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", path.read_text()):
        if not target.startswith("http"):
            page = path.parent / target if target else path
            assert page.exists(), target
            assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def test_the_index_has_every_page() -> None:
    linked = set(re.findall(r"\]\(((?:decisions/)?[\w.]+)\)", (ROOT / "docs" / "README.md").read_text()))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} | {"decisions/README.md"}


def test_the_index_of_decisions_has_their_titles() -> None:
    folder = ROOT / "docs" / "decisions"
    told: dict[str, list[str]] = {}
    for line in (folder / "README.md").read_text().splitlines():
        if found := re.fullmatch(r"## \[.*\]\((.*)\)", line):
            titles = told.setdefault(found[1], [])
        elif line.startswith("- "):
            titles.append(line[2:])
    pages = {path.name: path.read_text() for path in folder.glob("*.md") if path.name != "README.md"}
    found = {name: re.findall(r"^\*\*(.*?)\*\*", text, re.MULTILINE | re.DOTALL) for name, text in pages.items()}
    assert told == {name: [" ".join(title.split()) for title in titles] for name, titles in found.items()}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(path: Path) -> None:
    for name in re.findall(r"`((?:coa|actors|cluster|jobs|tests|docs|scripts)/[\w./-]*)`", path.read_text()):
        assert (ROOT / name).exists(), name


def test_the_architecture_names_the_files_of_every_package_and_all_of_them_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = set(re.findall(r"(?:coa|actors|cluster|jobs|tests|docs)/[\w./-]*\w(?:\.py|/)", text))
    assert {name for name in names if not (ROOT / name).exists()} == set()
    packages = {path.parent for path in (ROOT / "coa").glob("*/__init__.py")}
    unnamed = {path.name for path in packages if not any(name.startswith(f"coa/{path.name}/") for name in names)}
    assert unnamed == set(), "a newcomer would not find them"


def test_every_hop_of_the_five_walks_is_there() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## Five walks\n")[2].partition("\n## ")[0]
    walks = re.findall(r"^### [^\n]*: (\d+) files\n(.*?)(?=^###|\Z)", section, re.MULTILINE | re.DOTALL)
    assert len(walks) == 5
    for count, text in walks:
        path, files = "", set[str]()
        for word in re.findall(r"`([^`]+)`", text):
            if word.endswith(".py"):
                path = word
                files.add(path)
            else:
                assert word in defined(ROOT / path), f"{path}: {word}"
        assert len(files) == int(count), text


def defined(path: Path) -> set[str]:
    """What a module defines: functions, classes and constants, and methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            methods = [one for one in ast.walk(node) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{one.name}" for one in methods}
    return found


FILES = [
    (path, *found)
    for path in DOCUMENTS
    for found in re.findall(r"^```python file=(\S+)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("path", "name", "shown"), FILES, ids=[name for _, name, _ in FILES])
def test_a_file_that_a_document_shows_is_that_file(path: Path, name: str, shown: str) -> None:
    assert shown == (ROOT / name).read_text()


def test_every_algorithm_stands_in_the_table_with_a_reference_and_how_it_fails() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)
    table = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows if cells.count("|") == 3}
    own_ones = [name for name, kind in ALGORITHMS.items() if kind.__module__.startswith("coa.")]
    assert list(table) == own_ones
    shared = {field.name for field in fields(PolicyGradient)}
    for name, (reference, settings, when, failure) in table.items():
        assert when, name
        assert failure, name
        kind: Any = ALGORITHMS[name]
        own = {field.name for field in fields(kind)} - shared
        assert own <= set(re.findall(r"`(\w+)`", settings)) | {"spread"}, name
        assert name == "imitation" or "arXiv" in reference, name


EXAMPLES = """
import asyncio, contextlib, io, json, sys
from pathlib import Path
from actors.tools.executor import ToolExecutor
from coa.tasks.published.table import of_family
from coa.agent.episode import AgentConfig
from coa.agent.grammar import escape
from coa.grading.graders import GRADERS
from coa.agent.profiles import profile
from coa.grading.rewards import RewardConfig
from coa.tasks.loading import load
from coa.tools.base import ToolCall
from coa.config import load as load_recipe
from coa.grading.toolset import ToolsConfig, check_called, standard_tools
from coa.types import Task
from jobs.recipe.schema import Recipe
from tests.support.released import laid_out, row_of

assert profile("gazetteer").stops == ("</lookup>", "</answer>")
assert escape("<lookup>") == "<\\\\lookup>"
traveller = profile("traveller")
assert traveller.transitions["forecast"] == ("wiki_search", "plan", "reflection", "answer", "forecast")
assert traveller.stops == ("</wiki_search>", "</forecast>", "</answer>")
check_called({"forecast"}, load_recipe(Recipe, None, ["tools.mcp.w.tags.forecast.tool=x"]).tools, articles=0, site=0)

async def main():
    executor = ToolExecutor(lambda: standard_tools(ToolsConfig()))
    found = await executor.call_many([ToolCall("lookup", "Nobody Atall"), ToolCall("lookup", "Amber Falls")])
    await executor.close()
    print(json.dumps(found))
    close = GRADERS["close"]
    task = Task(id="t", question="?", answers=("200",), profile="gazetteer", family="f", grader="close")
    print(json.dumps([await close(given, task, None) for given in ("201", "203", "many")]))

asyncio.run(main())
print(RewardConfig(formula="grade * form - 0.02 * calls").formula)
from coa.tasks.worlds import find_world
from coa.teams.kinds import start
from coa.teams.play import play
from coa.teams.run import Assignment
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Prompt
from jobs.recipe.worlds import world_of

async def play_sum():
    world = world_of(load_recipe(Recipe, None, ["tasks.world=arithmetic", "world.largest=20"]))
    mind, task = world.experts(), world.training_task("distill", 3, seed=0)

    async def ask(prompt):
        return (await mind.replies([prompt]))[0]

    async def use(call, key):
        return str(eval(call.argument.removeprefix("print")))

    run = await play(start(Assignment(task), TeamConfig(), seed=0, layouts=("plain",)), ask, use)
    asked = {task.question for task in world.evaluation_tasks(30, seed=1)}
    trained = {world.training_task("rl", index, seed=0).question for index in range(300)}
    measured = world.measures([task], {task.id: ["<code> 1</code>", ""]})
    print(run.answer == task.answers[0], bool(asked & trained), world.column("size", task, ()), measured)

asyncio.run(play_sum())

async def play_alone():
    world = world_of(load_recipe(Recipe, None, ["tasks.world=tiny"]))
    task = next(one for one in world.evaluation_tasks(30, seed=1) if one.family == "calc")

    async def ask(prompt):
        return (await world.experts().replies([prompt]))[0]

    async def use(call, key):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(call.argument, {})
        return printed.getvalue()

    team = TeamConfig(rules="soloist")
    run = await play(start(Assignment(task), team, seed=0, layouts=("plain",)), ask, use)
    print(run.team, run.ending.value, {step.agent for step in run.steps if isinstance(step, AgentStep)})

asyncio.run(play_alone())

async def play_gym():
    world = world_of(load_recipe(Recipe, Path("docs/examples/gym.yaml"), []))
    mind, grade = world.experts(), GRADERS["reasoning_gym"]

    async def ask(prompt):
        return (await mind.replies([prompt]))[0]

    async def use(call, key):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(call.argument, {})
        return printed.getvalue()

    grades = []
    for index in range(30):
        task = world.training_task("distill", index, seed=0)
        run = await play(start(Assignment(task), TeamConfig(), seed=0, layouts=("plain",)), ask, use)
        grades.append(await grade(run.answer, task, None))
    print(len(grades), sum(grades))

asyncio.run(play_gym())
[task] = load(f"capitals={sys.argv[1]}", profile="mhqa")
print(task.question, task.answers, task.profile, of_family(task.family).metric_at(4))
from actors.weights.transports import find_sender
print(find_sender("folder").__name__)
"""


def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    rows = tmp_path / "capitals.jsonl"
    rows.write_text('{"country": "Chad", "capital": ["N\'Djamena", "NDjamena"]}\n')
    examples = {path.stem for path in (ROOT / "docs/examples").glob("*.py")} - {"loop"}  # which is a program
    names = ",".join(f"docs.examples.{name}" for name in sorted(examples))
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES, str(rows)],
        cwd=ROOT,
        env={**os.environ, "COA_EXTENSIONS": names},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tool, grader, formula, world, solo, gym, task, sender = done.stdout.splitlines()
    assert solo == "soloist answered {'soloist'}"
    assert sender == "FolderSender"
    nobody, falls = json.loads(tool)
    assert nobody == "no result"
    assert falls.startswith("Amber Falls : mayor ")
    assert json.loads(grader) == [1.0, 0.0, 0.0]
    assert formula == "grade * form - 0.02 * calls"
    assert world == "True False small {'programs': 0.5}"
    assert gym == "30 30.0"
    assert task == "What is the capital of Chad ? (\"N'Djamena\", 'NDjamena') mhqa avg@4"


def test_the_command_finds_an_extension_beside_it(tmp_path: Path) -> None:
    coa = Path(sys.executable).with_name("coa")
    shutil.copy(ROOT / "docs/examples/capitals.py", tmp_path / "my_capitals.py")
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(coa), "evaluate", "--benchmarks"],
        cwd=tmp_path,
        env={**inherited, "COA_EXTENSIONS": "my_capitals"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "capitals" in done.stdout


def test_an_extension_that_is_not_there_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "train", "--recipe", "tiny"],
        cwd=ROOT,
        env={**os.environ, "COA_EXTENSIONS": "no.such.module"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "coa: COA_EXTENSIONS names 'no.such.module': No module named 'no'"

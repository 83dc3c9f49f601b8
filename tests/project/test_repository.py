"""The repository's own promises: imports point down and never in a circle, the demo is a guest, the domain is light,
files are short, recipes load, no failure is lost."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from coa.config import load
from jobs.recipe.schema import Recipe

ROOT = Path(__file__).parents[2]
PACKAGES = ("coa", "actors", "cluster", "jobs")
HEAVY = {"ray", "vllm", "deepspeed"}
ALLOWED = {"coa": {"coa"}, "actors": {"coa", "actors"}, "cluster": {"coa", "actors", "cluster"}, "jobs": set(PACKAGES)}
FILE_LINES, FUNCTION_LINES, FOLDER_MODULES = 400, 60, 20
TOO_LARGE: set[str] = set()
"""What is over the limits, and is to be cut: a list that shrinks, since what is within them may not stay on it."""
OFFERED = {"coa/__init__.py": {"jobs"}}
"""What points up: `import coa` offers the functions of programs, and imports them when they are asked for."""
KNOWS_THE_DEMO = {"coa/tasks/worlds.py"}
"""Outside of the demo, the table of worlds alone names its package."""
RECIPES = sorted((ROOT / "jobs/recipes").glob("*.yaml"))


def sources(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def imports(source: str) -> Iterator[str]:
    """Top-level names of everything that is imported, lazily too; a relative import counts as none."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def packages(source: str) -> Iterator[str]:
    """The packages (or modules) right under `coa` that are imported, lazily and for types alone too."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            within = node.module == "coa"
            names = [f"coa.{alias.name}" for alias in node.names] if within else [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith("coa."))


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """A way from a node back to itself, through as many others as it takes; empty where there is none."""
    done: set[str] = set()

    def follow(path: list[str]) -> list[str]:
        for following in sorted(edges.get(path[-1], ())):
            if following in path:
                return [*path[path.index(following) :], following]
            if following not in done and (found := follow([*path, following])):
                return found
        done.add(path[-1])
        return []

    return next((found for node in sorted(edges) if node not in done and (found := follow([node]))), [])


def long_functions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES
        ):
            yield node.name


def swallows(source: str) -> list[int]:
    """Lines of `except Exception` and of bare `except`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(one is None or (isinstance(one, ast.Name) and one.id == "Exception") for one in types):
                found.append(node.lineno)
    return found


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_checks_see_what_they_look_for() -> None:
    assert set(imports("import ray.train\ndef f():\n  from jobs.cli import main")) == {"ray", "jobs"}
    handlers = (
        "try: pass\nexcept Exception: pass\ntry: pass\nexcept (OSError, Exception): pass\ntry: pass\nexcept: pass"
    )
    assert swallows(handlers) == [2, 4, 6]
    assert swallows("try: pass\nexcept (OSError, ValueError): pass\ntry: pass\nexcept BaseException: raise") == []


def test_the_checks_of_structure_see_what_they_look_for() -> None:
    source = "import coa.b.x\nfrom coa.c import d\nfrom coa import errors\ndef f():\n  import coa.e"
    assert sorted(packages(source)) == ["b", "c", "e", "errors"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"a"}}) == ["a", "b", "c", "d", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []
    body = "  x = 1\n" * FUNCTION_LINES
    assert list(long_functions(f"def f():\n{body}async def g():\n{body[8:]}")) == ["f"]


def test_the_packages_of_the_domain_form_no_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in sources("coa"):
        own = path.relative_to(ROOT).with_suffix("").parts[1]
        edges.setdefault(own, set()).update(set(packages(path.read_text())) - {own})
    assert len(edges) > 15
    assert circle(edges) == []


def test_nothing_but_the_table_of_worlds_knows_the_demo() -> None:
    its_own = re.compile(r"coa\.demo|coa/demo|tiny[ _-]world|\bcareful|\blazy (route|chain|one)", re.IGNORECASE)
    product = [*sources(*PACKAGES), *(path for path in RECIPES if path.stem != "tiny")]
    found = {str(path.relative_to(ROOT)) for path in product if its_own.search(path.read_text())}
    assert {path for path in found if not path.startswith("coa/demo/")} == KNOWS_THE_DEMO


def test_files_functions_and_folders_are_within_their_limits() -> None:
    found = set[str]()
    for path in sources(*PACKAGES):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        found |= {name} if text.count("\n") > FILE_LINES else set()
        found |= {f"{name}: {function}" for function in long_functions(text)}
    for folder in {path.parent for path in sources(*PACKAGES)}:
        if sum(path.stem != "__init__" for path in folder.glob("*.py")) > FOLDER_MODULES:
            found.add(str(folder.relative_to(ROOT)))
    assert sorted(found - TOO_LARGE) == [], "too large: cut it along its sense"
    assert sorted(TOO_LARGE - found) == [], "within the limits by now: take it off the list"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down_only(package: str) -> None:
    forbidden = set(PACKAGES) - ALLOWED[package] | (HEAVY if package == "coa" else set())
    assert sources(package)
    found = {str(path.relative_to(ROOT)): forbidden & set(imports(path.read_text())) for path in sources(package)}
    offered = {path: names for path, names in OFFERED.items() if path.startswith(f"{package}/")}
    assert {path: names for path, names in found.items() if names} == offered


def test_the_domain_loads_without_the_heavy_stack() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources("coa")]
    names = [name.removesuffix(".__init__") for name in modules]
    light = [name for name in names if name != "coa.learning.losses"]
    code = (
        "import importlib, sys\n"
        "def loaded(names, heavy):\n"
        "    for name in names: importlib.import_module(name)\n"
        "    return sorted(heavy & set(sys.modules))\n"
        f"print(loaded({light!r}, {HEAVY | {'torch', 'transformers'}!r}), loaded({names!r}, {HEAVY!r}))"
    )
    assert run("-c", code).strip() == "[] []"


def test_help_loads_nothing_that_takes_its_time() -> None:
    """So it answers within a second."""
    code = (
        "import sys\nfrom jobs.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    *lines, loaded = run("-c", code).splitlines()
    assert any("distill" in line for line in lines)
    assert {name for name in ast.literal_eval(loaded) if not name.startswith("_")} == {"coa", "jobs"}


def test_the_help_of_a_command_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom jobs.cli import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit: pass\n"
        f"print(sorted({HEAVY | {'torch', 'transformers'}!r} & set(sys.modules)))"
    )
    *lines, loaded = run("-c", code).splitlines()
    assert sum(line.startswith("usage: coa ") for line in lines) == 19
    assert loaded == "[]"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path) -> None:
    assert isinstance(load(Recipe, path, []), Recipe)


def test_there_are_recipes() -> None:
    assert "tiny" in [path.stem for path in RECIPES]


def test_any_exception_ends_at_named_boundaries_alone() -> None:
    """The session has to tell by its text what Ray raises as a plain Exception, and raises all else as it is. The tool
    executor logs what a tool raises, and answers that the tool is down; the boundary of sinks leaves out what a run can
    do without (docs/decisions/). Readers of formulas and of models' files, and the scorers of reasoning-gym, raise
    whatever their parsers meet: then a formula equals nothing, a file is a mistake of the user's, and an answer is
    wrong."""
    found = {str(path.relative_to(ROOT)): swallows(path.read_text()) for path in sources(*PACKAGES)}
    assert [path for path, lines in found.items() if lines] == [
        "coa/grading/mathematics/formulas.py",
        "coa/pretrained/reading.py",
        "coa/reporting/boundary.py",
        "coa/tasks/reasoning_gym/scoring.py",
        "actors/tools/executor.py",
        "cluster/session.py",
        "jobs/cli.py",
    ]


def test_what_ray_restarts_is_made_where_its_arguments_are_kept() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.keyword) and node.arg == "max_restarts" and ast.unparse(node.value) != "0")
        or (isinstance(node, ast.Constant) and node.value == "max_restarts")
    }
    assert found == {"actors/handles.py"}

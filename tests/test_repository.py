"""The repository's own promises: imports point down, the domain is light, recipes load, no failure is lost."""

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coa.config import load
from jobs.recipe import Recipe

ROOT = Path(__file__).parents[1]
PACKAGES = ("coa", "actors", "cluster", "jobs")
HEAVY = {"ray", "vllm", "deepspeed"}
ALLOWED = {"coa": {"coa"}, "actors": {"coa", "actors"}, "cluster": {"coa", "actors", "cluster"}, "jobs": set(PACKAGES)}
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


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down_only(package: str) -> None:
    forbidden = set(PACKAGES) - ALLOWED[package] | (HEAVY if package == "coa" else set())
    assert sources(package)
    found = {str(path.relative_to(ROOT)): forbidden & set(imports(path.read_text())) for path in sources(package)}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_domain_loads_without_the_heavy_stack() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources("coa")]
    names = [name.removesuffix(".__init__") for name in modules]
    light = [name for name in names if name != "coa.losses"]
    code = (
        "import importlib, sys\n"
        "def loaded(names, heavy):\n"
        "    for name in names: importlib.import_module(name)\n"
        "    return sorted(heavy & set(sys.modules))\n"
        f"print(loaded({light!r}, {HEAVY | {'torch', 'transformers'}!r}), loaded({names!r}, {HEAVY!r}))"
    )
    assert run("-c", code).strip() == "[] []"


def test_help_answers_within_a_second() -> None:
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        assert "distill" in run("-m", "jobs.cli", "--help")
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path) -> None:
    assert isinstance(load(Recipe, path, []), Recipe)


def test_there_are_recipes() -> None:
    assert "tiny" in [path.stem for path in RECIPES]


def test_only_the_command_line_turns_any_exception_into_text() -> None:
    found = {str(path.relative_to(ROOT)): swallows(path.read_text()) for path in sources(*PACKAGES)}
    assert [path for path, lines in found.items() if lines] == ["jobs/cli.py"]

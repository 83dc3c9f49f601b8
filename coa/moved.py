"""New names of modules that extensions import: an import of an old name fails with one line that says the new one."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "coa.benchmarks": "coa.tasks.published",
    "coa.credit": "coa.learning.advantages",
    "coa.episode": "coa.agent.episode",
    "coa.graders": "coa.grading.graders",
    "coa.grammar": "coa.agent.grammar",
    "coa.models": "coa.llm",
    "coa.profiles": "coa.agent.profiles",
    "coa.rewards": "coa.grading.rewards",
    "coa.teachers": "coa.teams",
    "coa.tools.http": "coa.http.client",
    "coa.tools.retrieval_server": "coa.tools.search.server",
    "coa.tools.sandbox_run": "coa.tools.sandbox.run",
    "coa.tools.search_server": "coa.tools.web.server",
    "coa.tools.standard": "coa.grading.toolset",
    "coa.tools.wiki": "coa.tools.search.wiki",
    "coa.world": "coa.demo",
}


class _Moved(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MOVED:
            raise ImportError(f"{fullname} is {MOVED[fullname]} now", name=fullname)
        return None


def install() -> None:
    """Makes Python's import ask this table first; further calls change nothing."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())

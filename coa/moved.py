"""New names of modules that extensions import: an import of an old name fails with one line that says the new one."""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "coa.benchmarks": "coa.tasks.published",
    "coa.benchmarks.results": "coa.reporting.benchmarks",
    "coa.chunks": "coa.storage.chunks",
    "coa.codec": "coa.agent.codec",
    "coa.constraint": "coa.agent.constraint",
    "coa.credit": "coa.learning.advantages",
    "coa.data": "coa.distill.dataset",
    "coa.data.brought": "coa.distill.dataset.external",
    "coa.data.data_card": "coa.distill.dataset.card",
    "coa.data.json_array": "coa.storage.json_array",
    "coa.data.layout": "coa.distill.sources.released_layout",
    "coa.data.markdown": "coa.reporting.markdown",
    "coa.data.model_card": "coa.reporting.model_card",
    "coa.data.released": "coa.distill.sources.released",
    "coa.episode": "coa.agent.episode",
    "coa.files": "coa.storage.files",
    "coa.forgive": "coa.agent.lenient",
    "coa.formula": "coa.grading.formula",
    "coa.gather": "coa.llm.batching",
    "coa.graders": "coa.grading.graders",
    "coa.graders.cases": "coa.grading.cases",
    "coa.graders.compare": "coa.grading.compare",
    "coa.graders.hidden": "coa.tools.hidden",
    "coa.graders.judge": "coa.grading.judge",
    "coa.graders.match": "coa.grading.match",
    "coa.graders.maths": "coa.grading.maths",
    "coa.graders.programs": "coa.grading.programs",
    "coa.grading.hidden": "coa.tools.hidden",
    "coa.grammar": "coa.agent.grammar",
    "coa.imitation": "coa.learning.samples",
    "coa.imports": "coa.distill.sources",
    "coa.latex": "coa.grading.latex",
    "coa.ledger": "coa.storage.ledger",
    "coa.losses": "coa.learning.losses",
    "coa.maths": "coa.grading.equivalence",
    "coa.metrics": "coa.reporting.metrics",
    "coa.models": "coa.llm",
    "coa.models.completion": "coa.llm.completions",
    "coa.models.endpoint": "coa.llm.client",
    "coa.models.leash": "coa.llm.supervisor",
    "coa.normalise": "coa.grading.normalise",
    "coa.on_policy": "coa.learning.algorithms.on_policy",
    "coa.packing": "coa.learning.packing",
    "coa.plots": "coa.reporting.plots",
    "coa.profiles": "coa.agent.profiles",
    "coa.readable": "coa.reporting.readable",
    "coa.recorder": "coa.distill.sources.recorder",
    "coa.report": "coa.reporting.report",
    "coa.report_page": "coa.reporting.page",
    "coa.rescue": "coa.distill.fallback",
    "coa.rewards": "coa.grading.rewards",
    "coa.rollout": "coa.agent.records",
    "coa.schedule": "coa.learning.schedule",
    "coa.selection": "coa.tasks.selection",
    "coa.spans": "coa.reporting.spans",
    "coa.staleness": "coa.learning.window",
    "coa.statistics": "coa.reporting.statistics",
    "coa.task_columns": "coa.storage.columns",
    "coa.tasks": "coa.tasks.loading",
    "coa.teachers": "coa.teams",
    "coa.teachers.experts": "coa.demo.experts",
    "coa.teachers.general": "coa.demo.general",
    "coa.teachers.strategy": "coa.demo.strategy",
    "coa.tokenizer": "coa.agent.tokenizer",
    "coa.tools.addresses": "coa.http.addresses",
    "coa.tools.corpus": "coa.tools.search.corpus",
    "coa.tools.crawl": "coa.tools.web.crawl",
    "coa.tools.extract": "coa.tools.web.extract",
    "coa.tools.http": "coa.http.client",
    "coa.tools.keys": "coa.http.keys",
    "coa.tools.network": "coa.http.network",
    "coa.tools.packing": "coa.http.unpacking",
    "coa.tools.retrieval_bm25": "coa.tools.search.bm25",
    "coa.tools.retrieval_dense": "coa.tools.search.dense",
    "coa.tools.retrieval_server": "coa.tools.search.server",
    "coa.tools.retrieval_store": "coa.tools.search.store",
    "coa.tools.sandbox": "coa.tools.sandbox.sandbox",
    "coa.tools.sandbox_command": "coa.tools.sandbox.command",
    "coa.tools.sandbox_filter": "coa.tools.sandbox.filter",
    "coa.tools.sandbox_process": "coa.tools.sandbox.process",
    "coa.tools.sandbox_run": "coa.tools.sandbox.run",
    "coa.tools.sandbox_zygote": "coa.tools.sandbox.zygote_host",
    "coa.tools.search_server": "coa.tools.web.server",
    "coa.tools.standard": "coa.grading.toolset",
    "coa.tools.summary": "coa.tools.web.summary",
    "coa.tools.text": "coa.http.text",
    "coa.tools.web": "coa.tools.web.search",
    "coa.tools.wiki": "coa.tools.search.wiki",
    "coa.tools.zygote": "coa.tools.sandbox.zygote",
    "coa.weights": "coa.learning.weights",
    "coa.world": "coa.demo",
    "jobs.recipe": "jobs.recipe.schema",
}
"""New names by the old ones. A name that is a package in both (`coa.tasks`) is here for what was in it itself."""


def _hint(name: str) -> str:
    """Where something is that the table has, or a package of the table had; empty for anything else."""
    old = name
    while old not in MOVED:
        old, dot, _ = old.rpartition(".")
        if not dot:
            return ""
    new = MOVED[old]
    return f"no {name}: see {new}" if new.startswith(f"{old}.") else f"no {name}: import {new}{name[len(old) :]}"


class _Moved(MetaPathFinder, Loader):
    """Asked last, so only for what is not there.

    An old package whose modules went to several places is there, but empty: only what is looked for in it says where
    it went.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MOVED and any(name.startswith(f"{fullname}.") for name in MOVED):
            return ModuleSpec(fullname, self, is_package=True)
        if hint := _hint(fullname):
            raise ImportError(hint, name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        def missing(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            raise ImportError(_hint(f"{module.__name__}.{name}"), name=module.__name__)

        module.__dict__["__getattr__"] = missing


def install() -> None:
    """Makes Python's import ask this table last; further calls change nothing."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())

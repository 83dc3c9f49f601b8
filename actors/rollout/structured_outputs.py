"""The plugin that every vLLM process loads: xgrammar compiles each EBNF grammar by itself, and vLLM's own processes end
with the process that started them (`actors.orphans`).

xgrammar 0.2.8 shares masks between rules of one shape, within a grammar and across grammars, and takes two rules for
one shape that differ in the id of a `Token(id)` alone: the mask of one tag's end was then that of another. Compiled
without that sharing, grammars are exact; a whole grammar is still compiled only once.
"""

from functools import lru_cache
from typing import Any

from actors.orphans import end_with_parent

COMPILED = 512
"""Grammars kept: a profile has one for each state of its table, and for the last turn one more."""


def register() -> None:
    """An entry point of the group `vllm.general_plugins`; vLLM may call it more than once in a process."""
    end_with_parent()
    make_exact()


def make_exact() -> None:
    """Replaces xgrammar's compiler by one that shares no masks."""
    import xgrammar

    if xgrammar.GrammarCompiler.__name__ != "ExactCompiler":
        xgrammar.GrammarCompiler = _exact(xgrammar.GrammarCompiler)


def _exact(base: Any) -> Any:
    class ExactCompiler(base):
        def __init__(self, tokenizer_info: Any, **options: Any) -> None:
            super().__init__(tokenizer_info, **options)
            alone = base(tokenizer_info, **{**options, "cache_enabled": False})
            self.compile_grammar = lru_cache(COMPILED)(alone.compile_grammar)

    return ExactCompiler

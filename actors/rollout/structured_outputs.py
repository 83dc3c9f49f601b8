"""The plugin that every vLLM process loads. It makes xgrammar compile each EBNF grammar without shared masks, and makes
vLLM's processes end with the process that started them (`actors.orphans`).

xgrammar 0.2.8 shares token masks between rules of the same shape, within a grammar and across grammars, and treats two
rules that differ only in the id of a `Token(id)` as the same shape: one tag's end then got another tag's mask. Without
that sharing, grammars are exact; each whole grammar is still compiled only once.
"""

from functools import lru_cache
from typing import Any

from actors.orphans import end_with_parent

COMPILED = 512
"""Number of compiled grammars kept: a profile has one for each state of its table, and one more for the last turn."""


def register() -> None:
    """Entry point in the group `vllm.general_plugins`; vLLM may call it more than once in a process."""
    end_with_parent()
    make_exact()


def make_exact() -> None:
    """Replaces xgrammar's compiler with one that shares no masks."""
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

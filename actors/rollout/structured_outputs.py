"""The plugin that every vLLM process loads: xgrammar compiles each EBNF grammar by itself, vLLM's own processes end
with the process that started them (`actors.orphans`), and the scheduler tells of preemptions without vLLM's statistics.

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
    tell_preemptions()


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


def tell_preemptions() -> None:
    """Has vLLM's scheduler tell of a request that it preempted for want of KV cache, which it does by itself only where
    its statistics are on: PREEMPTED comes at once, with the output of another request, and QUEUED with the next output
    of the request itself, which may be much later."""
    from vllm import config

    settings: Any = config.SchedulerConfig
    find = settings.get_scheduler_cls
    if find.__name__ != "telling":

        def telling(self: Any) -> Any:
            return _telling(find(self))

        settings.get_scheduler_cls = telling


def _telling(base: Any) -> Any:
    from vllm.v1.engine import EngineCoreEventType

    class TellingScheduler(base):
        def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
            super()._preempt_request(request, timestamp, drop_stale_output)
            # Output is dropped where the cache is emptied for new weights, which is no want of cache.
            if not self.log_stats and not drop_stale_output:
                other = self.running[0] if self.running else request
                other.record_event(EngineCoreEventType.PREEMPTED, timestamp)
                request.record_event(EngineCoreEventType.QUEUED, timestamp)

    return TellingScheduler

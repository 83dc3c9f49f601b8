"""The plugin that every vLLM process loads: xgrammar compiles each EBNF grammar by itself and writes characters by
their pieces, a grammar may go on after tokens of the prompt, vLLM's own processes end with the process that started
them, and the scheduler tells of preemptions without vLLM's statistics.

xgrammar 0.2.8 shares token masks between rules of the same shape, within a grammar and across grammars, and treats two
rules that differ only in the id of a `Token(id)` as the same shape: one tag's end then got another tag's mask. Without
that sharing, grammars are exact; each whole grammar is still compiled only once.

A vocabulary of SentencePiece has a token for each byte, `<0x3C>` for "<". To xgrammar this is always a "<", but beside
bytes that make no character it is decoded as none, and a tag with it is no tag to whoever reads the text.

vLLM's engine core does not watch its parent, and Ray ends an actor's children only if the actor's own process ends in
an orderly way. If an actor is killed, for example for its memory use, the core would stay behind, and the engine that
replaces it would find too little GPU memory.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing import connection, parent_process
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import transformers
    import xgrammar

BEGUN = "# begun: "
COMPILED = 512
"""Number of compiled grammars kept: a profile has one for each state of its table, and one more for the last turn."""

_watching = 0
"""Id of the process that watches its parent; a forked process inherits this number, but not the watching thread."""


def register() -> None:
    """Entry point in the group `vllm.general_plugins`; vLLM may call it more than once in a process."""
    end_with_parent()
    make_exact()
    write_by_pieces()
    let_go_on()
    tell_preemptions()


def make_exact() -> None:
    """Replaces xgrammar's compiler with one that shares no masks."""
    import xgrammar

    if xgrammar.GrammarCompiler.__name__ != "ExactCompiler":
        xgrammar.GrammarCompiler = _exact(xgrammar.GrammarCompiler)


def _exact(base: type) -> type:
    class ExactCompiler(base):
        def __init__(self, tokenizer_info: "xgrammar.TokenizerInfo", **options: object) -> None:
            super().__init__(tokenizer_info, **options)
            alone = base(tokenizer_info, **{**options, "cache_enabled": False})
            self.compile_grammar = lru_cache(COMPILED)(alone.compile_grammar)

    return ExactCompiler


def write_by_pieces() -> None:
    """Has xgrammar forbid the tokens of single bytes that are a character which the vocabulary has as a piece too."""
    import xgrammar

    read = xgrammar.TokenizerInfo.from_huggingface
    if read.__name__ == "by_pieces":
        return

    def by_pieces(tokenizer: "transformers.PreTrainedTokenizerBase", **given: Any) -> xgrammar.TokenizerInfo:
        info = read(tokenizer, **given)
        if info.vocab_type is not xgrammar.VocabType.BYTE_FALLBACK:
            return info
        vocabulary = tokenizer.get_vocab()
        written = [""] * info.vocab_size  # a token without a text is never allowed
        spare = spare_bytes(vocabulary)
        for token, number in vocabulary.items():
            if number < len(written) and number not in spare:
                written[number] = token
        return xgrammar.TokenizerInfo(
            written,
            vocab_type=info.vocab_type,
            vocab_size=info.vocab_size,
            stop_token_ids=info.stop_token_ids,
            add_prefix_space=info.add_prefix_space,
        )

    xgrammar.TokenizerInfo.from_huggingface = staticmethod(by_pieces)


def spare_bytes(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """The tokens of ASCII bytes that no text needs, since the vocabulary has a piece of the same text."""
    pieces = {f"<0x{code:02X}>": "\u2581" if code == ord(" ") else chr(code) for code in range(128)}
    return frozenset(vocabulary[byte] for byte, piece in pieces.items() if byte in vocabulary and piece in vocabulary)


def going_on(grammar: str, begun: Sequence[int]) -> str:
    """The grammar of what may follow these tokens, which the grammar allows: the same, after a comment."""
    return f"{BEGUN}{' '.join(map(str, begun))}\n{grammar}" if begun else grammar


def let_go_on() -> None:
    """Has vLLM's backend for xgrammar understand what `going_on` returns."""
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    compile_grammar = XgrammarBackend.compile_grammar
    if compile_grammar.__name__ == "after_begun":
        return

    def after_begun(
        self: XgrammarBackend,
        request_type: StructuredOutputOptions,
        grammar_spec: str,
        stop_token_ids: set[int] | None = None,
    ) -> StructuredOutputGrammar:
        if not grammar_spec.startswith(BEGUN):
            return compile_grammar(self, request_type, grammar_spec, stop_token_ids)
        begun, _, rest = grammar_spec.removeprefix(BEGUN).partition("\n")
        grammar = compile_grammar(self, request_type, rest, stop_token_ids)
        if not grammar.accept_tokens("", list(map(int, begun.split()))):
            raise ValueError("a turn begins with tokens that its grammar does not allow")
        return grammar

    XgrammarBackend.compile_grammar = after_begun


def tell_preemptions() -> None:
    """Has vLLM's scheduler tell of a request that it preempted for want of KV cache, which it does by itself only where
    its statistics are on: PREEMPTED comes at once, with the output of another request, and QUEUED with the next output
    of the request itself, which may be much later."""
    import vllm.config

    find = vllm.config.SchedulerConfig.get_scheduler_cls
    if find.__name__ != "telling":

        def telling(self: vllm.config.SchedulerConfig) -> type:
            return _telling(find(self))

        vllm.config.SchedulerConfig.get_scheduler_cls = telling


def _telling(base: type) -> type:
    from vllm.v1.engine import EngineCoreEventType
    from vllm.v1.request import Request

    class TellingScheduler(base):
        def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
            super()._preempt_request(request, timestamp, drop_stale_output)
            # Output is dropped where the cache is emptied for new weights, which is no want of cache.
            if not self.log_stats and not drop_stale_output:
                other = self.running[0] if self.running else request
                other.record_event(EngineCoreEventType.PREEMPTED, timestamp)
                request.record_event(EngineCoreEventType.QUEUED, timestamp)

    return TellingScheduler


def end_with_parent() -> None:
    """Makes this process kill itself as soon as its parent has ended, in any way. May be called repeatedly.

    Works in processes started by `multiprocessing`; does nothing in any other process, such as an actor.
    """
    global _watching
    parent = parent_process()
    if parent is None or _watching == os.getpid():
        return
    _watching = os.getpid()
    ends: list[int] = [parent.sentinel]
    # Forked siblings hold the sentinel's other end open, so the parent process itself is watched as well.
    if parent.pid is not None and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            ends.append(os.pidfd_open(parent.pid))
    Thread(target=_wait_and_end, args=(ends,), name="end-with-parent", daemon=True).start()


def _wait_and_end(ends: list[int]) -> None:
    connection.wait(ends)
    os.kill(os.getpid(), signal.SIGKILL)

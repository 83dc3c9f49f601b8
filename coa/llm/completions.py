"""Reads the replies of chat-completion endpoints; this module sends nothing.

reply of the endpoint            becomes
a text, as one or in parts       a Completion
no text, but calls or thoughts   a Completion without text, which says what it has instead
429, 5xx, no JSON, no choices    NoReply, to be retried
a quota that is spent            UserError: waiting does not help
400, 422                         Rejected: this request, or all requests; with the field that the server names
401, 403, any other 4xx          UserError: a key, an address or a model's name is wrong
a context that is too long       ContextTooLong
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coa.errors import ContextTooLong, UserError
from coa.http.client import TRY_AGAIN, NoReply, Reply
from coa.json_object import JsonView
from coa.unicode import whole
from coa.usage import Usage

EMPTY, MALFORMED = "empty", "malformed"
"""Reasons of a NoReply: a completion without text, and a reply that is no completion."""
CUT_OFF = "length"
"""Finish reason of a reply that reached its maximum of tokens."""
SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes and types of errors by which services report that a quota is spent."""
ABORTED = frozenset({"abort", "error"})
"""Finish reasons of a text that the server itself aborted."""
SHOWS = 300
"""Maximum characters of a server's message that an error shows."""
MOST_TOKENS = 1 << 32
"""Maximum tokens of one reply that are believed."""
CHARS_PER_TOKEN = 4
"""Characters of a prompt that count as one token in `estimate`."""
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|max(imum)?[ _]model[ _]len|(prompt|input|message)s? (is|are) too long"
    r"|token count.{0,40}exceed|maximum prompt length|reduce the length",
    re.I,
)
_IN_EVERY_REFUSAL = frozenset({"model", "messages"})
"""Fields whose names are in refusals of other fields too: "not supported with this model"."""
_NO_WORDS = frozenset({"temperature", "seed", "logprobs"})
"""Fields whose names are no words of another sentence."""
_NAME = re.compile(r"\w++")
_QUOTES = tuple("'\"`")


class Rejected(UserError):
    """A request is refused (400, 422), for its content or for a setting that all requests share."""

    def __init__(self, text: str, body: str = "") -> None:
        """body: of the reply; `refused_field` finds in it the field that the server names."""
        super().__init__(text)
        self.body = body


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    finish_reason: str
    """Finish reason in the server's words ("stop", "length"); empty if it gives none."""
    usage: Usage
    """Usage of all requests that were sent for this completion; tokens that the server did not report are 0."""
    instead: str = ""
    """Description of what a completion without text has in its place: "it calls the tool search"; empty if there is
    nothing."""
    tool_calls: tuple[JsonView, ...] = ()
    """Calls of tools, as the endpoint writes them."""


@dataclass(frozen=True, slots=True)
class Describer:
    """Formats errors: the endpoint that failed, and the server's message, without the key that it may contain."""

    url: str
    key: str = ""
    shows: int = SHOWS

    def __call__(self, what: str, words: str = "") -> str:
        return f"{self.url}: {self.line(what, words)}"

    def line(self, what: str, words: str = "") -> str:
        message = " ".join(whole(words).split())
        message = (message.replace(self.key, "***") if self.key else message)[: self.shows]
        return f"{what}: {message}" if message else what


def estimate(messages: Sequence[JsonView], max_tokens: int | None) -> int:
    """Estimated maximum tokens of a request; only those of the prompt if its reply has no limit."""
    return sum(len(str(message.get("content"))) for message in messages) // CHARS_PER_TOKEN + (max_tokens or 0)


def read(reply: Reply, describe: Describer) -> Completion:
    """The completion in a reply; raises NoReply if another attempt may help, else UserError or ContextTooLong."""
    words = error_message(reply.text)
    if not 200 <= reply.status < 300:
        raise _refusal(reply, words, describe)
    try:
        answer = json.loads(reply.text)
        if answer.get("error"):
            if _TOO_LONG.search(words):
                raise ContextTooLong(describe("context too long", words))
            raise NoReply("error in the reply", describe.line("an error in place of a completion", words), again=True)
        choice = answer["choices"][0]
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        text, finish, usage = text_of(message.get("content")), choice.get("finish_reason"), _usage(answer.get("usage"))
        called = message.get("tool_calls")
        calls = tuple(call for call in called if isinstance(call, dict)) if isinstance(called, list) else ()
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        begins = reply.text.strip() or "an empty reply"
        raise NoReply(MALFORMED, describe.line("not a chat completion", begins), again=True) from None
    finish = finish if isinstance(finish, str) else ""
    if finish in ABORTED:
        raise NoReply(f"finish reason {finish}", describe.line(f"a completion that ended by {finish}"), again=True)
    return Completion(text, finish, usage, "" if text.strip() else _instead(message, finish), calls)


def text_of(content: object) -> str:
    """The text of a message's content, which may be a list of parts; thoughts are left out.

    text_of([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "It is 7."}]) == "It is 7."
    """
    parts = content if isinstance(content, list) else [content]
    return whole("".join(map(_text_of_part, parts)))


def _text_of_part(part: object) -> str:
    match part:
        case str(text) | {"type": "text" | "output_text", "text": str(text)}:
            return text
    return ""


def _instead(message: JsonView, finish: str) -> str:
    """Describes what a message without text has in its place, as words that follow a colon."""
    if finish == CUT_OFF:
        return "its tokens (max_tokens) were used up before its first word"
    content = message.get("content")
    for part in (message, *(content if isinstance(content, list) else ())):
        match part:
            case {"tool_calls": [{"function": {"name": str(name)}}, *_]} | {"function_call": {"name": str(name)}}:
                return f"it calls the tool {name}"
            case {"refusal": str(words)} if words.strip():
                return f"it refuses: {words}"
            case {"reasoning_content": str(words)} | {"reasoning": str(words)} if words.strip():
                return f"it has thoughts alone: {words}"
            case {"type": "thinking" | "reasoning"}:
                return "it has thoughts alone"
    return "" if finish in ("", "stop") else f"its finish reason is {finish}"


def error_message(body: str) -> str:
    """The message in the body of an error, in any of the common places; otherwise the body itself.

    error_message('{"error": {"message": "no such model", "code": 404}}') == "no such model"
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return body
    found = answer[0] if isinstance(answer, list) and answer else answer
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return found if isinstance(found, str) else body


def _refusal(reply: Reply, words: str, describe: Describer) -> Exception:
    status, what = reply.status, f"status {reply.status}"
    if _codes(reply.text) & SPENT:
        return UserError(describe(f"the quota is spent: {what}", words))
    if status >= 500 or status in TRY_AGAIN:
        return NoReply(what, describe.line(what, words), again=True, after_s=reply.retry_after_s)
    if status == 413 or _TOO_LONG.search(words):
        return ContextTooLong(describe(what, words))
    if status in (401, 403):
        return UserError(describe(f"the key is {'refused' if describe.key else 'missing'}: {what}", words))
    if status in (400, 422):
        return Rejected(describe(what, words), reply.text)
    return UserError(describe(what, words))


def refused_field(refusal: str, sent: Collection[str]) -> str:
    """The field of a request that the body of its refusal names; "" if it names none of those that were sent.

    refused_field('{"error": {"message": "Unknown name \\"seed\\"", "param": null}}', ["model", "seed"]) == "seed"
    """
    fields = [name for name in sent if name not in _IN_EVERY_REFUSAL]
    words = error_message(refusal)
    placed = (name for name in _places(refusal) if name in fields)
    named = (match[0] for match in _NAME.finditer(words) if match[0] in fields and _is_name(match, words))
    return next(placed, next(named, ""))


def _is_name(word: re.Match[str], sentence: str) -> bool:
    """Whether a word of a sentence is a field's name, and not only spelled like one: "stop" is not, "'stop'" is."""
    before, after = sentence[max(0, word.start() - 2) : word.start()], sentence[word.end() : word.end() + 1]
    quoted = before[-1:] in _QUOTES and after in _QUOTES
    return quoted or before == ": " or "_" in word[0] or word[0] in _NO_WORDS


def _places(refusal: str) -> Iterator[str]:
    """The fields that a refusal names as `param` (OpenAI) or in `loc` (pydantic)."""
    try:
        nodes = [json.loads(refusal)]
    except (ValueError, RecursionError):
        return
    while nodes:
        match nodes.pop():
            case {**node}:
                nodes += node.values()
                loc = node.get("loc")
                names = [node.get("param"), *(loc if isinstance(loc, list) else ())]
                yield from (name.removeprefix("body.") for name in names if isinstance(name, str))
            case [*others]:
                nodes += others


def _codes(body: str) -> set[str]:
    """The code and the type of an error's body, as far as it has them."""
    try:
        error = json.loads(body)["error"]
        return {str(error.get("code")), str(error.get("type"))}
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return set()


def _usage(usage: object) -> Usage:
    """The tokens that a reply reports; if it gives only a total, completion tokens are this minus the prompt's. What is
    missing or unreadable is 0."""
    counts = usage if isinstance(usage, Mapping) else {}
    prompt = _count(counts, "prompt_tokens", "input_tokens") or 0
    completion = _count(counts, "completion_tokens", "output_tokens")
    if completion is None:
        completion = max(0, (_count(counts, "total_tokens") or 0) - prompt)
    return Usage(prompt_tokens=prompt, completion_tokens=completion)


def _count(counts: JsonView, *names: str) -> int | None:
    """The first readable number of tokens under one of the names: 12, 12.0 or "12"."""
    for name in names:
        try:
            count = int(float(counts.get(name)))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        if 0 <= count <= MOST_TOKENS:
            return count
    return None

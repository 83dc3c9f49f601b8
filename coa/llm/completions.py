"""Reads the replies of chat-completion endpoints; nothing is sent here.

reply of the endpoint            becomes
a text                           a Completion
429, 5xx, no JSON, no choices    NoReply, to be tried again
a quota that is spent            UserError: waiting does not help
400, 422                         Rejected: this request, or every one
401, 403, any other 4xx          UserError: a key, an address or a model's name is wrong
a context that is too long       ContextTooLong
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coa.errors import ContextTooLong, UserError
from coa.http.client import TRY_AGAIN, NoReply, Reply
from coa.http.text import well_formed
from coa.usage import Usage

EMPTY, MALFORMED = "empty", "malformed"
"""Reasons of a NoReply: a completion without text, and what is no completion."""
SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes and types of errors by which services say that a quota is spent."""
ABORTED = frozenset({"abort", "error"})
"""Finish reasons of a text that the server itself broke off."""
SHOWS = 300
"""Characters of a server's message that an error shows."""
CHARS_PER_TOKEN = 4
"""Characters of a prompt that count as one token in `estimate`."""
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|max(imum)?[ _]model[ _]len|(prompt|input|message)s? (is|are) too long"
    r"|token count.{0,40}exceed|maximum prompt length|reduce the length",
    re.I,
)


class Rejected(UserError):
    """A request is refused (400, 422), for its content or for a setting that all requests share."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    finish_reason: str
    """Finish reason in the server's words ("stop", "length"); empty if it gives none."""
    usage: Usage
    """Usage of all requests that were sent for this completion; tokens that the server did not report are 0."""


@dataclass(frozen=True, slots=True)
class Describer:
    """Words errors: who failed, and the server's message, without the key that a server may repeat."""

    url: str
    key: str = ""
    shows: int = SHOWS

    def __call__(self, what: str, words: str = "") -> str:
        return f"{self.url}: {self.line(what, words)}"

    def line(self, what: str, words: str = "") -> str:
        message = " ".join(well_formed(words).split())
        message = (message.replace(self.key, "***") if self.key else message)[: self.shows]
        return f"{what}: {message}" if message else what


def estimate(messages: Sequence[Mapping[str, Any]], max_tokens: int | None) -> int:
    """Tokens that a request may take, roughly; only those of the prompt where its reply has no limit."""
    return sum(len(str(message["content"])) for message in messages) // CHARS_PER_TOKEN + (max_tokens or 0)


def read(reply: Reply, describe: Describer) -> Completion:
    """The completion in a reply; raises NoReply where another attempt may help, else UserError or ContextTooLong."""
    words = said(reply.text)
    if not 200 <= reply.status < 300:
        raise _refusal(reply, words, describe)
    try:
        answer = json.loads(reply.text)
        if answer.get("error"):
            if _TOO_LONG.search(words):
                raise ContextTooLong(describe("context too long", words))
            raise NoReply("error in the reply", describe.line("an error in place of a completion", words), again=True)
        choice = answer["choices"][0]
        content, finish = choice["message"].get("content"), choice.get("finish_reason")
        usage = _usage(answer.get("usage") or {})
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        raise NoReply(MALFORMED, describe.line("not a chat completion"), again=True) from None
    if finish in ABORTED:
        raise NoReply(f"finish reason {finish}", describe.line(f"a completion that ended by {finish}"), again=True)
    text = well_formed(content) if isinstance(content, str) else ""
    return Completion(text, finish if isinstance(finish, str) else "", usage)


def said(body: str) -> str:
    """The message in the body of an error, wherever servers put it; else the body itself.

    said('{"error": {"message": "no such model", "code": 404}}') == "no such model"
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return body
    found = answer
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
        return Rejected(describe(what, words))
    return UserError(describe(what, words))


def _codes(body: str) -> set[str]:
    """The code and the type of an error's body, as far as it has them."""
    try:
        error = json.loads(body)["error"]
        return {str(error.get("code")), str(error.get("type"))}
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return set()


def _usage(usage: Mapping[str, Any]) -> Usage:
    """The tokens that a reply reports; where it gives a total instead, the completion is what the prompt leaves of
    it."""
    prompt = int(usage.get("prompt_tokens") or 0)
    completion = usage.get("completion_tokens")
    if completion is None:
        completion = max(0, int(usage.get("total_tokens") or 0) - prompt)
    return Usage(prompt_tokens=prompt, completion_tokens=int(completion))

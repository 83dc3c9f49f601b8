"""The client of language models behind OpenAI-compatible endpoints: for teachers, judges and summaries.

    complete ── attempt ── a permit within the limits ── POST {url}/chat/completions ── Completion
                   ^                                                 |
                   └── pause (back-off, jitter, Retry-After) ── what may pass: no answer, 429, 5xx, half a body,
                                                                no JSON, no choices, no text

An attempt holds a permit; the pauses between attempts do not. Where a server names a time (Retry-After), no request of
this endpoint starts before it; where that is too far away, nothing is sent again and a UserError says so.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import aiohttp

from coa.errors import (
    EmptyCompletion,
    EndpointDown,
    InfrastructureError,
    ReplyCutOff,
    RequestRefused,
    ToolDown,
    UserError,
)
from coa.http.addresses import is_web_address, shown
from coa.http.client import Http, HttpConfig, NoReply
from coa.http.keys import bearer, read_key
from coa.llm.completions import EMPTY, MALFORMED, SHOWS, Completion, Describer, Rejected, estimate, read
from coa.llm.limits import Limiter, Limits
from coa.seeds import derive
from coa.usage import Usage

REPLY_BYTES = 1 << 24
"""Bytes of a reply that are read."""
SETTINGS_FAULT = 3
"""Different requests of one kind that may be refused before any of that kind is answered; that many mean that a setting
is wrong."""
Kind = frozenset[str]
CUT_OFF = "length"
"""Finish reason of a reply that has as many tokens as it may."""


@dataclass(frozen=True)
class EndpointConfig:
    """An endpoint of language models, and the requests to it."""

    url: str | None = None
    """Address of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1."""
    name: str = ""
    """Name of the model at this endpoint."""
    key_env: str | None = None
    """Environment variable that holds the API's key; None sends no key."""
    timeout_s: float = 120.0
    """Maximum seconds for one attempt at a request."""
    attempts: int = 6
    """Maximum attempts at a request, including the first."""
    timeouts: int = 2
    """Maximum attempts at a request that may time out."""
    pause_s: float = 0.5
    """Maximum seconds of the pause before the second attempt; it doubles for each further attempt. Each pause is drawn
    at random between 0 and its maximum."""
    max_pause_s: float = 60.0
    """Upper limit of these pauses. A pause that the server asks for (Retry-After) is made in full."""
    max_retry_after_s: float = 600.0
    """Maximum seconds of pause that a server may ask for. A longer pause ends the stage; the same command resumes it
    later."""
    concurrent: int = 64
    """Maximum concurrent requests; 0 sets no limit."""
    requests_per_minute: int = 0
    """Maximum requests within 60 seconds; 0 sets no limit."""
    tokens_per_minute: int = 0
    """Maximum tokens of prompts and replies within 60 seconds; 0 sets no limit."""
    temperature: float | None = None
    """Sampling temperature of replies; None leaves it to the endpoint."""
    top_p: float | None = None
    """Nucleus sampling of replies; None leaves it to the endpoint."""
    max_tokens: int | None = 4096
    """Maximum tokens of a reply; None leaves the limit to the endpoint. A reply that is cut off before its first word
    fails its run."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request, in the endpoint's own names: `{reasoning_effort: low}`, `{structured_outputs:
    {choice: ["yes", "no"]}}`."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "attempts", "timeouts"):
            if getattr(self, name) <= 0:
                raise ValueError(f"an endpoint's {name} is {getattr(self, name)!r}, expected more than 0")
        pauses = ("pause_s", "max_pause_s", "max_retry_after_s")
        for name in (*pauses, "concurrent", "requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) < 0:
                raise ValueError(f"an endpoint's {name} is {getattr(self, name)!r}, expected 0 or more")

    @property
    def http(self) -> HttpConfig:
        return HttpConfig(
            timeout_s=self.timeout_s,
            attempts=self.attempts,
            timeouts=self.timeouts,
            pause_s=self.pause_s,
            max_pause_s=self.max_pause_s,
            max_bytes=REPLY_BYTES,
        )

    @property
    def limits(self) -> Limits:
        return Limits(self.concurrent, self.requests_per_minute, self.tokens_per_minute)


class Endpoint:
    """`(await Endpoint(config).complete([{"role": "user", "content": "Who ?"}], seed=1)).text`

    Limits hold for all that one Endpoint is asked; its connections belong to the event loop of the first request.
    """

    def __init__(
        self, config: EndpointConfig, *, insists: bool = True, shows: int = SHOWS, answered: bool = False
    ) -> None:
        """Raises UserError where the key is missing.

        insists: whether to ask again for a reply that is no completion or has no text, and to wait in full for a time
        that the server names; without it, `max_pause_s` limits that time too, and a refused request counts as the fault
        of a setting. shows: characters of a server's message in errors, which may echo what was sent. answered:
        whether the endpoint is known to answer, under this configuration, requests without further fields.
        """
        self.http = Http(config.http, partial(aiohttp.TCPConnector, limit=0))
        """Its `counts` also hold `prompt tokens` and `completion tokens`, of all replies."""
        self.limiter = Limiter(config.limits)
        self.failed_in_a_row, self.last_failure = 0, ""
        """Attempts without a reply since the last reply, and why the last of them had none."""
        self._config, self._insists = config, insists
        plain = request_body(config, (), seed=None, stop=(), options={})
        self._answered = {kind_of(plain)} if answered else set()
        """Kinds of requests that were answered before: a refusal is then the request's fault, and no setting's."""
        self._refused: defaultdict[Kind, set[str]] = defaultdict(set)
        """Requests of other kinds that were refused."""
        self._url = ""
        self._headers = bearer(config.key_env)
        key = read_key(config.key_env) if config.key_env is not None else ""
        self._describe = Describer("", key, shows)
        self.move(config.url or "")

    def move(self, url: str) -> None:
        """Sends all further attempts to another URL, those of requests under way too."""
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._describe = replace(self._describe, url=shown(self._url))

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        seed: int | None,
        stop: Sequence[str] = (),
        on_send: Callable[[Usage], None] = lambda _: None,
        **options: Any,
    ) -> Completion:
        """options: further fields of the request; one that the configuration sets too is overridden. on_send: is shown,
        before each attempt, what this request has taken with it.

        Raises EndpointDown, EmptyCompletion or RequestRefused, each with its usage, and UserError for what a user must
        put right.
        """
        body = request_body(self._config, messages, seed=seed, stop=stop, options=options)
        tokens = estimate(messages, body.get("max_tokens")) if self._config.tokens_per_minute else 0
        took, empty = Usage(), 0

        async def attempt() -> Completion:
            nonlocal took, empty
            took += Usage(requests=1)
            completion = await self._attempt(reseeded(body, empty), tokens, lambda: on_send(took))
            took += completion.usage
            if not self._insists or completion.text.strip():
                return completion
            if completion.finish_reason == CUT_OFF:
                limit = f"raise max_tokens of this model, which is {body.get('max_tokens', 'not set')}"
                raise ReplyCutOff(self._describe(f"its tokens were used up before the reply's first word: {limit}"))
            empty += 1
            raise NoReply(EMPTY, "a completion without text", again=True)

        try:
            return replace(await self.http.retry(attempt), usage=took)
        except NoReply as error:
            text = self._describe(str(error))
            failed = EmptyCompletion(text) if error.reason == EMPTY else EndpointDown(text, error.reason)
        except Rejected as error:
            if not self._insists or self._refuses_all(body):
                raise
            failed = RequestRefused(str(error))
        except ToolDown as error:  # no connection can be made here
            failed = EndpointDown(self._describe(str(error)), "here")
        except InfrastructureError as error:
            failed = error
        failed.usage = took
        raise failed from None

    def _refuses_all(self, body: Mapping[str, Any]) -> bool:
        """Whether this refused request and those before it mean that a setting is wrong."""
        kind = kind_of(body)
        if kind in self._answered:
            return False
        self._refused[kind].add(json.dumps(body, sort_keys=True))
        return len(self._refused[kind]) >= SETTINGS_FAULT

    async def close(self) -> None:
        await self.http.close()

    async def _attempt(self, body: Mapping[str, Any], tokens: int, on_send: Callable[[], None]) -> Completion:
        permit = await self.limiter.start(tokens)
        used = None
        try:
            on_send()
            reply = await self.http.send("POST", self._url, body, self._headers)
            completion = read(reply, self._describe)
            self._answered.add(kind_of(body))
            used = completion.usage.tokens or None
            self.failed_in_a_row, self.last_failure = 0, ""
        except NoReply as error:
            self.failed_in_a_row, self.last_failure = self.failed_in_a_row + 1, str(error)
            if self._insists and error.after_s > self._config.max_retry_after_s:
                wait = f"go on in {error.after_s:g} s (max_retry_after_s is {self._config.max_retry_after_s:g})"
                raise UserError(self._describe(f"{wait}: {error}")) from None
            if error.after_s:
                self.limiter.pause(error.after_s if self._insists else min(error.after_s, self._config.max_pause_s))
            if error.reason == MALFORMED and not self._insists:
                raise NoReply(error.reason, str(error)) from None
            raise
        finally:
            self.limiter.end(permit, used)
        self.http.counts["prompt tokens"] += completion.usage.prompt_tokens
        self.http.counts["completion tokens"] += completion.usage.completion_tokens
        await asyncio.sleep(0)  # the next caller sends its request before this reply is worked on
        return completion


def request_body(
    config: EndpointConfig,
    messages: Sequence[Mapping[str, Any]],
    *,
    seed: int | None,
    stop: Sequence[str],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a request; what is None is left out, and so left to the endpoint."""
    body = {"model": config.name, "messages": list(messages), "seed": seed, "stop": list(stop) or None}
    body |= {"temperature": config.temperature, "top_p": config.top_p, "max_tokens": config.max_tokens}
    return {key: value for key, value in {**body, **config.extra, **options}.items() if value is not None}


def kind_of(body: Mapping[str, Any]) -> Kind:
    """The kind of a request, which an endpoint knows or refuses: its fields, whatever they hold."""
    return frozenset(body) - {"messages", "seed"}


def reseeded(body: Mapping[str, Any], empty: int) -> Mapping[str, Any]:
    """The request to send after `empty` completions without text: its seed, if it has one, is another, since equal
    requests may get equal replies."""
    return {**body, "seed": derive(body["seed"], "empty", empty)} if empty and "seed" in body else body


def check_endpoint(config: EndpointConfig, where: str) -> None:
    """Raises UserError where the configuration at this key of a recipe can ask nobody."""
    if config.url is None or not config.name:
        raise UserError(f"a language model is needed: set {where}.url and {where}.name")
    if not is_web_address(config.url):
        raise UserError(f"{where}.url is {shown(config.url)}, expected an address such as http://127.0.0.1:8000/v1")
    bearer(config.key_env)

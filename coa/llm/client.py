"""The client of language models behind OpenAI-compatible endpoints: for teachers, judges and summaries.

    complete ── attempt ── a permit within the limits ── POST {url}/chat/completions ── Completion
                   ^                                                 |
                   └── pause (back-off, jitter, Retry-After) ── transient failures: no answer, 429, 5xx, half a body,
                                                                no JSON, no choices, no text

A field that a model takes under another name (`max_tokens`) is renamed once the endpoint has refused it; which other
field it refuses, and the setting that leaves it out, is in the error.

An attempt holds a permit; the pauses between attempts do not. If a server names a time (Retry-After), no request of
this endpoint starts before it; if that time is too far away, the request is not retried but fails with a UserError.
"""

import asyncio
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import aiohttp

from coa.bounds import Above0, AtLeast1
from coa.errors import (
    EmptyCompletion,
    EndpointDown,
    InfrastructureError,
    ReplyCutOff,
    RequestRefused,
    ToolDown,
    UserError,
)
from coa.http.addresses import is_web_address, redact
from coa.http.client import Http, HttpConfig, NoReply
from coa.http.keys import bearer, read_key
from coa.json_object import Json, JsonView
from coa.llm.completions import (
    CUT_OFF,
    EMPTY,
    MALFORMED,
    SHOWS,
    Completion,
    Describer,
    Rejected,
    estimate,
    read,
    refused_field,
)
from coa.llm.limits import Limiter, Limits
from coa.seeds import derive
from coa.usage import Usage

_log = logging.getLogger(__name__)

REPLY_BYTES = 1 << 24
"""Maximum bytes of a reply that are read."""
SETTINGS_FAULT = 3
"""Number of different requests of one kind after whose refusal, if no request of that kind was answered, a setting
counts as wrong."""
EMPTIES = 3
"""Maximum completions without text that a request may get."""
RENAMED: Mapping[str, str] = MappingProxyType({"max_tokens": "max_completion_tokens", "seed": "random_seed"})
"""Other names of fields, which some models take instead; a setting keeps the name on the left."""
_NOT_THE_NAME = re.compile(
    r"unsupported|not supported|not permitted|unknown|unrecogni[sz]ed|unexpected|invalid field", re.I
)
"""Words of a refusal that objects to a field, and not to its value."""
Kind = frozenset[str]


@dataclass(frozen=True)
class EndpointConfig:
    """An endpoint of language models, and the requests to it."""

    url: str | None = None
    """Address of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1."""
    name: str = ""
    """Name of the model at this endpoint."""
    key_env: str | None = None
    """Environment variable that holds the API's key; None sends no key."""
    timeout_s: Above0 = 120.0
    """Maximum seconds for one attempt at a request."""
    attempts: AtLeast1 = 6
    """Maximum attempts at a request, including the first."""
    timeouts: AtLeast1 = 2
    """Maximum attempts at a request that may time out."""
    pause_s: float = 0.5
    """Maximum seconds of the pause before the second attempt; it doubles for each further attempt. Each pause is drawn
    at random between 0 and its maximum."""
    max_pause_s: float = 60.0
    """Upper limit, in seconds, of the pauses between attempts; a pause that the server asks for (Retry-After) is made
    in full."""
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
    max_tokens: AtLeast1 | None = 4096
    """Maximum tokens of a reply; None leaves the limit to the endpoint. If a reply is cut off before its first word,
    its run fails."""
    extra: Json = field(default_factory=dict)
    """Further fields of each request, in the endpoint's own names: `{reasoning_effort: low}`. They replace fields of
    the same name; null leaves a field out: `{max_tokens: null, max_completion_tokens: 4096}`."""

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
    """A client: `(await Endpoint(config).complete([{"role": "user", "content": "Who ?"}], seed=1)).text`

    Limits apply to all requests of one Endpoint; its connections belong to the event loop of the first request.
    """

    def __init__(
        self,
        config: EndpointConfig,
        where: str = "",
        *,
        insists: bool = True,
        shows: int = SHOWS,
        answered: bool = False,
    ) -> None:
        """Raises UserError if the key is missing.

        where: the recipe's key of the configuration, such as "models.big.endpoint", for errors that name a setting.
        insists: whether to retry after a reply that is no completion or has no text, and to wait for the full time that
        a server names; if False, `max_pause_s` limits that time too, and a refused request counts as the fault of a
        setting. shows: maximum characters of a server's message in errors, since it may echo the request. answered:
        whether the endpoint is known to answer, under this configuration, requests without further fields.
        """
        self.http = Http(config.http, partial(aiohttp.TCPConnector, limit=0))
        """Its `counts` also hold `prompt tokens` and `completion tokens`, of all replies."""
        self.limiter = Limiter(config.limits)
        self.failed_in_a_row, self.last_failure = 0, ""
        """Number of attempts without a reply since the last reply, and the reason of the last of them."""
        self.notices: list[str] = []
        """Sentences about this endpoint that the user should read."""
        self._config, self._where, self._insists = config, where, insists
        self._names: dict[str, str] = {}
        """The names that the endpoint takes for fields, as its refusals showed."""
        plain = request_body(config, (), seed=None, stop=(), options={})
        self._answered = {kind_of(plain)} if answered else set()
        """Kinds of requests that were answered before; a refusal is then the fault of the request, not of a setting."""
        self._refused: defaultdict[Kind, set[str]] = defaultdict(set)
        """Refused requests of kinds that were not answered yet."""
        self._url = ""
        self._headers = bearer(config.key_env)
        key = read_key(config.key_env) if config.key_env is not None else ""
        self._describe = Describer("", key, shows)
        self.move(config.url or "")

    def move(self, url: str) -> None:
        """Sends all further attempts to another URL, those of requests under way too."""
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._describe = replace(self._describe, url=redact(self._url))

    async def complete(
        self,
        messages: Sequence[JsonView],
        *,
        seed: int | None,
        stop: Sequence[str] = (),
        on_send: Callable[[Usage], None] = lambda _: None,
        **options: object,
    ) -> Completion:
        """The completion for the messages. options: further fields of the request, which override the configuration's
        except `extra`. on_send: called before each attempt with the usage of this request, including that attempt.

        Raises EndpointDown, EmptyCompletion or RequestRefused, each with its usage, and UserError for a problem that
        the user must solve.
        """
        body = request_body(self._config, messages, seed=seed, stop=stop, options=options)
        tokens = estimate(messages, body.get("max_tokens")) if self._config.tokens_per_minute else 0
        kind, took, empty = kind_of(body), Usage(), 0

        async def send() -> Completion:
            nonlocal took
            took += Usage(requests=1)
            sent = self._renamed(reseeded(body, empty))
            try:
                return await self._attempt(sent, kind, tokens, lambda: on_send(took))
            except Rejected as refused:
                if not self._learn_name(refused, sent):
                    raise
                return await send()

        async def attempt() -> Completion:
            nonlocal took, empty
            completion = await send()
            took += completion.usage
            if not self._insists or completion.text.strip() or ("tools" in body and completion.tool_calls):
                return completion
            if completion.finish_reason == CUT_OFF:
                limit = f"raise max_tokens of this model, which is {body.get('max_tokens', 'not set')}"
                raise ReplyCutOff(self._describe(f"its tokens were used up before the reply's first word: {limit}"))
            empty += 1
            without = self._describe.line("a completion without text", completion.instead)
            raise NoReply(EMPTY, without, again=empty < EMPTIES)

        try:
            return replace(await self.http.retry(attempt), usage=took)
        except NoReply as error:
            text = self._describe(str(error))
            failed = EmptyCompletion(text) if error.reason == EMPTY else EndpointDown(text, error.reason)
        except Rejected as error:
            text = f"{error}{self._advice(error, body)}"
            if not self._insists or self._refuses_all(kind, body):
                raise Rejected(text, error.body) from None
            failed = RequestRefused(text)
        except ToolDown as error:  # this machine cannot make connections
            failed = EndpointDown(self._describe(str(error)), "here")
        except InfrastructureError as error:
            failed = error
        failed.usage = took
        raise failed from None

    def _renamed(self, body: JsonView) -> JsonView:
        return {self._names.get(name, name): value for name, value in body.items()} if self._names else body

    def _learn_name(self, refused: Rejected, sent: JsonView) -> bool:
        """Whether the endpoint refused a field for its name, and has another name for it, which all further requests
        use."""
        old = refused_field(refused.body, sent)
        new = RENAMED.get(old, "")
        if not new or new in sent or not (new in refused.body or _NOT_THE_NAME.search(refused.body)):
            return False
        if old not in self._names:
            self._names[old] = new
            self._notice(f"it refuses {old} and is sent {new} in its place")
        return True

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)
            _log.warning("%s: %s", self._describe.url, text)

    def _advice(self, refused: Rejected, body: JsonView) -> str:
        """Which setting changes the field that a refusal names; empty if it names none."""
        named = refused_field(refused.body, self._renamed(body))
        field = next((old for old, new in self._names.items() if new == named), named)
        setting = ".".join(filter(None, (self._where, "extra", field)))
        return f"; {setting}=null leaves this field out, another value replaces it" if field else ""

    def _refuses_all(self, kind: Kind, body: JsonView) -> bool:
        """Whether this refused request and those before it mean that a setting is wrong."""
        if kind in self._answered:
            return False
        self._refused[kind].add(json.dumps(body, sort_keys=True))
        return len(self._refused[kind]) >= SETTINGS_FAULT

    async def close(self) -> None:
        await self.http.close()

    async def _attempt(self, body: JsonView, kind: Kind, tokens: int, on_send: Callable[[], None]) -> Completion:
        permit = await self.limiter.start(tokens)
        used = None
        try:
            on_send()
            reply = await self.http.send("POST", self._url, body, self._headers)
            completion = read(reply, self._describe)
            self._answered.add(kind)
            used = completion.usage.tokens or None
            if used is None and self._insists:
                self._notice("its replies say nothing of tokens, which count as 0: a budget of tokens does not hold")
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
        await asyncio.sleep(0)  # lets the next caller send its request before this reply is processed
        return completion


def request_body(
    config: EndpointConfig,
    messages: Sequence[JsonView],
    *,
    seed: int | None,
    stop: Sequence[str],
    options: JsonView,
) -> Json:
    """The body of a request; values of None are left out, and so left to the endpoint."""
    body = {"model": config.name, "messages": list(messages), "seed": seed, "stop": list(stop) or None}
    body |= {"temperature": config.temperature, "top_p": config.top_p, "max_tokens": config.max_tokens}
    return {key: value for key, value in {**body, **options, **config.extra}.items() if value is not None}


def kind_of(body: JsonView) -> Kind:
    """The kind of a request, which an endpoint supports or refuses: the names of its fields."""
    return frozenset(body) - {"messages", "seed"}


def reseeded(body: JsonView, empty: int) -> JsonView:
    """The request to send after `empty` completions without text: its seed, if it has one, is changed, since equal
    requests may get equal replies."""
    return {**body, "seed": derive(body["seed"], "empty", empty)} if empty and "seed" in body else body


def check_endpoint(config: EndpointConfig, where: str) -> None:
    """Raises UserError if the configuration at the recipe's key `where` has no endpoint that can be asked."""
    if config.url is None or not config.name:
        raise UserError(f"a language model is needed: set {where}.url and {where}.name")
    if not is_web_address(config.url):
        raise UserError(f"{where}.url is {redact(config.url)}, expected an address such as http://127.0.0.1:8000/v1")
    bearer(config.key_env)

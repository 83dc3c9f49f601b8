"""Programs that ask a scripted policy through the gateway."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from actors.gateway.model import recorded_model
from actors.gateway.server import NAME, Gateway
from actors.gateway.session import Request, Session, TakeTurn
from actors.messages import EpisodeId, EpisodeOrder, TurnOrder
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.serving.plain import PlainModel
from coa.agent.codec import Codec, read_tokenizer
from coa.agent.episode import AgentConfig, Limits
from coa.agent.journal import Said
from coa.agent.programs.config import ProgramConfig
from coa.types import Task, Tokens
from tests.support.tiny import make_model

TEMPLATE = (
    "{% if tools %}[tools]{{ tools | tojson }}{{ eos_token }}{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ (m['content'] or '').split('</hm>')[-1] }}"
    "{% for call in m['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""It drops thoughts from replies that come back, and writes calls its own way."""
MAX_TOKENS = 2000
SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
}
CALL = '<hm>so</hm><tool_call>{"arguments":{"query":"x"},   "name":"search"}</tool_call>'
"""A reply that calls SEARCH, in a form that no template writes."""


def chat_model(folder: Path) -> Path:
    """An untrained model with a chat template."""
    make_model(folder, max_positions=MAX_TOKENS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def served(folder: Path) -> PlainModel:
    return await recorded_model(
        folder, EngineConfig(), Codec.load(folder), name=NAME, tool_parser="hermes", max_tokens=MAX_TOKENS
    )


class Scripted:
    """Says its texts one after the other, each character a token of its own, as no tokenizer would write them."""

    def __init__(self, folder: Path, *texts: str) -> None:
        self._tokenizer, self._texts = read_tokenizer(folder), list(texts)
        self.orders: list[TurnOrder] = []
        self.said: list[Said] = []
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()
        self.waits: asyncio.Event | None = None
        """Until it is set, nothing is said."""

    async def __call__(self, order: TurnOrder, request: Request) -> Said:
        number = len(self.orders)
        self.orders.append(order)
        self.asked.set()
        try:
            if self.waits is not None:
                await self.waits.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        said = self.turn(self._texts[number % len(self._texts)], number)
        self.said.append(said)
        return said

    def spelled(self, text: str) -> list[int]:
        return [token for one in text for token in self._tokenizer.encode(one, add_special_tokens=False)]

    def read(self, tokens: Tokens) -> str:
        return str(self._tokenizer.decode(tokens.tolist()))

    def turn(self, text: str, number: int) -> Said:
        ids = np.asarray([*self.spelled(text), self._tokenizer.eos_token_id], np.int32)
        logprobs = np.linspace(-1, -number - 1, len(ids), dtype=np.float32)
        return Said(token_ids=ids, logprobs=logprobs, versions=((number, len(ids)),), ended=True)


STAYS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"


def starts_another(file: Path) -> str:
    """A program that starts a process that would stay, and waits until it runs."""
    return (
        f"import subprocess, sys, time, os; subprocess.Popen([sys.executable, '-c', {STAYS!r}, {str(file)!r}], "
        f"stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"while not os.path.exists({str(file)!r}) or not open({str(file)!r}).read(): time.sleep(0.01)\n"
    )


def is_gone(file: Path) -> bool:
    """Whether the process whose number is in the file has ended."""
    status = Path(f"/proc/{file.read_text()}/stat")
    return not status.exists() or status.read_text().split()[2] == "Z"


def order_of(program: ProgramConfig | None = None, *, group: int = 0, **limits: Any) -> EpisodeOrder:
    task = Task(id="t", question="What is 2 + 3 ?", answers=("5",), profile="code", family="sum")
    chosen = Limits(**{"max_tokens": MAX_TOKENS, "max_turns": 8, "max_turn_tokens": 400, **limits})
    agent = AgentConfig(limits=chosen, program=program or ProgramConfig())
    sampling = SamplingConfig(temperature=0.9, top_p=0.8)
    return EpisodeOrder(id=EpisodeId("t", group, 0), task=task, sampling=sampling, agent=agent, limit_s=60.0)


@asynccontextmanager
async def opened(model: PlainModel, policy: TakeTurn, order: EpisodeOrder) -> AsyncIterator[tuple[Session, str, str]]:
    """A session, the gateway's address, and the session's key."""
    gateway = Gateway(model)
    session = Session(order, policy)
    async with gateway.serving() as address:
        with gateway.session(session) as key:
            yield session, address, key


def prompts_of(session: Session) -> Sequence[list[int]]:
    return [call.prompt.tolist() for call in session.calls]

"""The cost of an enforced grammar: tokens per second of a rollout engine with and without it, 64 concurrent turns.

    python -m benchmarks.constrained

An untrained policy samples turns at temperature 1.5. With the grammar, each turn has the form of its profile; without
it, each is noise that is cut off at the length of its counterpart, so that both sides do the same work.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from actors.learner.config import ModelConfig
from actors.learner.model.load import new_model
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, SamplingConfig
from benchmarks.harness import report
from coa.agent.codec import Codec
from coa.agent.episode import Ask
from coa.agent.profiles import PROFILES
from coa.agent.tokenizer import save_tokenizer, train_tokenizer
from coa.demo import World, WorldConfig

AT_ONCE = 64
TURNS = 512
"""Of a round and side."""
ROUNDS = 5
TURN_TOKENS = 96
TAG_TOKENS = 24
HOT = SamplingConfig(temperature=1.5)


def make_model(folder: Path) -> None:
    """A policy of the tiny recipe's size, untrained, with a tokenizer of the tiny world's words."""
    world = World(WorldConfig())
    tokenizer = train_tokenizer(list(world.wiki_pages.values())[:200], world.lexicon(), vocabulary=2000)
    save_tokenizer(tokenizer, folder)
    sizes = ModelConfig(
        hidden_size=128, layers=4, heads=4, key_value_heads=2, head_dim=32, intermediate_size=256, max_positions=512
    )
    new_model(sizes, tokenizer, seed=0).save_pretrained(folder)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.codec = Codec.load(folder)
        config = EngineConfig(max_concurrent=AT_ONCE)
        tag_tokens = self.codec.tag_tokens()
        self.policy = PolicyAdapter(str(folder), config, max_tokens=256, tag_tokens=tag_tokens)
        self.grammars = [
            self.codec.constraint(profile, state, last=False, max_tag_tokens=TAG_TOKENS)
            for profile in PROFILES.values()
            for state in profile.transitions
        ]

    async def constrained(self, turns: range) -> list[int]:
        """Tokens of each turn."""
        return await self._at_once([(turn, TURN_TOKENS, self.grammars[turn % len(self.grammars)]) for turn in turns])

    async def free(self, turns: range, lengths: list[int]) -> list[int]:
        return await self._at_once([(turn, n, None) for turn, n in zip(turns, lengths, strict=True)])

    async def _at_once(self, work: list[tuple[int, int, str | None]]) -> list[int]:
        stops = self.codec.stops(PROFILES["multi"])
        lengths = [0] * len(work)
        rest = enumerate(work)

        async def worker() -> None:
            for index, (turn, most, grammar) in rest:
                prompt = self.codec.prompt(PROFILES["multi"], f"Who is it {turn} ?", instructed=False)
                ask = Ask(prompt=prompt, turn=0, max_tokens=most, constraint=grammar)
                said = await self.policy.generate(ask, sampling=HOT, stops=stops, seed=turn, priority=0)
                lengths[index] = len(said.token_ids)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        return lengths


async def measure(folder: Path) -> tuple[list[float], list[float]]:
    """Tokens per second of each round, constrained and free."""
    bench = Bench(folder)
    await bench.policy.name_version(0)
    rates: tuple[list[float], list[float]] = [], []
    for number in range(1 + ROUNDS):
        turns = range(number * TURNS, (number + 1) * TURNS)
        started = time.perf_counter()
        lengths = await bench.constrained(turns)
        between = time.perf_counter()
        again = await bench.free(turns, [max(1, n) for n in lengths])
        ended = time.perf_counter()
        if number:  # the first round compiles the grammars
            rates[0].append(sum(lengths) / (between - started))
            rates[1].append(sum(again) / (ended - between))
    bench.policy.shutdown()
    return rates


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        constrained, free = asyncio.run(measure(Path(folder)))
    figures = {
        "ratio": median(a / b for a, b in zip(constrained, free, strict=True)),
        "constrained_tokens_per_s": median(constrained),
        "free_tokens_per_s": median(free),
    }
    report("constrained", figures, {"ratio": ">= 0.8"})


if __name__ == "__main__":
    main()

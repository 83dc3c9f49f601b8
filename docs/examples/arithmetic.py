"""A world of one's own: sums, endless to train on, those of even numbers held out; and experts that play its team.

COA_EXTENSIONS=docs.examples.arithmetic coa train --recipe tiny run_dir=runs/sums tasks.world=arithmetic
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from coa.seeds import derive
from coa.tasks.worlds import Settings, Texts, World, register
from coa.types import Task

OBSERVED = re.compile(r"<observation>\s*(-?\d+)")


@dataclass(frozen=True)
class ArithmeticSettings(Settings):
    """The keys of a recipe's section `world`."""

    largest: Annotated[int, Ge(4)] = 99


class Experts:
    """Writes a program where the plan wants one, and says what it printed."""

    async def replies(self, prompts: Sequence[Any]) -> list[Any]:
        from coa.teams.transcript import Reply

        return [Reply(self.reply(prompt.role, prompt.messages[-1].content)) for prompt in prompts]

    def reply(self, role: str, work: str) -> str:
        printed = OBSERVED.findall(work)
        if role == "coder":
            a, b = re.findall(r"\d+", work)[:2]
            return f"<code> print({a} + {b})</code>"
        if role == "critic":
            return f"<reflection> it prints {printed[-1]}</reflection>"
        return f"<answer> {printed[-1]}</answer>" if printed else "<plan> compute by code</plan>"


class Arithmetic(World):
    name = "arithmetic"
    settings_type = ArithmeticSettings
    columns = ("size",)
    has_experts = True

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        return self._task(f"{purpose}-{index}", 1, seed, purpose, index)

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        return tuple(self._task(f"evaluate-{index}", 0, seed, "evaluate", index) for index in range(count))

    def profiles(self) -> set[str]:
        return {"code"}

    def experts(self) -> Experts:
        return Experts()

    def lexicon(self) -> Sequence[str]:
        return ("What", "is", "compute", "by", "code", "prints")

    def column(self, name: str, task: Task, chain: Any) -> str:
        return "large" if int(task.answers[0]) > self.settings.largest else "small"

    def measures(self, tasks: Sequence[Task], said: Texts) -> dict[str, Any]:
        """The share of episodes that wrote a program."""
        wrote = Counter("<code>" in text for task in tasks for text in said[task.id])
        return {"programs": wrote[True] / wrote.total()}

    def _task(self, task_id: str, odd: int, *parts: object) -> Task:
        """A sum of numbers that are both odd, or both even."""
        a, b = (2 * (derive(*parts, which) % (self.settings.largest // 2)) + odd for which in "ab")
        return Task(id=task_id, question=f"What is {a} + {b} ?", answers=(str(a + b),), profile="code", family="sums")


register(Arithmetic)

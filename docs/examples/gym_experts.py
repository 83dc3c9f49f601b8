"""Experts for six data sets of reasoning-gym: they write the program that a question asks for, and say what it printed.

COA_EXTENSIONS=docs.examples.gym_experts coa train --recipe docs/examples/gym.yaml model.path=MODEL
"""

import re
from collections.abc import Sequence
from typing import Any

from coa.tasks.reasoning_gym.world import ReasoningGym
from coa.tasks.worlds import register

PROGRAMS = {
    "chain_sum": (r"arithmetic problem: ([\d +-]+) =", "print({0})"),
    "gcd": (r"\(GCD\) of these numbers: ([\d, -]+)\.", "import math\nprint(math.gcd({0}))"),
    "simple_equations": (
        r"(?:Solve for|value of) (\w)\b.*?: (.+) = (-?\d+)",
        'f = lambda {0}: {1} - ({2})\nprint(round(f(0) / (f(0) - f(1))))',
    ),
    "letter_counting": (r'letter "(\w)" appear in the text: "(.+)"\?', 'print("{1}".lower().count("{0}"))'),
    "time_intervals": (
        r"(\d\d:\d\d:\d\d)\D+(\d\d:\d\d:\d\d)",
        "from datetime import datetime\nread = lambda text: datetime.strptime(text, '%H:%M:%S')\n"
        "print(str(read('{1}') - read('{0}')).zfill(8))",
    ),
    "aiw": (r"(\d+) (?:sisters|female friends|female colleagues)", "print({0} + 1)"),
}  # fmt: skip
"""For each data set, how its question is recognized, and the program that answers it."""
PRINTED = re.compile(r"<observation>\s*(.*?)\s*</observation>", re.DOTALL)


def program_for(question: str) -> str | None:
    """The program for a question; None if it is of another data set."""
    for pattern, program in PROGRAMS.values():
        if found := re.search(pattern, question):
            return program.format(*found.groups())
    return None


class Experts:
    async def replies(self, prompts: Sequence[Any]) -> list[Any]:
        from coa.teams.transcript import Reply

        return [Reply(self.reply(prompt.role, prompt.messages[-1].content)) for prompt in prompts]

    def reply(self, role: str, work: str) -> str:
        printed = PRINTED.findall(work)
        if role == "coder":
            return f"<code> {program_for(work) or 'print(0)'}</code>"
        if role == "critic":
            return f"<reflection> it prints {printed[-1]}</reflection>"
        return f"<answer> {printed[-1]}</answer>" if printed else "<plan> compute by code</plan>"


class TaughtGym(ReasoningGym):
    name = "taught_gym"
    has_experts = True

    def experts(self) -> Experts:
        return Experts()


register(TaughtGym)

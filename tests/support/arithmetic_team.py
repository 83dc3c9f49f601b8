"""A team that computes, as a language model behind an endpoint would play it:

python -m tests.support.endpoints --reply tests.support.arithmetic_team:reply
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

ASKED = re.compile(r"Question: What is ([\d *+]+) \?")
PRINTED = re.compile(r"<observation>\s*(-?\d+)")


def reply(messages: Sequence[Mapping[str, Any]], seed: int | None) -> str:
    """The planner plans and answers, the coder writes the program, the critic reads what it printed."""
    system, work = messages[0]["content"], messages[-1]["content"]
    printed = PRINTED.findall(work)
    if "You are the coder" in system:
        asked = ASKED.search(work)
        return f"<code> print({asked[1]})</code>" if asked else "<think> there is nothing to compute</think>"
    if "You are the critic" in system:
        return f"<reflection> it prints {printed[-1]}</reflection>"
    return f"<answer> {printed[-1]}</answer>" if printed else "<plan> compute by code</plan>"

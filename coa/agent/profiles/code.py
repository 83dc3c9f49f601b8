"""The code agent: a plan, then programs with a reflection on each result, then the answer (paper, D.2 and D.3)."""

from coa.agent.grammar import START, TAGS, Profile

CODE = Profile(
    name="code",
    tags=tuple(TAGS[name] for name in ("think", "plan", "code", "observation", "reflection", "answer")),
    transitions={
        START: ("plan",),
        "plan": ("code", "answer"),
        "code": ("reflection",),
        "reflection": ("code", "answer"),
    },
    guidance=(
        "Begin with exactly one plan. A reflection reads the latest result; thinking looks ahead. Use no files. "
        "The answer holds the result alone; where a program is asked for, the whole program in a ```py fence."
    ),
)

"""The agent without tools: it thinks and answers. Used to test queries before they are selected (paper, section
3.3.1)."""

from coa.agent.grammar import START, TAGS, Profile

DIRECT = Profile(
    name="direct",
    tags=tuple(TAGS[name] for name in ("think", "answer")),
    transitions={START: ("answer",)},
    guidance=(
        "There are no tools: think once, then answer from what you know. The answer holds the result alone, in as few "
        "words as it takes; where a program is asked for, the whole program in a ```py fence. Always give a definite "
        "answer."
    ),
)

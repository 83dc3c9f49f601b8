"""The agent with every tool and no fixed order of tags, as in ReAct (arXiv 2210.03629)."""

from coa.agent.grammar import OBSERVATION, START, THINK, Profile
from coa.agent.profiles.multi import MULTI

_ANY = tuple(tag.name for tag in MULTI.tags if tag.name not in (THINK, OBSERVATION))

REACT = Profile(
    name="react",
    tags=MULTI.tags,
    transitions=dict.fromkeys((START, *_ANY[:-1]), _ANY),
    guidance=(
        "Take the tool that fits, as often as needed, in any order. Plan and reflect where it helps. "
        "Always give a definite answer."
    ),
)

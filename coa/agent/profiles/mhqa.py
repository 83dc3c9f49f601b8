"""The multi-hop question answering agent: an encyclopedia and reflection (paper, D.1)."""

from coa.agent.grammar import START, TAGS, Profile

MHQA = Profile(
    name="mhqa",
    tags=tuple(TAGS[name] for name in ("think", "plan", "wiki_search", "observation", "reflection", "answer")),
    transitions={
        START: ("plan",),
        "plan": ("wiki_search",),
        "wiki_search": ("wiki_search", "plan", "reflection", "answer"),
        "reflection": ("plan", "wiki_search", "answer"),
    },
    guidance=(
        "Plan very fine-grained steps and search for one thing at a time, as often as needed. After a reflection, "
        "search or plan again unless the answer is certain. Several answers are joined with |."
    ),
)

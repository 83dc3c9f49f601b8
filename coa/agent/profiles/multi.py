"""One agent with every tool: the transition tables of the other agents combined, with any search after any other."""

from coa.agent.grammar import START, TAGS, Profile

_SEARCHES = ("wiki_search", "web_search", "crawl_page")
_CALLS = (*_SEARCHES, "code")
_AFTER_A_SEARCH = (*_CALLS, "plan", "reflection", "suggested_answer", "answer")

MULTI = Profile(
    name="multi",
    tags=tuple(
        TAGS[name]
        for name in (
            "think",
            "plan",
            *_CALLS,
            "observation",
            "reflection",
            "suggested_answer",
            "double_check",
            "answer",
        )
    ),
    transitions={
        START: ("plan",),
        "plan": (*_CALLS, "suggested_answer", "answer"),
        **dict.fromkeys(_SEARCHES, _AFTER_A_SEARCH),
        "code": ("reflection",),
        "reflection": ("plan", *_CALLS, "suggested_answer", "answer"),
        "suggested_answer": ("double_check",),
        "double_check": ("plan", *_CALLS, "answer"),
    },
    guidance=(
        "Take the tool that fits: the encyclopedia for settled facts, the web for what changes, code for all "
        "arithmetic. A reflection weighs the latest results; if they are poor, plan again. An answer from the web is "
        "suggested and double-checked first: a score of 1 or 2 means searching further, 3 or 4 means answering. "
        "Always give a definite answer."
    ),
)

"""The web agent: search, crawl, and an answer that is checked before it is given (paper, D.4)."""

from coa.agent.grammar import START, TAGS, Profile

WEB = Profile(
    name="web",
    tags=tuple(
        TAGS[name]
        for name in (
            "think",
            "plan",
            "web_search",
            "crawl_page",
            "observation",
            "reflection",
            "suggested_answer",
            "double_check",
            "answer",
        )
    ),
    transitions={
        START: ("plan",),
        "plan": ("web_search", "crawl_page", "suggested_answer"),
        "web_search": ("web_search", "crawl_page", "reflection", "suggested_answer"),
        "crawl_page": ("web_search", "crawl_page", "reflection", "suggested_answer"),
        "reflection": ("plan", "web_search", "crawl_page", "suggested_answer"),
        "suggested_answer": ("double_check",),
        "double_check": ("plan", "web_search", "crawl_page", "answer"),
    },
    guidance=(
        "A reflection weighs conflicting information and how well the tools served; if it is poor, plan again. "
        "Every suggested answer is double-checked: a score of 1 or 2 means searching further, 3 or 4 means "
        "answering. Always give a definite answer."
    ),
)

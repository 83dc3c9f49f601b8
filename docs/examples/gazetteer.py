"""A tool, its tag and a profile that uses it, in one file.

COA_EXTENSIONS=docs.examples.gazetteer coa evaluate --model runs/demo/model --tasks towns.jsonl
"""

from coa.agent.grammar import START, TAGS, Form, Kind, Profile, Tag
from coa.agent.profiles import register
from coa.demo import World, WorldConfig
from coa.grading import toolset
from coa.tools.base import ToolCall
from coa.tools.layouts import LAYOUTS, Passage

LOOKUP = Tag("lookup", Kind.TOOL, "read the entry of one person or town in the gazetteer", Form.LINE, max_tokens=64)


class Gazetteer:
    def __init__(self, entries: dict[str, str]) -> None:
        self._entries = {title.casefold(): text for title, text in entries.items()}

    def key(self, call: ToolCall) -> str:
        """Calls of one key get one result, from the cache; None for a call that must run each time."""
        return call.argument.casefold()

    async def __call__(self, call: ToolCall) -> str:
        entry = self._entries.get(self.key(call))
        return LAYOUTS[call.layout].passages([Passage(call.argument, entry)] if entry else [])


register(
    Profile(
        name="gazetteer",
        tags=(
            TAGS["think"],
            TAGS["plan"],
            LOOKUP,
            TAGS["observation"],
            TAGS["reflection"],
            TAGS["answer"],
        ),
        transitions={
            START: ("plan",),
            "plan": ("lookup",),
            "lookup": ("lookup", "reflection", "answer"),
            "reflection": ("lookup", "answer"),
        },
        guidance="Plan, then look up one thing at a time. The answer is a name.",
    )
)
toolset.register(LOOKUP.name, lambda: Gazetteer(World(WorldConfig()).wiki_pages))

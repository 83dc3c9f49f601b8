"""How the prompt and the chains of a profile are written: our own way, or that of data and models of others.

    own          <plan> find the town</plan><wiki_search> Arden</wiki_search><observation> ...</observation>
    released     \\n<plan>\\nfind the town\\n</plan>\\n\\n<wiki_search>\\nArden\\n</wiki_search>\\n\\n<observation>...

A model that was trained on prompts and lines of its own is evaluated, trained further and served with these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os.path import commonprefix
from types import MappingProxyType
from typing import ClassVar

LONGEST = 4
"""Maximum characters of white space in one place."""


@dataclass(frozen=True)
class ChainFormat:
    """How the prompt and the chains of a profile are written. A file of released rows in the place of this section is
    read for them: `agent.formats.web=WebAgentSFTDataset.json`."""

    prompt: str | None = None
    """Text before the question, if `agent.instructed`. None explains the profile's tags and rules."""
    before: str = ""
    """White space (blanks and line ends) before each tag that the policy opens."""
    opened: str = " "
    """White space behind an opening tag."""
    closed: str = ""
    """White space before a closing tag."""
    after: str = ""
    """White space behind a closing tag. Behind the end of a turn, the environment writes it."""
    observed: str = ""
    """White space behind an observation, which the environment writes."""

    FROM_FILE: ClassVar = "coa.distill.sources.published:format_in"

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "prompt"):
            text: str = getattr(self, name)
            if len(text) > LONGEST or text.strip(" \n"):
                raise ValueError(f"{name} is {text!r}, expected up to {LONGEST} blanks and line ends")

    @property
    def between(self) -> str:
        """White space between two spans of the policy, and between a tool call and its observation."""
        return self.after + self.before

    @property
    def lines(self) -> str:
        """The line ends behind an opening tag, which tokenizers join with the tag."""
        return self.opened.rstrip(" ")

    @property
    def blanks(self) -> str:
        """The blanks before a text, which tokenizers join with its first word."""
        return self.opened.removeprefix(self.lines)

    def rest(self, said: str) -> str:
        """What is still missing of the white space behind a turn of the policy, which may have ended with some."""
        ended = said[len(said.rstrip(" \n")) :]
        return self.between.removeprefix(ended) if self.between.startswith(ended) else ""

    def bare(self, text: str) -> str:
        """What stands between two tags, without the white space that belongs to the format, as far as it is there."""
        return text[len(commonprefix((text, self.opened))) :].removesuffix(self.closed)


OWN = ChainFormat()
Formats = Mapping[str, ChainFormat]
"""The formats of profiles by their names; a profile that has none here is written our own way."""
OURS: Formats = MappingProxyType({})
"""All profiles our own way."""

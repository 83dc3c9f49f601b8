"""Reads a language model's reply as tag text: corrects small errors of form, and cuts off all text after a call.

"Let me look.\n<Wiki_Search>Nora Lind</Wiki_Search>\n<observation> ..."   the model's own words
"<think> Let me look.</think><wiki_search> Nora Lind</wiki_search>"        what the team reads
"""

import re

from coa.agent.grammar import TAGS, THINK, Kind, Span, parse, render
from coa.agent.lenient import read
from coa.teams.roles import DONE

_FIRST_TAG = re.compile(rf"<[ \t]{{0,4}}(?:{'|'.join(TAGS)})[ \t]{{0,4}}>", re.IGNORECASE | re.ASCII)
_STOPS = (Kind.TOOL, Kind.TERMINAL)


def tidy(text: str) -> str:
    """The reply as tag text: words before the first tag become a thought, spans after the first call or answer are left
    out. A reply that is no tag text even then is returned as it is."""
    if text.strip().strip(".").lower() == DONE:
        return DONE
    first = _FIRST_TAG.search(text)
    if first is None:
        return text
    before, rest = text[: first.start()].strip(), _up_to_stop(text[first.start() :])
    chain = read(rest).parsed
    if chain.fault:
        return text
    thought = (Span(THINK, before),) if before else ()
    return render((*thought, *chain.chain))


def _up_to_stop(text: str) -> str:
    """The text up to the end of the first call or answer."""
    stops = "|".join(tag.name for tag in TAGS.values() if tag.kind in _STOPS)
    end = re.search(rf"<[ \t]{{0,4}}/[ \t]{{0,4}}(?:{stops})[ \t]{{0,4}}>", text, re.IGNORECASE | re.ASCII)
    return text[: end.end()] if end else text


def objection(role: str, reply: str) -> str:
    """The message to an agent whose reply its team can't use."""
    parsed = parse(reply)
    what = f"It has {parsed.fault.value}." if parsed.fault else "It has a function that is not yours, or lacks yours."
    return f"Your reply can't be used. {what} Reply again as the {role}, with your functions between their tags alone."

"""The constraint for decoding one turn, as an EBNF grammar for xgrammar, derived from a profile's transition table.

    state START of mhqa:   s_start ::= think s_start | plan s_plan        s_plan ::= think s_plan | wiki_search
                           plan    ::= "<plan>" free "</plan>"            root   ::= s_start

The grammar ensures that tags are closed, that each tag may follow the previous tag, and that arguments have their
form. The text inside a tag is free, except that it contains no tag and no chat mark and keeps to the tag's token limit.
A turn ends with its only tool call or with the answer.
"""

import json
from collections.abc import Callable, Sequence

from coa.agent.grammar import ANSWER, TAGS, THINK, Form, Kind, Profile

Mark = Callable[[str], str]
"""Writes a mark such as `<plan>` for the grammar: `Token(17)` if it is one token, else quoted text."""


def turn_grammar(
    profile: Profile, state: str, *, mark: Mark, forbidden: Sequence[str], last: bool, max_tag_tokens: int
) -> str:
    """EBNF for a turn that begins in `state` of the transition table.

    `forbidden`: texts that no tag's text may contain. `last`: whether it is the last turn of an episode, in which no
    tool may be called if an answer can be given without one. `max_tag_tokens`: an upper bound on the tags' own
    token limits.
    """
    names = [tag.name for tag in profile.tags if tag.kind is not Kind.ENVIRONMENT]
    tags = {name: TAGS[name] for name in names}
    tools = {tag.name for tag in profile.tools}
    closing = _answerable(profile) if last else frozenset()
    states = _states_from(profile, state)
    rules = [f"root ::= {_state(state)}"]
    for each in states:
        following = [name for name in profile.transitions.get(each, ()) if name in tags]
        if each in closing:
            following = [name for name in following if name == ANSWER or (name in closing and name not in tools)]
        ways = [f"{THINK} {_state(each)}"]
        ways += [f"{name} {_state(name)}" if tags[name].kind is Kind.ROLE else name for name in following]
        rules.append(f"{_state(each)} ::= {' | '.join(ways)}")
    texts: dict[str, list[str]] = {}
    for tag in tags.values():
        limit = min(tag.max_tokens, max_tag_tokens)
        text = f"{tag.form}_{limit}"
        rules.append(f"{tag.name} ::= {mark(tag.open)} {text} {mark(tag.close)}")
        texts[text] = _text(text, tag.form, forbidden, limit)
    return "\n".join((*rules, *(rule for some in texts.values() for rule in some)))


_BLANKS = r" \t\n\x0b\x0c\r\x1c-\x1f\x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""The characters that `str.strip` removes."""


def _state(name: str) -> str:
    return f"s_{name or 'start'}"


def _states_from(profile: Profile, state: str) -> list[str]:
    """The states that can be reached through role tags alone, in the order of discovery."""
    found = [state]
    for each in found:
        roles = (name for name in profile.transitions.get(each, ()) if TAGS[name].kind is Kind.ROLE)
        found += [name for name in dict.fromkeys(roles) if name not in found]
    return found


def _answerable(profile: Profile) -> frozenset[str]:
    """The states from which the answer can be reached through role tags alone."""
    found: set[str] = set()
    while True:
        more = {
            state
            for state, following in profile.transitions.items()
            if any(name == ANSWER or (name in found and TAGS[name].kind is Kind.ROLE) for name in following)
        }
        if more <= found:
            return frozenset(found)
        found |= more


def _text(name: str, form: Form, forbidden: Sequence[str], max_tokens: int) -> list[str]:
    """The rules of a form. All tags of this form share them, since xgrammar may mistake one of two similar rules for
    the other."""
    free = f"{name}_part"

    def any_text(rule: str, *excluded: str) -> str:
        # The few characters of the form itself do not count toward the limit.
        texts = ", ".join(map(_quoted, (*forbidden, *excluded)))
        return f"{rule}[max_tokens={max_tokens}] ::= TagDispatch(loop_after_dispatch=false, excludes=({texts}))"

    gap = r"[ \n]? [ \n]?"
    # The rule after the first character does not see that character, so it must be neither a blank nor a tag's "<".
    begin = rf"[^{_BLANKS}<]"
    match form:
        case Form.FREE:
            return [any_text(name)]
        case Form.TEXT:
            return [f"{name} ::= {gap} {begin} {free}", any_text(free)]
        case Form.LINE:
            return [f"{name} ::= {gap} {begin} {free} [\\n]?", any_text(free, "\n")]
        case Form.SCORE:
            return [f"{name} ::= {gap} [1-4] ([ \\n.,:;] {free})?", any_text(free)]
        case Form.PROGRAM:
            bare = f"{gap} [^{_BLANKS}<`] {free}"
            fenced = rf'{gap} "```py\n" {free} "\n```" ([\n]? "```sh\n" {free} "\n```")? [ \n]?'
            return [f"{name} ::= {bare} | {fenced}", any_text(free, "```")]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

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
    for tag in tags.values():
        limit = min(tag.max_tokens, max_tag_tokens)
        opened, closed = mark(tag.open), mark(tag.close)
        if before := profile.format.before:
            opened = f"{_quoted(before)} {opened}"
        if (after := profile.format.after) and tag.kind is Kind.ROLE:
            closed = f"{closed} {_quoted(after)}"
        rules += _tag(tag.name, tag.form, opened, closed, forbidden, limit)
    return "\n".join(rules)


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


def _tag(name: str, form: Form, opened: str, closed: str, forbidden: Sequence[str], max_tokens: int) -> list[str]:
    """The rules of a tag. No other tag uses them, and each text stands beside what follows it: only then xgrammar knows
    a text's allowed tokens beforehand, which makes a token's mask ten times as fast."""
    free = f"{name}_text"

    def text(rule: str, *excluded: str) -> str:
        # The few characters of the form itself do not count toward the limit.
        texts = ", ".join(map(_quoted, (*forbidden, *excluded)))
        return f"{rule}[max_tokens={max_tokens}] ::= TagDispatch(loop_after_dispatch=false, excludes=({texts}))"

    gap = r"[ \n]? [ \n]?"
    # The rule after the first character does not see that character, so it must be neither a blank nor a tag's "<".
    begin = rf"[^{_BLANKS}<]"
    match form:
        case Form.FREE:
            ways, rules = [free], [text(free)]
        case Form.TEXT:
            ways, rules = [f"{gap} {begin} {free}"], [text(free)]
        case Form.LINE:
            ways, rules = [f"{gap} {begin} {free} [\\n]?"], [text(free, "\n")]
        case Form.SCORE:
            ways, rules = [f"{gap} [1-4]", f"{gap} [1-4] [ \\n.,:;] {free}"], [text(free)]
        case Form.PROGRAM:
            script, shell = f"{name}_script", f"{name}_shell"
            bare = f"{gap} [^{_BLANKS}<`] {free}"
            fenced = rf'{gap} "```py\n" {script} "\n```" ([\n]? "```sh\n" {shell} "\n```")? [ \n]?'
            ways, rules = [bare, fenced], [text(each, "```") for each in (free, script, shell)]
    return [f"{name} ::= {' | '.join(f'{opened} {way} {closed}' for way in ways)}", *rules]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

"""The scripted experts' replies to a question that is not of the tiny world.

They compute if they can run code, look the question up if they can search, and answer with the result. They are often
wrong, and such runs are filtered out: real questions need language models.
"""

import ast
import re

from coa.agent.grammar import OBSERVATION, Chain, Profile, Span, render
from coa.teams.roles import DONE

UNKNOWN = "unknown"
_EXPRESSION = re.compile(r"[\d(+\-][\d\s.+\-*/%()]*")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "^": "**"})
"""Typeset signs of multiplication, division, minus and powers, and Python's operators for them."""
_OPERATOR = re.compile(r"[\d)]\s*[+\-*/%]")
_EMPTY = re.compile(r"^(no result|404|no output)\b|^\s*$")


def find_expression(question: str) -> str | None:
    """The longest arithmetic expression of a question, as Python: "What is 3 * 4 - 5 ?" gives "3 * 4 - 5"."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", question).translate(_SIGNS)
    found = (_to_its_end(match[0]) for match in _EXPRESSION.finditer(plain))
    valid = [text for text in found if _OPERATOR.search(text) and _is_expression(text)]
    return max(valid, key=len, default=None)


def _to_its_end(text: str) -> str:
    """The text up to its last digit or closing parenthesis."""
    return text[: max((n for n, one in enumerate(text, start=1) if one.isdecimal() or one == ")"), default=0)]


def general_reply(role: str, profile: Profile, question: str, chain: Chain) -> str:
    """The reply of a scripted expert to the work so far."""
    match role:
        case "planner":
            return _planner(profile, chain)
        case "coder":
            return _say("code", f"print({find_expression(question) or repr(UNKNOWN)})")
        case "searcher":
            return _searcher(profile, question, chain)
        case "worker":
            if chain[-1].tag == "plan" and (expression := find_expression(question)):
                return _say("code", f"print({expression})")
            return _searcher(profile, question, chain)
        case "critic":
            return _say("reflection", f"the result says {_gist(chain[-1].text)}")
        case "verifier":
            return _say("double_check", "3 nothing speaks against it")
    raise ValueError(f"no role {role!r}")


def _planner(profile: Profile, chain: Chain) -> str:
    if not chain:
        return _say("plan", "compute by code" if any(tag.name == "code" for tag in profile.tools) else "look it up")
    source = "suggested_answer" if chain[-1].tag == "double_check" else "observation"
    return _say("answer", _gist(next(span.text for span in reversed(chain) if span.tag == source)))


def _searcher(profile: Profile, question: str, chain: Chain) -> str:
    found = [span.text for span in chain if span.tag == OBSERVATION]
    if not found:
        return _say(profile.tools[0].name, question)
    checked = any(tag.name == "suggested_answer" for tag in profile.tags)
    return _say("suggested_answer", _gist(found[-1])) if checked else DONE


def _gist(text: str) -> str:
    """The first line of a result, at most a dozen words."""
    if _EMPTY.match(text):
        return UNKNOWN
    return " ".join(text.strip().splitlines()[0].split()[:12]).removesuffix(".0")


def _is_expression(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    # "5 (3)" also parses, as a call, and "2 ** ()" as an operation with a tuple.
    return not any(isinstance(node, ast.Call | ast.Tuple) for node in ast.walk(tree))


def _say(tag: str, text: str) -> str:
    return render((Span(tag, text),))

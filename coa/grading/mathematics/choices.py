r"""Reads a choice with its text beside the letter: choice_of(r"\textbf{(C)}\ 12") == "C"."""

import re

from coa.grading.latex import unstyled

_LETTER = re.compile(r"\(?([A-Z])\)?\.?")
_CHOICE = re.compile(
    r"(?:(?:(?:the|my|final|correct|answer|option|choice|is)\b[\s:]*+)++|(?:答案|正解|故选|选项|选)+(?:是|为|は)?[\s:]*)?"
    r"(?:[(\[](?P<bracketed>[A-Z])[)\]](?P<after>\s|\\ |~|[.:,、]|\Z|(?=[\u3041-\u9fff])|(?=[\\\d$]))"
    r"|(?P<letter>[A-Z])(?:[.:)、](?!\w*[A-Z]\w*=)| +[-\u2014](?= +[A-Za-z]{2})|\Z))(?P<text>.*)",
    re.DOTALL | re.IGNORECASE,
)
_IS_RIGHT = re.compile(
    r"(?<!\s)\s+is\s+(?:the\s+)?(?:correct|right)(?:\s+(?:answer|option|choice))?\.?\Z|选项(?:正确)?\.?\Z",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"(?:故选|选)?[\s:]*((?:[A-H](?:\s*(?:[,、;&]|and\b|和)\s*|(?=[A-H]|\W*\Z)))+)\W*")
_ANOTHER = re.compile(
    r"\([A-Z]\)|(?<![A-Za-z\\])[A-J][.:)](?!\w)|\A\W*[A-Za-z]\W*\Z|\A\W*(?:or|and|not)\b|\A\s*[,/&+=^_*-]"
    r"|\b(?:or|and) \(?[A-J]\)?\W*\Z"
)


def letter_of(gold: str) -> str | None:
    r"""The letter of an accepted answer that is a choice, such as `\text{(C)}`; None for any other answer."""
    found = _LETTER.fullmatch(unstyled(gold).strip())
    return found[1] if found else None


def choice_of(result: str) -> str | None:
    """The letter of an answer that is a choice, with or without its text; None if it is no choice, or more than one."""
    found = _CHOICE.fullmatch(_IS_RIGHT.sub("", unstyled(result)).replace("\\,", " ").replace("\\;", " ").strip(" {}"))
    if found is None or _ANOTHER.search(found["text"]):
        return None
    letter = found["bracketed"] or found["letter"]
    return letter if letter.isupper() else None


def letters_of(text: str) -> list[str]:
    """The letters of several choices, in alphabetical order: A, C and D for `ACD` and for `C, A, D`; empty for any
    other text, and for a single letter."""
    found = _SEVERAL.fullmatch(unstyled(text).strip())
    letters = re.findall("[A-H]", found[1]) if found else []
    if found and found[1].isalpha() and letters != sorted(letters):  # a word
        return []
    return sorted(letters) if 1 < len(letters) == len(set(letters)) else []

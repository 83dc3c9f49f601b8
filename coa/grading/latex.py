r"""Finds the part of an answer to a maths problem that states the result, and spells it in one way.

expression_of(r"So $x = 90^\circ$, that is \boxed{90°}.") == r"90^\circ"
"""

import re

from coa.grading.normalise import normalise
from coa.grading.notation import STYLED, bare, plain, spelt

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN_BOXES = re.compile(
    r"[\s$]*(?:,|;|(?:,\s*)?(?:\\text\s*\{\s*)?\b(?:and|or)\b(?:\s*\})?)[\s$]*(?:[A-Za-z](?:_\{?\w\}?)?\s*=[\s$]*)?"
)
_UNBRACED = re.compile(r"\\boxed\s++(-?\w++(?:\.\w++)*+)[\s.$]*+\Z")
_LONE_DOLLAR = re.compile(r"\A([^$]*)(?<!\\)\$(?=\d[^$]*\Z)")
_DELIMITER = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_BOLD = re.compile(r"(?<![^\s(:])\*\*(?=[^\s*])([^*\n]+)(?<=\S)\*\*(?![^\s.,;:!)])")
_TEXT = re.compile(rf"\\(?:{STYLED})\s*\{{([^{{}}]*)\}}")
_WORDS = re.compile(r"\(?[A-Za-z]+(?:(?:[ ']+|(?<=[A-Za-z]{2})-(?=[A-Za-z]{2}))[A-Za-z]+)*\)?")

ASIAN = "[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7af]"
_PROSE = re.compile(rf"[A-Za-z]{{2}}\s+[A-Za-z]{{2}}|[^\W\d_]{{5}}\s*:|{ASIAN}.*{ASIAN}|{ASIAN} *:")
_ANSWER = (
    r"\b(?:(?:answer|result|solution|r[ée]ponse|respuesta)s?|ans|Antwort|Lösung|risposta|resposta|Ответ)\b"
    "|答案|故选|答え|答(?=:)|정답"
)
_LABEL = re.compile(rf"\W*(?:(?:final|the|my)\s+)*(?:{_ANSWER})|A: (?=\W*\d)", re.IGNORECASE)
_IS_ANSWER = re.compile(_ANSWER, re.IGNORECASE)
_LEAD = re.compile(
    rf"\b(?:is|are|equals|ist|est|es)\b|(?<!\d):|{_ANSWER}|(?<!不)是(?!否)|(?<![不因])[为為]|(?<!また)は|은",
    re.IGNORECASE,
)
_NO_RESULT = re.compile(r"\W*(?:the|my|our|a)\b[^\d\\]*", re.IGNORECASE)
_BEFORE = re.compile(r"\s(?:is|are)\s+(?:the|my|our|a)\b", re.IGNORECASE)
_INTRODUCED = re.compile(
    r"(?:(?:so|thus|hence|therefore|then|and|we|I|it|this|that|get|gives?|have|find|obtain|(?<=it)'s)\b[\s,:]*)+",
    re.IGNORECASE,
)
_ENDING = re.compile(r"(?:です|である|となる|입니다|이다)\.?\Z")
_FULL_STOP = re.compile(r"(?<!\.)\.\Z")
_SENTENCE = re.compile(r"(?<=[^\s.])(?:[.!] +|[.!]?\n[ \t]*+\n\s*+)(?=[A-Z])")
_BECAUSE = re.compile(r"[,;]? ?(?:\\text ?\{| ) ?(?:because|since)\b|, as\b", re.IGNORECASE)
_DASH = re.compile(r"\A\s+[-\u2014]\s+")
_TAKEN_BACK = re.compile(
    r"\b(?:no|not|wait|actually|but|however|instead|wrong|incorrect|sorry|correction|oops|or|alternatively"
    r"|maybe|perhaps|possibly|either|else|could|also)\b",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:know|sure|see|tell|clear|say)\s+(?:if|whether|that)\b|n't\b"
    r"|不[是为]|并非|では(?:ない|ありません)|아니|\b(?:no es|nicht|pas)\b",
    re.IGNORECASE,
)


def expression_of(answer: str) -> str:
    """The result that an answer states: the body of its last box, what follows its last `####` (as in GSM8K), or else
    the answer without introductory words and without the explanation after it."""
    return spelt(result_of(answer))


def result_of(answer: str) -> str:
    """The part of an answer that states the result, before its spelling is changed."""
    text = stated_text(answer)
    if _LABEL.match(unstyled(text)):
        text = _stated_in(unstyled(text))
    elif _is_prose(text) or _BECAUSE.search(text):
        text = _stated_in(text)
    if found := _INTRODUCED.match(text):
        text = text[found.end() :]
    return bare(_ENDING.sub("", _FULL_STOP.sub("", text.rstrip())))


def stated_text(answer: str) -> str:
    """The body of an answer's last box, or else all of the answer, without Markdown and dollar signs."""
    answer = plain(answer)
    box = last_box(answer)
    if box is None and (found := _UNBRACED.search(answer)):
        box = found[1]
    text = answer.rpartition("####")[2] if box is None else box
    text = _LONE_DOLLAR.sub(r"\1\\$", _BOLD.sub(r"\1", bare(text)))
    return bare(_DELIMITER.sub("", text)).strip()


def last_box(text: str) -> str | None:
    r"""The body of the last `\boxed{...}` with balanced braces; None if there is none.

    Boxes with nothing but a comma, "and" or "or" between them are one result: `\boxed{1}, \boxed{-2}` is "1, -2".
    """
    found: list[str] = []
    begin = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = _end_of(text, box.end())
        if end is None or end > begin:  # no box, or one around the next
            continue
        if found and not _BETWEEN_BOXES.fullmatch(text, end, begin):
            break
        found.append(text[box.end() : end - 1])
        begin = box.start()
    return ", ".join(reversed(found)) if found else None


def _end_of(text: str, at: int) -> int | None:
    """Offset of the brace that closes the one opened before `at`; None if it is not closed."""
    depth = 1
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if not depth:
                return at + 1
        at += 1
    return None


def _stated_in(prose: str) -> str:
    """The result that prose states: before an explanation, in the last sentence about the answer (or else the first),
    or at the end. What a later sentence takes back, and what the author is not sure of, is no result."""
    if _UNSURE.search(prose):
        return prose
    sentences = _SENTENCE.split(prose)
    index = next((index for index in reversed(range(len(sentences))) if _IS_ANSWER.search(sentences[index])), 0)
    if not any(map(_TAKEN_BACK.search, sentences[index + 1 :])):
        stated = _BECAUSE.split(sentences[index], maxsplit=1)[0]
        if found := _after_lead(stated) or (not _is_prose(stated) and stated.strip()):
            return found
    return _after_lead(prose) or _BEFORE.split(prose, maxsplit=1)[0]


def _is_prose(text: str) -> bool:
    return _PROSE.search(_COMMAND.sub("", _TEXT.sub("", text))) is not None


def _after_lead(prose: str) -> str:
    """The text after the last word that introduces a result; empty if none does."""
    for lead in reversed(list(_LEAD.finditer(prose))):
        rest = prose[lead.end() :]
        if re.search(r"\w", rest) and not _NO_RESULT.fullmatch(rest):
            return rest if lead[0] == ":" else _DASH.sub("", rest)
    return ""


def words_of(expression: str) -> str | None:
    r"""The normalized words of an expression of only words: "e" for `\text{(E)}`; None for any other expression."""
    bare_words = _TEXT.sub(lambda text: text[1], expression).strip("{} ").removesuffix(".")
    return normalise(bare_words) if _WORDS.fullmatch(bare_words) else None


def unstyled(text: str) -> str:
    r"""The text without the commands of fonts: `(C) 12` for `\textbf{(C)} 12`."""
    return _TEXT.sub(lambda styled: styled[1], text)

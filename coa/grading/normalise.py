"""Normalizes short answers for comparison."""

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Excludes a number's sign and decimal point: -5 is not 5.
_PUNCTUATION = re.compile(rf"(?!(?<!\w)-\d|(?<=\d)\.\d)[{re.escape(string.punctuation)}]")

_WHOLE = re.compile(r"(?<![\w.])(\d++)\.0++(?![\w.])")

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words(text: str) -> str:
    return " ".join(text.split())


def normalise_published(text: str) -> str:
    """Normalizes as the evaluations of SQuAD and of open question answering (NQ, TriviaQA, HotpotQA) do: lower case,
    without punctuation, articles and extra blanks. So -5 becomes 5, and A becomes empty."""
    return _words(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)))


def normalise(text: str) -> str:
    """Normalizes to lower case, without punctuation, articles and extra blanks, as usual in open question answering.
    A whole number loses its decimal point: 7.0, as pandas writes it, becomes 7.

    If nothing else would be left (the answer A), articles and punctuation stay.
    """
    whole = _WHOLE.sub(r"\1", text.lower())
    bare = _PUNCTUATION.sub("", whole)
    return _words(_ARTICLES.sub(" ", bare)) or _words(bare) or _words(whole)

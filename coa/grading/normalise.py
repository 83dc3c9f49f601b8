"""Brings short answers into the form in which they are compared."""

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Not a number's sign and decimal point: -5 is not 5.
_PUNCTUATION = re.compile(rf"(?!(?<!\w)-\d|(?<=\d)\.\d)[{re.escape(string.punctuation)}]")

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words(text: str) -> str:
    return " ".join(text.split())


def normalise_published(text: str) -> str:
    """As SQuAD's evaluation has it, and with it those of open question answering (NQ, TriviaQA, HotpotQA): lower case,
    without punctuation, articles and extra blanks, whatever is left: -5 is 5, and nothing is left of A."""
    return _words(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)))


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra blanks: the usual form for open question answering.

    Where nothing else would be left (the answer A), articles and punctuation stay.
    """
    whole = text.lower()
    bare = _PUNCTUATION.sub("", whole)
    return _words(_ARTICLES.sub(" ", bare)) or _words(bare) or _words(whole)

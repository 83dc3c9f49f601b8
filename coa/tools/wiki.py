"""A small encyclopedia in memory: one article per title."""

from collections.abc import Mapping

NO_RESULT = "no result"


def normalise(title: str) -> str:
    """Case and spacing forgiven: " Vexon  labs" is "vexon labs"."""
    return " ".join(title.split()).casefold()


class WikiSearch:
    cacheable = True

    def __init__(self, articles: Mapping[str, str]) -> None:
        """`articles`: title to text."""
        self._articles = {normalise(title): text for title, text in articles.items()}

    async def __call__(self, argument: str) -> str:
        return self._articles.get(normalise(argument), NO_RESULT)

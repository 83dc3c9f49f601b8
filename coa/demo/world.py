"""The tiny world: people, towns and companies whose facts are hashes, an encyclopedia, and a web that is outdated.

    person --born in--> town --mayor, judge, doctor, baker--> surname          (encyclopedia)
    company --chief, owner, sponsor, captain--> surname                        (web page; search snippets lag behind)

Only names are stored: each fact depends only on the seed and its subject.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from coa.bounds import Share
from coa.demo import words
from coa.demo.questions import BIRTHPLACE, CURRENT, FAMILIES, KINDS, MHQA, MULTI, PROFILE_OF, SUMS, WEB
from coa.seeds import derive, fraction
from coa.tools.base import ToolCall
from coa.tools.search.wiki import NO_RESULT

FIRST_PAGE = 100
NO_PAGE = "404 no such page"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    seed: int = 0
    """Seed of the world's facts."""
    people: int = 1200
    """Number of people in the world."""
    towns: int = 576
    """Number of towns in which they are born."""
    companies: int = 384
    """Number of companies, each with a chief, an owner, a sponsor and a captain."""
    stale: Share = 0.65
    """Share of the facts about companies for which a search snippet names a former holder of the position."""
    held_out: Share = 0.2
    """Share of people, companies and sums that occur only in evaluation tasks."""
    families: tuple[str, ...] = FAMILIES
    """Families of tasks: calc (arithmetic), mhqa (multi-hop questions) and web."""
    profile: str | None = None
    """Agent profile of every task; None takes the profile of each family."""

    def __post_init__(self) -> None:
        for name, first, last in _NAME_WORDS:
            size, most = getattr(self, name), len(first) * len(last)
            if not 1 <= size <= most:
                raise ValueError(f"{name}: {size} is not between 1 and {most}")
        if not self.families or not set(self.families) <= set(FAMILIES):
            raise ValueError(f"families: {self.families} are not some of {', '.join(FAMILIES)}")
        fitting = {MULTI, *(PROFILE_OF[family] for family in self.families)}
        if self.profile is not None and (self.profile not in fitting or (len(fitting) > 2 and self.profile != MULTI)):
            raise ValueError(f"profile: {self.profile!r} does not fit {', '.join(self.families)}")


_NAME_WORDS = (
    ("people", words.FIRST_NAMES, words.SURNAMES),
    ("towns", words.TOWN_FIRST, words.TOWN_LAST),
    ("companies", words.COMPANY_FIRST, words.COMPANY_LAST),
)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A result of the tiny world's search: `SearchResult("Vexon Labs", "p123", "Berg as owner")`"""

    title: str
    page: str
    """The address under which `crawl_page` reads the page."""
    snippet: str
    """The text that the search engine shows for the page, often outdated."""

    @property
    def text(self) -> str:
        return f"{self.title} {self.page} {self.snippet}"

    @property
    def hit(self) -> dict[str, str]:
        """The hit in the form that a search service sends."""
        return {"title": self.title, "link": self.page, "snippet": self.snippet}


class World:
    """The tiny world. It is determined by its config, and cheap to build, so each process builds its own."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.people, self.towns, self.companies = (
            _names(config.seed, name, first, last, getattr(config, name)) for name, first, last in _NAME_WORDS
        )
        self._company_of_page = {f"p{FIRST_PAGE + i}": name for i, name in enumerate(self.companies)}
        self._page_of_company = {name: page for page, name in self._company_of_page.items()}
        self._persons = frozenset(self.people)
        self._towns = frozenset(self.towns)

    def birthplace(self, person: str) -> str:
        return self.towns[derive(self.config.seed, "born", person) % len(self.towns)]

    def holder(self, town: str, kind: str) -> str:
        """The surname of a town's mayor, judge, doctor or baker."""
        return self._surname("holder", town, kind)

    def current(self, company: str, kind: str) -> str:
        """The surname of a company's chief, owner, sponsor or captain."""
        return self._surname("current", company, kind)

    def snippet_value(self, company: str, kind: str) -> str:
        """The holder in the search snippet: the current one, or a former one if the snippet is stale."""
        current = self.current(company, kind)
        if fraction(self.config.seed, "stale", company, kind) >= self.config.stale:
            return current
        return another(words.SURNAMES, current, self.config.seed, "former", company, kind)

    def held_out(self, what: str, *which: object) -> bool:
        """Whether a subject is held out: held_out("person", name), ("company", name), ("sum", a, b, c)."""
        return fraction(self.config.seed, "held out", what, *which) < self.config.held_out

    @cached_property
    def wiki_pages(self) -> dict[str, str]:
        """Title to text, for every person and town."""
        return {title: text for title in (*self.people, *self.towns) if (text := self.wiki_page(title))}

    def wiki_page(self, title: str) -> str | None:
        if title in self._persons:
            return f"{title} was born in {self.birthplace(title)} ."
        if title in self._towns:
            return f"{title} : {_listing(KINDS[MHQA], [self.holder(title, kind) for kind in KINDS[MHQA]])}"
        return None

    @cached_property
    def site_pages(self) -> dict[str, str]:
        """Page id to text, for every company."""
        return {page: text for page in self._company_of_page if (text := self.site_page(page))}

    @cached_property
    def site_hits(self) -> dict[str, list[dict[str, str]]]:
        """Query to hits, each with `title`, `link` and `snippet`: for "Vexon Labs" and "Vexon Labs owner" alike."""
        queries = (f"{company} {kind}".strip() for company in self.companies for kind in ("", *KINDS[WEB]))
        return {query: [result.hit for result in self.search_results(query)] for query in queries}

    def search_results(self, query: str) -> tuple[SearchResult, ...]:
        """The companies that a query names, each with the snippet of the kinds that it names (all, if none)."""
        asked = query.split()
        kinds = [kind for kind in KINDS[WEB] if kind in asked] or list(KINDS[WEB])
        pairs = (f"{first} {last}" for first, last in pairwise(asked))
        return tuple(
            SearchResult(
                title=company,
                page=self._page_of_company[company],
                # The value comes first. Only in a page it follows its kind, so that only a page answers "owner ...".
                snippet=" , ".join(f"{self.snippet_value(company, kind)} as {kind}" for kind in kinds),
            )
            for company in dict.fromkeys(pairs)
            if company in self._page_of_company
        )

    def site_page(self, page: str) -> str | None:
        """The text of a page such as "p123", with the current holders of all positions."""
        company = self._company_of_page.get(page)
        if company is None:
            return None
        return f"{company} : {_listing(KINDS[WEB], [self.current(company, kind) for kind in KINDS[WEB]])}"

    def observe(self, call: ToolCall) -> str:
        """The result of a tool in this world if nothing is down; the code tool supports only sums."""
        match call.tool:
            case "wiki_search":
                return self.wiki_page(call.argument) or NO_RESULT
            case "web_search":
                return "\n".join(result.text for result in self.search_results(call.argument)) or NO_RESULT
            case "crawl_page":
                return self.site_page(call.argument) or NO_PAGE
            case "code":
                return _run_sum(call.argument)
        raise ValueError(f"the world has no tool {call.tool!r}")

    def lexicon(self) -> tuple[str, ...]:
        """Every word of questions, pages and snippets, sorted; numbers and page ids are not words."""
        texts = [*SUMS.values(), BIRTHPLACE, CURRENT, "was born in", "as", NO_RESULT]
        texts += [" ".join(kinds) for kinds in KINDS.values()]
        texts += [*self.people, *self.towns, *self.companies, *words.SURNAMES]
        return tuple(sorted({word for text in texts for word in text.split() if word.isalpha()}))

    def _surname(self, *about: object) -> str:
        return words.SURNAMES[derive(self.config.seed, *about) % len(words.SURNAMES)]


def another(values: Sequence[str], than: str, *parts: object) -> str:
    """A value other than the given one, drawn by the parts."""
    place = values.index(than)
    return values[(place + 1 + derive(*parts) % (len(values) - 1)) % len(values)]


def _names(seed: int, what: str, first: Sequence[str], last: Sequence[str], size: int) -> tuple[str, ...]:
    names = (" ".join(pair) for pair in product(first, last))
    return tuple(sorted(names, key=lambda name: derive(seed, what, name))[:size])


def _listing(kinds: Sequence[str], values: Sequence[str]) -> str:
    return " , ".join(f"{kind} {value}" for kind, value in zip(kinds, values, strict=True)) + " ."


_SUM = re.compile(r"print\( (\d+) \* (\d+) - (\d+) \)")


def _run_sum(program: str) -> str:
    match = _SUM.fullmatch(program)
    if match is None:
        raise ValueError(f"not a sum of the world: {program!r}")
    a, b, c = map(int, match.groups())
    return str(a * b - c)

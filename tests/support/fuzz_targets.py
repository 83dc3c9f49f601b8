"""What the fuzzers run: each target takes any text, and checks what must hold of whatever comes out."""

from collections.abc import Callable, Mapping

from coa.agent.episode import well_formed_turn
from coa.agent.grammar import TAGS, escape, parse, render, unescape
from coa.agent.lenient import read
from coa.agent.profiles import PROFILES
from coa.errors import InfrastructureError, UserError
from coa.grading.cases import read_tests
from coa.grading.judge import decided, verdict
from coa.grading.latex import expression_of, words_of
from coa.grading.match import exact_match, token_f1
from coa.grading.programs import program_of, same_output
from coa.http.addresses import NotAllowed, Reach, is_web_address, read_link, redact
from coa.tools.code import read_program
from coa.tools.search.wiki import canonical, read_reply
from coa.tools.web.crawl import read_links
from coa.tools.web.extract import visible_words
from coa.tools.web.search import clean_query, read_hits
from coa.tools.web.summary import relevant

OPEN = Reach(base="http://127.0.0.1:1/", open_web=True)
MARKS = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]


def parser(text: str) -> None:
    parsed = parse(text)
    assert 0 <= parsed.at <= len(text)
    assert parse(render(parsed.chain)).chain == parsed.chain
    reading = read(text)
    assert parsed.fault is not None or reading.parsed == parsed
    for profile in PROFILES.values():
        well_formed_turn(reading.parsed, profile)
        profile.transitions_hold(parsed.chain)


def escaping(text: str) -> None:
    safe = escape(text)
    assert not any(mark in safe for mark in MARKS)
    assert unescape(safe) == text


def program(text: str) -> None:
    read_program(text)
    program_of(text)


def links(text: str) -> None:
    for link in (text, *read_links(text)):
        try:
            url, _ = read_link(link, OPEN)
        except NotAllowed:
            continue
        assert url.scheme in ("http", "https")
        assert url.user is None
    is_web_address(text)
    redact(text)


def queries(text: str) -> None:
    clean_query(text)
    canonical(text)


def replies(text: str) -> None:
    """What services answer: unreadable is a ValueError, TypeError or AttributeError, which their tools catch."""
    for reading in (lambda: read_hits(text, 5), lambda: read_reply(text), lambda: read_tests(text)):
        try:
            reading()
        except (ValueError, TypeError, AttributeError, KeyError, UserError, InfrastructureError):
            continue
    decided(text, verdict)


def answers(text: str) -> None:
    assert 0 <= token_f1(text, ("Arden Falls", text)) <= 1
    exact_match(text, ("Arden", "7"))
    same_output(text, "7\n")
    words_of(expression_of(text))


def pages(text: str) -> None:
    visible_words(text)
    assert len(relevant(text, text[:20], 40)) <= 80


TARGETS: Mapping[str, Callable[[str], None]] = {
    target.__name__: target for target in (parser, escaping, program, links, queries, replies, answers, pages)
}

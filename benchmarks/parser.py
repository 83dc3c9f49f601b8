"""The speed of parsing tag text: megabytes per second on one core, and whether the time is linear in the length.

python -m benchmarks.parser
"""

from benchmarks.harness import in_turns, report
from coa.agent.grammar import Span, parse, render
from coa.agent.lenient import read

ROUNDS = 7
WORDS = "the town of Arden was founded in 1204 , and x < y where f(x) = 3 ; its mayor is Berg . " * 40


def chain_text(size: int) -> str:
    """Tag text of about `size` characters: an agent's run again and again, with spans of 30 to 1,200 characters."""
    run = (
        Span("think", WORDS[:400]),
        Span("plan", WORDS[:150]),
        Span("wiki_search", WORDS[:30]),
        Span("observation", WORDS[:1200]),
        Span("reflection", WORDS[:200] + "<answer> is no answer here"),
    )
    text = render(run)
    return text * (size // len(text))


def main() -> None:
    one, four = chain_text(1_000_000), chain_text(4_000_000)
    # One tag is open to the end, and much inside it begins like a tag.
    unclosed_one, unclosed_four = ("<think>" + "< think <   /plan " * (size // 18) for size in (1_000_000, 4_000_000))
    assert parse(four).fault is None
    sides = {
        "parse_1": lambda: parse(one),
        "parse_4": lambda: parse(four),
        "read_4": lambda: read(four),
        "unclosed_1": lambda: read(unclosed_one),
        "unclosed_4": lambda: read(unclosed_four),
    }
    seconds = {name: min(times) for name, times in in_turns(sides, ROUNDS).items()}
    figures = {
        "parse_mb_per_s": len(four) / 1e6 / seconds["parse_4"],
        "read_mb_per_s": len(four) / 1e6 / seconds["read_4"],
        # Four times the text takes four times as long, give or take what a cache does.
        "growth": seconds["parse_4"] / seconds["parse_1"] / 4,
        "growth_unclosed": seconds["unclosed_4"] / seconds["unclosed_1"] / 4,
        "unclosed_mb_per_s": len(unclosed_four) / 1e6 / seconds["unclosed_4"],
    }
    targets = {"parse_mb_per_s": ">= 20", "read_mb_per_s": ">= 20", "growth": "<= 1.5", "growth_unclosed": "<= 1.5"}
    report("parser", figures, targets)


if __name__ == "__main__":
    main()

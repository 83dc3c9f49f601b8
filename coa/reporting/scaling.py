"""Test-time scaling: the accuracy of several attempts at a task, and their cost in tokens.

    greedy              one attempt at temperature 0
    pass@1              one sampled attempt
    best of 3 majority  the attempt that a selector chooses out of 3, without knowing which is right
    pass@3              whether any of 3 is right: the upper bound for a selector

The table of arXiv 2508.13167, section 5.3, has pass@1, best-of-3 and pass@3.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TypedDict

from coa.agent.best_of import DOUBLE_CHECK, MAJORITY, SELECTORS, Candidate, Choice
from coa.agent.lenient import read
from coa.agent.records import EpisodeRecord
from coa.grading.graders import TESTS
from coa.grading.votes import votes_of
from coa.reporting.benchmarks import Episodes, ks_of
from coa.reporting.readable import number
from coa.reporting.statistics import Estimate, mean_at_k, paired_difference, pass_at_k
from coa.tasks.published.table import of_family
from coa.teams.router import score_of
from coa.types import Task

JUDGE = "judge"
"""Name of the selector that asks a language model."""
EVERYTHING = "all"


class Way(TypedDict):
    """Results of one way to answer, over some tasks."""

    name: str
    rate: Estimate
    """Share of tasks that are answered right."""
    gain: Estimate | None
    """Gain over pass@1 on the same tasks; None for one task."""
    tokens_per_task: float
    """Tokens of all attempts, each turn with its context, and of the selector's model."""
    sampled_tokens_per_task: float
    """Tokens among these that the policy wrote."""
    selector_tokens_per_task: float
    """Tokens among these that the selector's model read and wrote."""
    tokens_per_success: float | None
    """Mean tokens per right answer; None if no task is answered right."""


def candidates_of(task: Task, episodes: Sequence[EpisodeRecord]) -> list[Candidate]:
    """The attempts at a task as selectors see them. Blocks, and raises InfrastructureError, as `votes_of`."""
    votes = votes_of([episode.answer for episode in episodes], task.grader)
    return [Candidate(vote, _last_check(episode)) for vote, episode in zip(votes, episodes, strict=True)]


def _last_check(episode: EpisodeRecord) -> int | None:
    checks = [span.text for span in read(episode.text).parsed.chain if span.tag == DOUBLE_CHECK]
    return score_of(checks[-1]) if checks else None


def scaling(
    tasks: Sequence[Task], greedy: Episodes, sampled: Episodes, judged: Mapping[str, Choice] | None = None
) -> dict[str, list[Way]]:
    """The ways to answer: for all tasks, then, if there are several, for each benchmark and each family without one.

    Every task has the same number of sampled attempts, at least 2. judged: by task id, what a language model chose;
    None if there is none. Blocks, and raises InfrastructureError, as `votes_of`.
    """
    parts: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        benchmark = of_family(task.family)
        parts[benchmark.name if benchmark else task.family].append(task)
    several = parts if len(parts) > 1 else {}
    return {name: list(_ways(some, greedy, sampled, judged)) for name, some in ((EVERYTHING, tasks), *several.items())}


def _ways(
    tasks: Sequence[Task], greedy: Episodes, sampled: Episodes, judged: Mapping[str, Choice] | None
) -> Iterator[Way]:
    attempts = [sampled[task.id] for task in tasks]
    k = len(attempts[0])
    right = [[int(episode.correct) for episode in some] for some in attempts]
    once = [fmean(some) for some in right]

    def way(name: str, rate: Estimate, rates: Sequence[float], tokens: float, written: float, choosing: float) -> Way:
        total = tokens + choosing
        return Way(
            name=name,
            rate=rate,
            gain=paired_difference(rates, once) if len(tasks) > 1 else None,
            tokens_per_task=total,
            sampled_tokens_per_task=written,
            selector_tokens_per_task=choosing,
            tokens_per_success=total / rate["mean"] if rate["mean"] else None,
        )

    def of_any(k: int) -> list[float]:
        return [pass_at_k([some], k)["mean"] for some in right]

    if all(task.id in greedy for task in tasks):
        ones = [greedy[task.id] for task in tasks]
        sure = [[int(episode.correct) for episode in some] for some in ones]
        yield way("greedy", mean_at_k(sure), [fmean(some) for some in sure], *_mean_tokens(ones), 0.0)
    tokens, written = _mean_tokens(attempts)
    yield way("pass@1", mean_at_k(right), once, tokens, written, 0.0)
    for name, choices in _choices(tasks, attempts, judged):
        chosen = [[some[choice.index]] for some, choice in zip(right, choices, strict=True)]
        choosing = fmean(choice.tokens for choice in choices)
        rates = [float(one) for [one] in chosen]
        yield way(f"best of {k} {name}", mean_at_k(chosen), rates, k * tokens, k * written, choosing)
    for j in ks_of(k):
        yield way(f"pass@{j}", pass_at_k(right, j), of_any(j), j * tokens, j * written, 0.0)


def _mean_tokens(attempts: Sequence[Sequence[EpisodeRecord]]) -> tuple[float, float]:
    """Mean tokens sent and tokens written, per attempt at a task."""
    return (
        fmean(fmean(episode.tokens_sent for episode in some) for some in attempts),
        fmean(fmean(episode.policy_tokens for episode in some) for some in attempts),
    )


def _choices(
    tasks: Sequence[Task], attempts: Sequence[Sequence[EpisodeRecord]], judged: Mapping[str, Choice] | None
) -> Iterator[tuple[str, list[Choice]]]:
    """Each selector's choices. There is no majority vote on programs, which are never the same text, and no selection
    by checks if the policy makes none."""
    candidates = list(map(candidates_of, tasks, attempts))
    use = {
        MAJORITY: all(task.grader != TESTS for task in tasks),
        DOUBLE_CHECK: any(one.score is not None for some in candidates for one in some),
    }
    for name in filter(use.__getitem__, use):
        yield name, [Choice(SELECTORS[name](some)) for some in candidates]
    if judged is not None:
        yield JUDGE, [judged[task.id] for task in tasks]


def rows(found: Mapping[str, Sequence[Way]]) -> Iterator[list[str]]:
    """Rows of a table of 80 columns: name, rate with its interval, tokens per task, tokens per success."""
    for part, ways in found.items():
        if len(found) > 1:
            yield [f"{part}, {ways[0]['rate']['n']} tasks", "", "", ""]
        for one in ways:
            low, high = one["rate"]["ci95"]
            rate = f"{one['rate']['mean']:.3f}  [{low:.3f}, {high:.3f}]"
            yield [f"  {one['name']}", rate, number(round(one["tokens_per_task"])), number(one["tokens_per_success"])]

"""Results by benchmark: the metric with an interval, and warnings if it is not comparable with published results."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict

from coa.agent.profiles import profile as find_profile
from coa.agent.records import EpisodeRecord
from coa.grading.programs import TESTS
from coa.grading.votes import votes_of
from coa.json_object import Json
from coa.reporting.statistics import majority_at_k, mean_at_k, pass_at_k
from coa.tasks.published.benchmark import Benchmark, Decoding
from coa.tasks.published.table import BENCHMARKS, of_family
from coa.tasks.samples import SAMPLE_TESTS_ONLY, with_sample_tests_only
from coa.types import Task

Episodes = Mapping[str, Sequence[EpisodeRecord]]
"""Episodes by task id."""


def results(
    tasks: Sequence[Task],
    episodes: Episodes,
    decoding: Callable[[Benchmark], Decoding],
    *,
    first_rows: bool,
    made_up: Collection[str] = (),
    published: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Json]:
    """The results by benchmark; tasks of no benchmark are left out.

    n is the number of all tasks: an episode without an answer, truncated or malformed, is wrong. `first_rows`: whether
    the tasks are only the first of a benchmark, which may have more; `made_up`: the tools that searched only a world's
    made-up pages. `published`: verdicts of the published grader by task id, if it differs from ours (mathematics); the
    result has their rate as `as_published`. Blocks, and raises InfrastructureError, as `votes_of`.
    """
    found: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if benchmark := of_family(task.family):
            found[benchmark.name].append(task)
    by_name: dict[str, Json] = {}
    for name, its_tasks in found.items():
        how = decoding(BENCHMARKS[name])
        warnings = [
            *_of_rows(BENCHMARKS[name], len(its_tasks), first_rows),
            *_of_protocol(BENCHMARKS[name], its_tasks, how),
            *_of_tools(its_tasks, made_up),
        ]
        by_name[name] = _result(BENCHMARKS[name], its_tasks, episodes, how) | {"warnings": warnings}
        if published is not None and all(task.id in published for task in its_tasks):
            by_name[name]["as_published"] = mean_at_k([list(published[task.id]) for task in its_tasks])
    return by_name


def _result(benchmark: Benchmark, tasks: Sequence[Task], episodes: Episodes, decoding: Decoding) -> Json:
    correct = [[int(episode.correct) for episode in episodes[task.id]] for task in tasks]
    families = sorted({task.family for task in tasks} - {benchmark.name})
    named = f", {SAMPLE_TESTS_ONLY}" if len(with_sample_tests_only(tasks)) == len(tasks) else ""
    return {
        "metric": f"{benchmark.metric_at(decoding.samples)}{named}",
        **mean_at_k(correct),
        **(_of_several(benchmark, tasks, episodes, correct, decoding.samples) if decoding.samples > 1 else {}),
        "parts": {
            family.partition("/")[2]: mean_at_k(
                [rates for task, rates in zip(tasks, correct, strict=True) if task.family == family]
            )
            for family in families
        },
        "decoding": asdict(decoding),
        "rows": benchmark.rows[0],
        "graders": sorted({task.grader for task in tasks}),
        "statuses": dict(Counter(episode.status.value for task in tasks for episode in episodes[task.id])),
    }


def _of_several(
    benchmark: Benchmark, tasks: Sequence[Task], episodes: Episodes, correct: Sequence[Sequence[int]], samples: int
) -> Json:
    """pass@k for powers of two and for all samples; the majority vote, if answers are short enough to be the same."""
    several: Json = {"pass_at_k": {str(k): pass_at_k(correct, k) for k in ks_of(samples)}}
    if benchmark.grader != TESTS:
        votes = [votes_of([episode.answer for episode in episodes[task.id]], task.grader) for task in tasks]
        several["majority_at_k"] = majority_at_k(votes, correct)
    return several


def ks_of(samples: int) -> list[int]:
    """Powers of two from 2 on, and the number of samples itself: the k of pass@k."""
    return sorted({2**power for power in range(1, samples.bit_length()) if 2**power <= samples} | {samples})


def _of_rows(benchmark: Benchmark, n: int, first_rows: bool) -> Iterator[str]:
    published, *others = benchmark.rows
    if n in others:
        yield f"{n} rows, as copies in use have; published results are of {published}"
    elif n != published and first_rows:
        yield f"only the first {n} rows of {published}"
    elif n != published:
        yield f"{n} rows, where {' or '.join(map(str, benchmark.rows))} are known"


def _of_protocol(benchmark: Benchmark, tasks: Sequence[Task], decoding: Decoding) -> Iterator[str]:
    if samples := len(with_sample_tests_only(tasks)):
        some = "" if samples == len(tasks) else f"{samples} of {len(tasks)} tasks have "
        yield (
            f"{some}{SAMPLE_TESTS_ONLY}, which a table of the samples in the question passes; the hub's data set has "
            "all tests"
        )
    if decoding != benchmark.decoding:
        yield f"{show(decoding)} as configured; the protocol has {show(benchmark.decoding)}"
    for what, used, its in (
        ("grader", {task.grader for task in tasks}, benchmark.grader),
        ("profile", {task.profile for task in tasks}, benchmark.profile),
    ):
        if used != {its}:
            yield f"{what} {', '.join(sorted(used))}, as rows or recipe say; the protocol has {its}"


def _of_tools(tasks: Sequence[Task], made_up: Collection[str]) -> Iterator[str]:
    used = {tag.name for name in {task.profile for task in tasks} for tag in find_profile(name).tools}
    if fictitious := sorted(used & set(made_up)):
        yield f"{' and '.join(fictitious)} searched made-up pages: set tools.wiki or tools.search"


def show(decoding: Decoding) -> str:
    """`16 x T 0.6, 13 turns`, `3 x T 1, top-p 0.9, top-k 20, 36 turns` or `greedy`."""
    turns = f", {decoding.max_turns} turns" if decoding.max_turns else ""
    if decoding.temperature == 0:
        return f"greedy{turns}"
    top_p = "" if decoding.top_p == 1 else f", top-p {decoding.top_p:g}"
    top_k = f", top-k {decoding.top_k}" if decoding.top_k else ""
    return f"{decoding.samples} x T {decoding.temperature:g}{top_p}{top_k}{turns}"

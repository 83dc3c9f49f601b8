"""Speeds for the simulation: each is either recorded by a run or assumed from a device's specifications, and
`assumptions` says which."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from coa.json_object import JsonView
from coa.planning.clusters import Device
from coa.planning.engine import Speeds, StepTimes
from coa.planning.memory import width_of
from coa.planning.models import Architecture
from coa.planning.workload import Episode, Recorded
from coa.reporting.metrics import Record
from coa.reporting.readable import look_up

Decoding = Sequence[tuple[int, float, int]]
"""(number of running requests, seconds with this number, tokens sampled in these seconds)."""
MEMORY_SHARE = 0.6
"""Share of a GPU's memory bandwidth that decoding reaches."""
PREFILL_SHARE = 0.5
"""Share of a GPU's peak that prefill reaches."""
LEARNING_SHARE = 0.35
"""Share of a GPU's peak that a learner reaches, recomputed layers counted as work."""
LEAST_SHARE = 0.01
"""Share of a run's decoding for which a number of requests must have been recorded to be counted by itself."""
FIXED_SHARE = 0.5
"""Share of a learner's step that may be independent of its tokens: the standard deviation of the prior in
`fit_learning`."""
NETWORK = 5e9
"""Bytes per second from node to node, and from all ranks into shared memory, digests included."""
PCIE = 25e9
"""Bytes per second from shared memory into a GPU."""


@dataclass(frozen=True, slots=True)
class Calibration:
    speeds: Speeds
    assumptions: tuple[str, ...]
    """One sentence per assumption."""


def fit_decoding(found: Decoding) -> StepTimes:
    """The mean time of a step for each power of two of requests that was recorded for long enough, made to grow with
    the requests (pool adjacent violators). With a single one, a step takes its share for each request. Raises
    ValueError if no token was sampled."""
    whole = sum(seconds for _, seconds, tokens in found if tokens)
    steps: dict[int, list[float]] = {}
    for requests, seconds, tokens in found:
        if requests and tokens:
            row = steps.setdefault(requests.bit_length(), [0.0, 0.0, 0.0])
            for at, value in enumerate((seconds, tokens / requests, float(tokens))):
                row[at] += value
    if not steps:
        raise ValueError("no token was sampled")
    pooled: list[list[float]] = []
    for size in sorted(steps):
        if steps[size][0] < LEAST_SHARE * whole:
            continue
        pooled.append(steps[size])
        while len(pooled) > 1 and pooled[-2][0] / pooled[-2][1] >= pooled[-1][0] / pooled[-1][1]:
            last = pooled.pop()
            pooled[-1] = [a + b for a, b in zip(pooled[-1], last, strict=True)]
    points = tuple((tokens / number, seconds / number) for seconds, number, tokens in pooled)
    return StepTimes(points if len(points) > 1 else ((0.0, 0.0), *points))


def fit_learning(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(update_s, token_s) over (tokens, seconds) of steps; neither is below 0. Raises ValueError without a step.

    A step of the mean number of tokens takes the mean number of seconds. `token_s` is the posterior mean of the slope
    of a linear regression, under a normal prior: its mean is the slope of times proportional to the tokens, its
    standard deviation FIXED_SHARE of that. If all steps have nearly as many tokens, the regression's standard error is
    large, and the prior decides.
    """
    if not steps:
        raise ValueError("no step was made")
    tokens, seconds = fmean(t for t, _ in steps), fmean(s for _, s in steps)
    proportional = seconds / tokens if tokens else 0.0
    slope = proportional
    spread = sum((t - tokens) ** 2 for t, _ in steps)
    if spread and proportional and len(steps) > 2:
        measured = sum((t - tokens) * (s - seconds) for t, s in steps) / spread
        residual = sum((s - seconds - measured * (t - tokens)) ** 2 for t, s in steps) / (len(steps) - 2)
        prior = (FIXED_SHARE * proportional) ** 2
        error = residual / spread
        slope = (measured * prior + proportional * error) / (prior + error)
    slope = min(max(slope, 0.0), proportional)
    return seconds - slope * tokens, slope


def recorded(
    records: Sequence[Record],
    result: JsonView,
    groups: Sequence[Recorded],
    *,
    engines: int,
    ranks: int,
    max_requests: int,
) -> Calibration:
    """The speeds of a finished RL run with this number of engines and ranks. records: of its steps; result: of its
    stage (`checkpoints/rl.json`); groups: a sample of its groups; max_requests: maximum requests of an engine's batch.
    Raises ValueError if the run recorded too little."""
    steps = [(int(one["tokens"]), float(one["seconds"])) for one in records if "seconds" in one and "tokens" in one]
    update_s, token_s = fit_learning(steps)
    assumptions = ["speeds of engines and learners are those of the run, beside whatever else its machine did"]
    decoding = result.get("decoding")
    if decoding:
        # Requests beyond an engine's batch only wait, which takes no compute time.
        decoded = fit_decoding([(min(at_once, max_requests), seconds, tokens) for at_once, seconds, tokens in decoding])
    else:
        sampled = [episode.sampled for group in groups for episode in group.episodes]
        tokens = result["trajectories"] * (fmean(sampled) if sampled else 0.0)
        busy_s = float(look_up(result, "busy.engine") or 0.0) * float(result["seconds"]) * engines
        if not tokens or not busy_s:
            raise ValueError("no token was sampled")
        decoded = StepTimes.linear(0.0, busy_s / tokens)
        assumptions.append("an engine samples as many tokens a second whatever its batch: the run has only their mean")
    assumptions.append("prefill is part of what the run's sampled tokens took: other lengths of prompts change nothing")
    # The times of a resumed run are those since its last start, and so is this number of batches.
    learner, count = look_up(result, "time.learner"), max(1, result.get("batches", len(steps)))
    publish_s = (learner or {}).get("publishing", 0.0) / count
    pause_s = float(result.get("sync_pause_mean_s", 0.0))
    load_s = max(0.0, float(result.get("sync_mean_s", pause_s)) - pause_s)
    if learner is None:
        assumptions.append(
            "publishing and loading of weights beside the pause take no time: the run did not measure it"
        )
    speeds = Speeds(
        steps=decoded,
        prefill_s=0.0,
        trained_token_s=token_s * ranks,
        update_s=update_s,
        publish_s=publish_s,
        load_s=load_s,
        pause_s=pause_s,
    )
    return Calibration(speeds, tuple(assumptions))


def assumed(
    built: Architecture,
    device: Device,
    dtype: str,
    *,
    tensor_parallel: int,
    learner_dtype: str,
    passes: int,
    episodes: Sequence[Episode],
    sharing: int = 1,
) -> Calibration:
    """Speeds of an engine on `tensor_parallel` devices and of a rank on one device, from the device's specifications.
    dtype, learner_dtype: of the engine's and the learner's numbers. passes: of the learner over each token, in forward
    passes. episodes: some of the workload's. sharing: number of episodes for which a rank computes the first prompt
    once."""
    width = width_of(dtype)
    weights = built.parameters * width
    memory_s, peak = device.bandwidth * MEMORY_SHARE * tensor_parallel, device.peak(dtype) * tensor_parallel
    sampled, length, context, position = lengths_of(episodes)
    sampled_share = sampled / length
    flops = built.flops(position)
    prompt = fmean(episode[0].prompt for episode in episodes)
    computed = 1.0 - (1.0 - 1.0 / sharing) * prompt / length
    speeds = Speeds(
        steps=StepTimes.linear(
            weights / memory_s,
            width * built.kv_elements * context / memory_s + built.flops(context) / (peak * PREFILL_SHARE),
        ),
        prefill_s=flops / (peak * PREFILL_SHARE),
        trained_token_s=passes * computed * flops / (device.peak(learner_dtype) * LEARNING_SHARE) / sampled_share,
        update_s=0.0,
        publish_s=weights / NETWORK,
        load_s=weights / NETWORK,
        pause_s=weights / tensor_parallel / PCIE,
    )
    assumptions = (
        f"decoding reads weights and cache at {MEMORY_SHARE:.0%} of {device.name}'s memory bandwidth",
        f"prefill reaches {PREFILL_SHARE:.0%} of its {dtype} peak",
        f"learning reaches {LEARNING_SHARE:.0%} of its {learner_dtype} peak, in {passes} passes over each token",
        "collectives, optimizer steps and grading take no time, and any number of tool calls run at once",
        f"of the tokens that are trained with, {sampled_share:.0%} are the policy's, by these episodes",
        *([f"a prompt is computed once for the {sharing} episodes of a group, by a rank"] if sharing > 1 else []),
        f"a token is sampled after {context:.0f} others in the mean, and trained after {position:.0f}, by these "
        "episodes",
        f"weights are published, and copied from node to node, at {NETWORK / 1e9:g} GB/s, and read by a GPU at "
        f"{PCIE / 1e9:g} GB/s",
    )
    return Calibration(speeds, assumptions)


def lengths_of(episodes: Sequence[Episode]) -> tuple[float, float, float, float]:
    """Means over episodes: sampled tokens, and all tokens. Means over sampled tokens, and over all tokens: the tokens
    before one."""
    whole = before = sampled = positions = 0.0
    for episode in episodes:
        length = 0
        for turn in episode:
            length += turn.prompt
            before += turn.sampled * (length + turn.sampled / 2)
            length, sampled = length + turn.sampled, sampled + turn.sampled
        whole, positions = whole + length, positions + length**2 / 2
    return sampled / len(episodes), whole / len(episodes), before / sampled, positions / whole

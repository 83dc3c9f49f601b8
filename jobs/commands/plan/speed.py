"""Shows how fast the RL loop of a recipe would be: tables of the simulation's results."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path

from actors.learner.sizes import architecture
from coa.planning.bottleneck import advice, bottleneck, gains
from coa.planning.clusters import Node
from coa.planning.memory import USABLE
from coa.planning.search import search
from coa.planning.side_by_side import Case, Play, side_by_side
from coa.planning.simulation import Forecast, LoopShape
from coa.reporting.readable import number, percent
from jobs.commands.plan.places import smallest
from jobs.recipe.dry_run import Section
from jobs.recipe.forecast import Loop, loop_assumed, loop_of_run, measured_s
from jobs.recipe.needs import memory_of_rank
from jobs.recipe.schema import Recipe

LARGEST = 4
"""Maximum factor of the recipe's batch that is simulated; beyond it, throughput is extrapolated linearly."""


def speed_of(
    config: Recipe, nodes: Sequence[Node], run: Path | None, up_to: int | None
) -> tuple[list[Section], list[str]]:
    """Tables and sentences, from a run's records or from assumptions about the nodes' devices."""
    if run is not None:
        loop, measured = loop_of_run(config, run), measured_s(run)
    else:
        built, device, measured = architecture(config.model), smallest(nodes), None
        if built is None:
            return [], ["speed is not estimated: the model's sizes are not known; --run takes the speeds of a run"]
        if device is None or not config.placement.engine_gpus:
            return [], ["speed is not estimated: there is no GPU of a known kind; --run takes the speeds of a run"]
        loop = loop_assumed(config, built, device, min(node.gpus for node in nodes if node.gpus))
    with side_by_side() as play:
        sections, sentences = speed(loop, measured, play)
        if (divided := splits(loop, too_large(config, nodes), play)) is not None:
            sections.append(divided)
        if up_to is not None and loop.shape.gpus:
            sections.append(larger(loop, up_to, play))
    return sections, [*sentences, *(f"assumed: {sentence}" for sentence in loop.assumptions)]


def speed(loop: Loop, measured: float | None, play: Play) -> tuple[list[Section], list[str]]:
    """Tables and sentences. measured: trajectories per second in the run that the speeds come from, None without."""
    [base] = play([_case(loop, loop.shape)])
    found = gains(loop.shape, loop.speeds, loop.work, base, warm=loop.warm, play=play)
    rows = [
        (one.change.setting, f"{one.change.before:g}", f"{one.change.after:g}", f"{one.gain:+.1%}", one.needs)
        for one in found
    ]
    sections = [
        Section("the loop, simulated", ("", "value"), tuple(_rows(base, loop, measured))),
        Section("each setting alone", ("setting", "now", "then", "trajectories/s", "needs"), tuple(rows)),
    ]
    limit = bottleneck(base.engine, base.learner, takes_turns=loop.shape.takes_turns)
    return sections, [limit.sentence, advice(found)]


def too_large(config: Recipe, nodes: Sequence[Node]) -> Callable[[int], bool]:
    """Whether one of so many learner ranks of RL needs more memory than its GPU has, as far as it is known."""
    built, device = architecture(config.model), smallest(nodes)

    def exceeds_memory(ranks: int) -> bool:
        if built is None or device is None:
            return False
        learner = replace(config.rl.learner, ranks=ranks)
        return memory_of_rank(config, "rl", learner, built).on_device > USABLE * device.memory

    return exceeds_memory


def splits(loop: Loop, too_large: Callable[[int], bool], play: Play) -> Section | None:
    """Other divisions of the same GPUs between engines and learner ranks, the best one among them; None if these share
    GPUs. Those whose ranks are too large for their GPUs are left out."""
    shape = loop.shape
    if shape.engine_gpus < 1 or shape.rank_gpus < 1:
        return None
    least = shape.rank_gpus * shape.sequence_parallel

    def ranks_beside(engines: int) -> int:
        return int((shape.gpus - engines * shape.engine_gpus) // least) * shape.sequence_parallel

    most = range(1, int(shape.gpus // shape.engine_gpus) + 1)
    ways = [n for n in most if n == shape.engines or ((ranks := ranks_beside(n)) > 0 and not too_large(ranks))]

    def trained_s(numbers: Sequence[int]) -> list[float]:
        shapes = [replace(shape, engines=engines, ranks=ranks_beside(engines)) for engines in numbers]
        return [one.trained_s for one in play([_case(loop, shape) for shape in shapes])]

    found = search(ways, trained_s, shape.engines)
    best, now = max(found, key=found.__getitem__), shape.engines
    rows = tuple(
        (
            f"{engines} engines, {ranks_beside(engines)} ranks",
            number(speed),
            "best" * (engines == best) or "the recipe's" * (engines == now),
        )
        for engines, speed in found.items()
    )
    return Section(f"{shape.gpus:g} GPUs, other divisions", ("", "trained/s", ""), rows)


def larger(loop: Loop, up_to: int, play: Play) -> Section:
    """The recipe's cluster, enlarged by factors of 2: with the same batch, simulated, and with a batch that is enlarged
    as much, simulated up to a factor of LARGEST and extrapolated linearly beyond; and the seconds until new weights are
    in all engines."""
    shape, gpus = loop.shape, loop.shape.gpus
    factors = list(takewhile(lambda factor: factor * gpus <= up_to, (2**power for power in count())))
    grown = [replace(shape, engines=factor * shape.engines, ranks=factor * shape.ranks) for factor in factors]
    scaled = [
        replace(one, window=replace(shape.window, groups_per_batch=factor * shape.window.groups_per_batch))
        for factor, one in zip(factors, grown, strict=True)
        if factor <= LARGEST
    ]
    found = [one.trained_s for one in play([_case(loop, one) for one in (*grown, *scaled)])]
    same, by_batch = found[: len(grown)], found[len(grown) :]
    rows = []
    for index, (factor, one) in enumerate(zip(factors, grown, strict=True)):
        nearest = min(index, len(by_batch) - 1)
        batch = by_batch[nearest] * factor / factors[nearest]
        how = "simulated" if factor <= LARGEST else "extrapolated"
        moved = number(loop.speeds.load_s * one.copies + loop.speeds.pause_s)
        rows.append((f"{factor * gpus:g}", number(same[index]), number(batch), moved, how))
    return Section(
        "larger clusters, trained/s", ("GPUs", "same batch", "batch scaled, too", "weights, s", ""), tuple(rows)
    )


def _case(loop: Loop, shape: LoopShape) -> Case:
    return Case(shape, loop.speeds, loop.work, loop.warm)


def _rows(found: Forecast, loop: Loop, measured: float | None) -> Iterator[tuple[str, str]]:
    yield "trajectories a second", number(found.trajectories_s)
    if measured is not None:
        yield "measured in the run", number(measured)
    yield "trained trajectories a second", number(found.trained_s)
    yield "standard error, by the episodes drawn", percent(found.error)
    yield "tokens sampled a second", number(round(found.tokens / found.seconds))
    yield "seconds of a step", number(found.seconds / max(1, loop.shape.steps - loop.warm))
    for who, spent in (("engines", found.engine), ("learners", found.learner)):
        for state, share in sorted(spent.items(), key=lambda one: -one[1]):
            yield f"{who}: {state.replace('_', ' ')}", percent(share)
    yield "staleness, mean / max", f"{number(found.staleness_mean)} / {found.staleness_max}"

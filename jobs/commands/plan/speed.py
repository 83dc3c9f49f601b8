"""Shows how fast the RL loop of a recipe would be: tables of the simulation's results."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from actors.learner.sizes import architecture
from coa.planning.bottleneck import advice, bottleneck, gains
from coa.planning.clusters import Node
from coa.planning.search import search
from coa.planning.simulation import Forecast, LoopShape, simulate
from coa.reporting.readable import number, percent
from jobs.commands.plan.places import smallest
from jobs.recipe.dry_run import Section
from jobs.recipe.forecast import Loop, loop_assumed, loop_of_run, measured_s
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
        if built is None or device is None or not config.placement.engine_gpus:
            return [], ["speed is not estimated: there is no GPU of a known kind; --run takes the speeds of a run"]
        loop = loop_assumed(config, built, device)
    sections, sentences = speed(loop, measured)
    place = config.placement
    if (divided := splits(loop, place.engine_gpus, place.learner_gpus)) is not None:
        sections.append(divided)
    gpus = loop.shape.engines * place.engine_gpus + loop.shape.ranks * place.learner_gpus
    if up_to is not None and gpus:
        sections.append(larger(loop, gpus, up_to))
    return sections, [*sentences, *(f"assumed: {sentence}" for sentence in loop.assumptions)]


def speed(loop: Loop, measured: float | None) -> tuple[list[Section], list[str]]:
    """Tables and sentences. measured: trajectories per second in the run that the speeds come from, None without."""
    base = _forecast(loop, loop.shape)
    found = gains(loop.shape, loop.speeds, loop.work, base, warm=loop.warm)
    rows = [
        (f"{one.change.setting}", f"{one.change.before:g}", f"{one.change.after:g}", f"{one.gain:+.1%}")
        for one in found
    ]
    sections = [
        Section("the loop, simulated", ("", "value"), tuple(_rows(base, loop, measured))),
        Section("each setting alone", ("setting", "now", "then", "trajectories/s"), tuple(rows)),
    ]
    return sections, [bottleneck(base.engine, base.learner).sentence, advice(found)]


def splits(loop: Loop, gpus_of_engine: float, gpus_of_rank: float) -> Section | None:
    """Other divisions of the same GPUs between engines and learner ranks, the best one among them; None if these share
    GPUs."""
    shape = loop.shape
    if gpus_of_engine < 1 or gpus_of_rank < 1:
        return None
    total = shape.engines * gpus_of_engine + shape.ranks * gpus_of_rank
    least = gpus_of_rank * shape.sequence_parallel
    ways = [n for n in range(1, int(total // gpus_of_engine) + 1) if total - n * gpus_of_engine >= least]

    def ranks_beside(engines: int) -> int:
        return int((total - engines * gpus_of_engine) // least) * shape.sequence_parallel

    def trained_s(engines: int) -> float:
        return _forecast(loop, replace(shape, engines=engines, ranks=ranks_beside(engines))).trained_s

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
    return Section(f"{total:g} GPUs, other divisions", ("", "trained/s", ""), rows)


def larger(loop: Loop, gpus: float, up_to: int) -> Section:
    """The recipe's cluster, enlarged by factors of 2: with the same batch, simulated, and with a batch that is enlarged
    as much, simulated up to a factor of LARGEST and extrapolated linearly beyond."""
    shape, rows, factor, base = loop.shape, [], 1, 0.0
    while factor * gpus <= up_to:
        grown = replace(shape, engines=factor * shape.engines, ranks=factor * shape.ranks)
        same = _forecast(loop, grown).trained_s
        window = replace(shape.window, groups_per_batch=factor * shape.window.groups_per_batch)
        if factor <= LARGEST:
            base = _forecast(loop, replace(grown, window=window)).trained_s / factor
        how = "simulated" if factor <= LARGEST else "extrapolated"
        rows.append((f"{factor * gpus:g}", number(same), number(base * factor), how))
        factor *= 2
    return Section("larger clusters, trained/s", ("GPUs", "same batch", "batch scaled, too", ""), tuple(rows))


def _forecast(loop: Loop, shape: LoopShape) -> Forecast:
    return simulate(shape, loop.speeds, loop.work, warm=loop.warm)


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

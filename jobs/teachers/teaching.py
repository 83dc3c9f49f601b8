"""The teachers of a run as actors: model servers, language models, roles, and the team that plays.

models that are served here -> ModelServer -> TeacherModel --+   (served)
models                      -> TeacherModel -----------------+-> TeacherTeam -> Teaching.stream
the world's experts         -> RoleAgent (one a role) -------+
"""

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.handles import Handle, kill, start_restartable
from actors.teachers.model import TeacherModel
from actors.teachers.team import Outcome, Played, RoleAgent, TeacherTeam, TeachingConfig
from actors.tools.remote import ToolClient
from cluster.watch import ready, watched_services
from coa.errors import InfrastructureError, UserError
from coa.storage.chunks import chunks
from coa.teams.run import Assignment, FailedRun
from coa.teams.teams import EXPERTS, plays_free
from coa.teams.transcript import Graded
from coa.usage import Usage
from jobs.recipe.needs import models_by_role, roles_of
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.teachers.routes import routes_of
from jobs.teachers.served import STOP_S, keep_served, serve

CALLS = 10_000
"""Maximum number of concurrent calls of an actor of this module; most calls only wait."""
KEEP_LEDGERS = (TeacherModel, TeacherTeam)
"""Actors that run on the driver's node, since they keep a ledger: a SQLite file in the run directory, on its disk."""
WATCH_S = 5.0
"""Seconds between two checks whether endpoints answer."""
FIRST_WAVE = 100
"""Maximum number of runs in the first wave of scripted experts."""
WAVES_IN_FLIGHT = 2
"""Waves of scripted experts that are under way at the same time."""
GIVE_UP_AFTER = 2
"""Maximum number of failed runs in a row before a stage gives up, as a multiple of `runs_in_flight`."""


Judge = Callable[[Sequence[Outcome]], Awaitable[list[Outcome]]]


class Teaching:
    """The team of a run. Runs of scripted experts are played in waves, in order; those of language models end in any
    order."""

    def __init__(self, team: Handle, config: TeachingConfig, *, experts: bool, actors: Mapping[str, Handle]) -> None:
        """experts: whether all roles are scripted experts."""
        self._team, self._config, self._experts = team, config, experts
        self.actors = actors
        """Handles: "team", the roles, and the models under their names."""
        self.finished = Usage()
        """Usage by this stage's ended runs so far, failed ones included."""

    async def play(self, assignments: Sequence[Assignment], judge: Judge | None = None) -> Played:
        """Plays the assignments. `judge`: reviews the outcomes, and may change them."""
        played: Played = await self._team.play.remote(list(assignments), self.finished)
        self.finished = sum((one.usage for one in played.outcomes), self.finished)
        return played if judge is None else replace(played, outcomes=await judge(played.outcomes))

    async def stream(
        self, assignments: Iterable[Assignment], judge: Judge | None = None, room: Callable[[], int] | None = None
    ) -> AsyncGenerator[Played]:
        """Plays assignments as there is room for them, and yields what has ended. A caller that stops iterating early
        must close the generator (`aclosing`). room: how many runs of language models may be played at the same time
        now; None for `runs_in_flight`."""
        if self._experts:
            async with aclosing(self._in_waves(assignments, judge)) as waves:
                async for played in waves:
                    yield played
            return
        rest = iter(assignments)
        playing: set[asyncio.Task[Played]] = set()
        done: set[asyncio.Task[Played]] = set()
        try:
            while True:
                free = max(0, (self._config.runs_in_flight if room is None else room()) - len(playing))
                playing |= {asyncio.ensure_future(self.play([one], judge)) for one in islice(rest, free)}
                if not playing:
                    return
                done, playing = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
                while done:
                    yield done.pop().result()
        finally:
            _end([*done, *playing])

    async def _in_waves(self, assignments: Iterable[Assignment], judge: Judge | None) -> AsyncGenerator[Played]:
        playing: deque[asyncio.Task[Played]] = deque()
        try:
            rest = iter(assignments)
            # The first wave is small: it may show that the experts can't play these tasks.
            first = list(islice(rest, min(FIRST_WAVE, self._config.wave)))
            for wave in chain([first] if first else [], chunks(rest, self._config.wave)):
                playing.append(asyncio.ensure_future(self.play(wave, judge)))
                if len(playing) >= WAVES_IN_FLIGHT:
                    yield await playing.popleft()
            while playing:
                yield await playing.popleft()
        finally:
            _end(playing)


def _end(playing: Collection["asyncio.Task[Played]"]) -> None:
    """Cancels the tasks, and retrieves their exceptions: asyncio would print them as never retrieved otherwise."""
    for task in playing:
        task.cancel()
        task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())


class FailedInARow:
    """Counts team runs that fail in a row: too many of them end the stage."""

    def __init__(self, config: TeachingConfig) -> None:
        self._most = GIVE_UP_AFTER * config.runs_in_flight
        self._count = 0
        self.given_up = ""
        """The last failure, once too many runs have failed in a row; else empty."""

    def take(self, outcome: Outcome) -> None:
        match outcome:
            case Graded():
                self._count = 0
            case FailedRun(where=where, why=why):
                self._count += 1
                if self._count > self._most:
                    self.given_up = f"{where}: {why}"

    def check(self) -> None:
        """Raises InfrastructureError if too many runs failed in a row."""
        if self.given_up:
            raise InfrastructureError(f"too many team runs failed in a row; the last failure: {self.given_up}")


@asynccontextmanager
async def language_models(run: RunDir, names: Iterable[str]) -> AsyncIterator[Mapping[str, Handle]]:
    """Handles of the recipe's `models` of these names, for as long as the context lasts. Raises UserError for a key
    that is missing, and ModelServerDown for a server that does not come up."""
    servers: dict[str, Handle] = {}
    models: dict[str, Handle] = {}
    keeping: list[asyncio.Future[None]] = []
    try:
        for name in sorted(set(names) - {EXPERTS}):
            endpoint, server = await serve(run.config, run.config.models[name])
            models[name] = _start(
                run, TeacherModel, endpoint, run.teachers / "replies" / name, f"models.{name}.endpoint"
            )
            if server is not None:
                servers[name] = server
                keeping.append(asyncio.ensure_future(keep_served(name, server, models[name], run.console.say)))
        for model in models.values():
            if mistake := await model.mistake.remote():
                raise UserError(mistake)
        asked = {f"the client of the model {name}": ready(model) for name, model in models.items()}
        async with watched_services(asked, run.console.say):
            yield models
    finally:
        for one in keeping:
            one.cancel()
        for handle in models.values():
            kill(handle)
        for server in servers.values():
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await server.stop.remote()  # what it holds is free once this returns
            kill(server)
        for one in keeping:
            if one.done() and not one.cancelled():
                one.result()  # a defect


@asynccontextmanager
async def watched(models: Mapping[str, Handle], stage: Stage, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Reports, as long as the context lasts, models whose endpoints do not answer: by a line of its own when an outage
    begins, and on the stage's line while it lasts; and once, what endpoints refuse and are sent in another way."""

    async def watch() -> None:
        told: set[str] = set()
        noted: set[str] = set()
        while True:
            await asyncio.sleep(WATCH_S)
            notices = {f"{name}: {text}" for name, model in models.items() for text in await _notices(model)}
            for notice in sorted(notices - noted):
                say(notice)
            noted |= notices
            troubles = {name: text for name, model in models.items() if (text := await _trouble(model))}
            for name in troubles.keys() - told:
                say(f"{name}: {troubles[name]}; runs wait, and are tried again")
            told = set(troubles)
            if troubles:
                stage.phase("; ".join(troubles.values()))

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _trouble(model: Handle) -> str:
    try:
        return await model.trouble.remote()
    except RayError:
        return ""  # a dead actor is reported by those that ask it for replies


async def _notices(model: Handle) -> list[str]:
    try:
        return await model.notices.remote()
    except RayError:
        return []  # as in `_trouble`


@asynccontextmanager
async def teaching(run: RunDir, tools: ToolClient, models: Mapping[str, Handle]) -> AsyncIterator[Teaching]:
    """The team that the recipe names, for as long as the context lasts. models: handles of the recipe's `models`."""
    config, team = run.config, run.config.team
    routes = await asyncio.to_thread(routes_of, run)
    agents: dict[str, Handle] = {}
    started: list[Handle] = []
    try:
        for role in roles_of(config):
            if (name := team.model_of(role)) == EXPERTS:
                started.append(_start(run, RoleAgent, run.world.experts))
                agents[role] = started[-1]
            else:
                agents[role] = models[name]
        player = _start(
            run,
            TeacherTeam,
            team,
            agents,
            tools,
            config.teaching,
            models=models_by_role(config),
            seed=config.seed,
            layouts=config.agent.layouts,
            routes=routes,
            ledger=None if plays_free(team) else run.teachers / "observations",
        )
        started.append(player)
        actors = {"team": player, **agents, **models}
        asked = {f"the teacher {name}": ready(handle) for name, handle in (("team", player), *agents.items())}
        async with watched_services(asked, run.console.say):
            yield Teaching(player, config.teaching, experts=plays_free(team), actors=actors)
    finally:
        for handle in reversed(started):
            kill(handle)


def drop_ledgers(run: RunDir) -> None:
    """Deletes the ledgers of replies and observations. Call it only when no run is unfinished, since unfinished runs
    replay from them."""
    for ledger in ("replies", "observations"):
        shutil.rmtree(run.teachers / ledger, ignore_errors=True)


def actor_options(actor: type, node: str) -> dict[str, Any]:
    """Ray's options of an actor. node: id of the driver's node."""
    return {
        "num_cpus": 0,
        "max_concurrency": CALLS,
        "max_task_retries": -1,
        "enable_task_events": False,  # events of hundreds of calls a second would fill the head's memory
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False) if actor in KEEP_LEDGERS else "DEFAULT",
    }


def _start(run: RunDir, actor: type, *arguments: object, **options: object) -> Handle:
    settings = actor_options(actor, ray.get_runtime_context().get_node_id())
    return start_restartable(actor, settings, *arguments, **options)

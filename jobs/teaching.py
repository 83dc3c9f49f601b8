"""The teachers of a run as actors: model servers, language models, roles, and the team that plays.

models that are served here -> ModelServer --+
models                      -> LanguageModel +-> RoleAgent (one a role) -> TeacherTeam -> Teaching.stream
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import ray

from actors.model_server import start_model_server
from actors.teacher import ModelMind, Played, RoleAgent, TeacherTeam, TeachingConfig
from actors.teacher_model import TeacherModel
from coa.errors import UserError
from coa.profiles import profile as find_profile
from coa.teachers.experts import scripted_mind
from coa.teachers.run import Assignment
from coa.teachers.teams import EXPERTS, members, plays_free
from coa.usage import Usage
from jobs.recipe import TeacherModelConfig
from jobs.run import Run

CALLS = 10_000
"""Calls that an actor of this module may have open at the same time: they only wait."""


class Teaching:
    """The team of a run. Scripted experts play in waves, in order; language models as they come."""

    def __init__(self, team: Any, config: TeachingConfig, *, experts: bool, actors: Mapping[str, Any]) -> None:
        """experts: whether no language model plays."""
        self._team, self._config, self._experts = team, config, experts
        self.actors = actors
        """Handles: "team", the roles, and the models under their names."""
        self.finished = Usage()
        """What runs that have ended took, of this stage so far."""

    async def play(self, assignments: Sequence[Assignment]) -> Played:
        return await self._team.play.remote(list(assignments), self.finished)

    async def stream(self, assignments: Iterable[Assignment]) -> AsyncIterator[Played]:
        """Draws assignments as there is room for them."""
        if self._experts:
            async for played in self._in_waves(assignments):
                yield played
            return
        rest = iter(assignments)
        playing: set[asyncio.Task[Played]] = set()
        try:
            while True:
                free = self._config.runs_in_flight - len(playing)
                playing |= {asyncio.ensure_future(self.play([one])) for one in islice(rest, free)}
                if not playing:
                    return
                done, playing = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in playing:
                task.cancel()

    async def _in_waves(self, assignments: Iterable[Assignment]) -> AsyncIterator[Played]:
        playing: deque[asyncio.Task[Played]] = deque()
        try:
            for wave in _chunks(assignments, self._config.wave):
                playing.append(asyncio.ensure_future(self.play(wave)))
                if len(playing) >= self._config.waves_in_flight:
                    yield await playing.popleft()
            while playing:
                yield await playing.popleft()
        finally:
            for task in playing:
                task.cancel()


@asynccontextmanager
async def language_models(run: Run, names: Iterable[str]) -> AsyncIterator[Mapping[str, Any]]:
    """Handles of the recipe's `models` of these names, for as long as the context lasts. Raises UserError for a key
    that is missing, and ModelServerDown for a server that does not come up."""
    started: list[Any] = []
    models: dict[str, Any] = {}
    try:
        for name in sorted(set(names) - {EXPERTS}):
            endpoint, server = await _served(run.config.models[name])
            started += server
            models[name] = _start(run, TeacherModel, endpoint, run.teachers / "replies" / name)
            started.append(models[name])
        for model in models.values():
            if mistake := await model.mistake.remote():
                raise UserError(mistake)
        yield models
    finally:
        for handle in reversed(started):
            ray.kill(handle)


@asynccontextmanager
async def teaching(run: Run, executors: Sequence[Any], models: Mapping[str, Any]) -> AsyncIterator[Teaching]:
    """The team that the recipe names, for as long as the context lasts; `models`: what its roles think with."""
    config, team = run.config, run.config.team
    experts = functools.partial(scripted_mind, config.world, config.experts)
    agents: dict[str, Any] = {}
    started: list[Any] = []
    try:
        for role in roles_of(run):
            name = team.model_of(role)
            agents[role] = _start(run, RoleAgent, functools.partial(ModelMind, models[name]) if name else experts)
            started.append(agents[role])
        player = _start(
            run,
            TeacherTeam,
            team,
            agents,
            executors,
            config.teaching,
            seed=config.seed,
            layouts=config.agent.layouts,
            ledger=None if plays_free(team) else run.teachers / "observations",
        )
        started.append(player)
        actors = {"team": player, **agents, **models}
        yield Teaching(player, config.teaching, experts=plays_free(team), actors=actors)
    finally:
        for handle in reversed(started):
            ray.kill(handle)


def roles_of(run: Run) -> list[str]:
    """That the team asks in the run's profiles."""
    return sorted({role for name in run.profiles for role in members(run.config.team, find_profile(name))})


def models_of_team(run: Run) -> set[str]:
    return {run.config.team.model_of(role) for role in roles_of(run)} - {EXPERTS}


def _start(run: Run, actor: type, *arguments: Any, **options: Any) -> Any:
    cpus = run.config.teaching.cpus_per_agent
    settings = {"num_cpus": cpus, "max_concurrency": CALLS, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(actor).options(**settings).remote(*arguments, **options)


async def _served(model: TeacherModelConfig) -> tuple[Any, list[Any]]:
    """Where a model is asked, and the actor that serves it there, if it is one of ours."""
    if not model.serve.model:
        return model.endpoint, []
    server = start_model_server(model.serve, restarts=0)
    url = await server.start.remote()
    return replace(model.endpoint, url=url, name=model.serve.name or model.serve.model), [server]


def _chunks(items: Iterable[Assignment], size: int) -> Iterator[list[Assignment]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk

"""Asynchronous reinforcement learning: everything runs at once, within the staleness window.

    feed ----> roll ----> (window) ----> pack ----> learners ----> publish
      ^        engines                   oldest     DeepSpeed        |
      |        play groups               first                      engines load v + 1
      +---------------- room: slots of trained and dropped groups, once v + 1 is live

feed     waits for room in the window; admits a group and starts its roll
roll     waits for the engine; a group that says nothing is dropped, a failed one is issued again
pack     waits for a batch that keeps every deadline; hands it to the learners
         (teachers may weigh its samples, or add some to imitate: `jobs.rl_teachers`)
publish  waits for new weights; brings the engines to the newest, checks them, and moves the window
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from cluster.resources import Demand, rl_demands
from coa.codec import Codec
from coa.credit import informative
from coa.errors import InfrastructureError, UserError
from coa.profiles import profile as find_profile
from coa.rollout import FailedGroup, GroupRecord
from coa.staleness import Ticket, Window
from coa.types import Tokens
from jobs.console import Console, Stage
from jobs.recipe import Recipe
from jobs.rl_book import STAGE, Book
from jobs.rl_teachers import Rescue, Scoring, models_of_rescue, rescuing, scoring
from jobs.run import Run, check_run, in_session
from jobs.teaching import server_demands

PROBE_TOKENS = 256
FAILURES = 20
"""Batches' worth of groups that may fail one after the other before the stage gives up."""


def check(config: Recipe) -> None:
    check_run(config)
    if not (Path(config.run_dir) / "checkpoints" / "sft.json").exists():
        raise UserError(f"{config.run_dir}: no fine-tuned model there yet: `coa sft` comes first")


def run(config: Recipe, console: Console) -> None:
    from jobs.engines import engine_pool
    from jobs.services import tool_executors

    async def body(run: Run) -> None:
        run.prepare()
        async with tool_executors(run) as executors, engine_pool(run, run.sft_model, executors) as pool:
            await rl(run, pool, executors)

    in_session(config, console, body, demands=[reinforcement_demands(config)])


def reinforcement_demands(config: Recipe) -> list[Demand]:
    """Everything that runs at the same time."""
    scored = config.rl.on_policy.teacher is not None
    teachers = server_demands(config, models_of_rescue(config))
    return [*rl_demands(config.placement, config.rl.learner.ranks, scored=scored), *teachers]


async def rl(run: Run, pool: Any, executors: Sequence[Any]) -> dict[str, Any]:
    """The stage; returns its result, at once if it is finished already. The engines end at the last version."""
    config = run.config.rl
    if done := run.result(STAGE):
        await pool.load(config.steps, run.model)
        return done
    from actors.buffer import Finished, Started, Stepped
    from jobs.learning import Learning
    from jobs.start import finish_model

    with run.console.stage("rl", config.steps) as stage:
        learning = Learning(
            STAGE,
            checkpoints=run.checkpoints,
            placement=run.config.placement,
            model_dir=run.sft_model,
            model=run.config.model,
            learner=config.learner,
            steps=config.steps,
            publish=True,
            probe=probe_sequences(run),
            probe_tokens=min(PROBE_TOKENS, run.config.agent.limits.max_tokens - 1),
            checkpoint_every=config.checkpoint_every,
            output=run.model,
        )
        async with scoring(run) as scorer, rescuing(run, executors) as rescue, learning:
            loop = Reinforcement(run, pool, learning, stage, scorer, rescue)
            async for event in learning.events():
                match event:
                    case Started():
                        await loop.start(event)
                    case Stepped():
                        await loop.stepped(event)
                    case Finished():
                        await loop.caught_up()
            result = await loop.result()
            loop.close()
    finish_model(run, run.model)
    await pool.load(config.steps, run.model)
    return run.finish(STAGE, result)


def probe_sequences(run: Run) -> tuple[Tokens, ...]:
    """A prompt to check the engines by before there are samples."""
    codec = Codec.load(run.sft_model)
    task = run.training_task(STAGE, 0)
    return (codec.prompt(find_profile(task.profile), task.question, instructed=run.config.agent.instructed),)


class Reinforcement:
    """The loops of the stage and what they share. The window decides; the loops act and wait for a change."""

    def __init__(
        self,
        run: Run,
        pool: Any,
        learning: Any,
        stage: Stage,
        scorer: Scoring | None = None,
        rescue: Rescue | None = None,
    ) -> None:
        self._run, self._pool, self._learning, self._stage = run, pool, learning, stage
        self._scorer, self._rescue = scorer, rescue
        self._config = run.config.rl
        self._window: Window | None = None
        self._changed = asyncio.Condition()
        self._loops: list[asyncio.Future[None]] = []
        self._publishing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failures = 0
        self._rolls: set[asyncio.Task[None]] = set()
        self._ready: dict[int, Any] = {}
        self._reissue: deque[int] = deque()
        self._next_task = 0
        self._newest: Any = None
        self._metrics: Any = None
        self.book = Book()

    # --- what the learners tell -----------------------------------------------------------------------------------

    async def start(self, event: Any) -> None:
        """The learners are at a version, for the first time or again: everything made for another one is void."""
        for task in (*self._loops, *self._rolls):
            task.cancel()
        self._rolls.clear()
        self._ready.clear()
        self._failures = 0
        self.book.played.clear()
        self.book.divergences.clear()
        self._reissue.clear()
        self._next_task = event.cursor
        self._newest = event
        if self._metrics is not None:
            self._metrics.close()
        self._metrics = self._run.metrics(STAGE, event.version + 1)
        if self._rescue is not None:
            await self._rescue.start(event.version, self._learning.beside)
        self.book.syncs += await self._pool.sync(event.version, event.weights, event.probes)
        # Groups get new numbers, and with them new seeds: what was lost is not sampled again.
        first = (1 + event.epoch) * 1_000_000 if event.epoch > 1 or event.version else 0
        self._window = Window(self._config.window, version=event.version, batches=self._config.steps, first_group=first)
        beside = self._learning.beside
        self._publishing = beside(self._publish())
        self._loops = [beside(self._feed()), beside(self._pack(event.epoch)), self._publishing]
        self.book.begin()

    async def stepped(self, event: Any) -> None:
        self._newest = event
        await self._change()
        groups = self.book.step(event)
        self._write_trajectories(event.version, groups)
        line = self.book.line(event, groups)
        if self._rescue is not None:
            line["imitated"] = self._rescue.trained(event.version)
        self._metrics.write(STAGE, event.version, **line)
        self._stage.update(
            event.version,
            **({"reward": line["reward"]} if "reward" in line else {}),
            staleness=line["staleness_mean"],
            traj_s=line["trajectories_s"],
            logprob_diff=f"{line['sync_logprob_max_diff']:.0e}",
        )

    async def caught_up(self) -> None:
        """Waits until the engines run the final version; raises what keeps them from it."""
        await self._publishing

    # --- the loops ------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        window = self._window
        assert window is not None
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: window.room() > 0)
            while window.room() > 0:
                ticket = window.admit()
                index = self._reissue.popleft() if self._reissue else self._take_task()
                roll = self._learning.beside(self._roll(window, ticket, index))
                self._rolls.add(roll)
                roll.add_done_callback(self._rolls.discard)

    def _take_task(self) -> int:
        self._next_task += 1
        return self._next_task - 1

    async def _roll(self, window: Window, ticket: Ticket, index: int) -> None:
        task = self._run.training_task(STAGE, index)
        outcome, samples = await self._pool.play(task, ticket, self._config.group, self._config.sampling)
        match outcome:
            case FailedGroup(where=where, why=why):
                self.book.dropped[where] += 1
                self._failures += 1
                if self._failures > FAILURES * self._config.window.groups_per_batch:
                    raise InfrastructureError(f"no group is finished any more: {where}: {why}")
                await asyncio.sleep(min(5.0, 0.05 * self._failures))
                self._reissue.append(index)
                window.fail(ticket.group)
            case GroupRecord():
                self._failures = 0
                self.book.played.append(outcome)
                if self._rescue is not None and window.version < self._config.steps:
                    self._rescue.offer(outcome, index, self._learning.beside)
                if self._scorer is not None:
                    divergence, samples = await self._scorer.weigh(samples)
                    self.book.divergences.append(divergence)
                if self._scorer is not None or informative(outcome.rewards):
                    self._ready[ticket.group] = samples
                    window.finish(ticket.group)
                else:
                    self.book.dropped["no variance"] += 1
                    self.book.refills += window.drop(ticket.group)
        await self._change()

    async def _pack(self, epoch: int) -> None:
        from actors.buffer import Plan

        window = self._window
        assert window is not None
        while True:
            waited = False
            async with self._changed:
                while (groups := window.take()) is None:
                    waited |= window.waits_for_old()
                    await self._changed.wait()
            self.book.deadline_waits += waited
            shares: list[list[Any]] = [[] for _ in range(self._learning.ranks)]
            for position, group in enumerate(groups):
                shares[position % self._learning.ranks].append(self._ready.pop(group))
            version = window.version - 1
            imitated = self._rescue.take(version) if self._rescue is not None else []
            for rank in range(self._learning.ranks if imitated else 0):
                shares[rank].append(ray.put(tuple(imitated[rank :: self._learning.ranks])))
            plan = Plan(version=version, shares=tuple(map(tuple, shares)), cursor=self._next_task)
            if not await self._learning.put(plan, epoch):
                return

    async def _publish(self) -> None:
        window = self._window
        assert window is not None
        while window.live < self._config.steps:
            async with self._changed:
                await self._changed.wait_for(lambda: self._newest.version > window.live)
            newest = self._newest
            try:
                self.book.syncs += await self._pool.sync(newest.version, newest.weights, newest.probes)
            except ObjectLostError:
                return  # the learners have died with these weights: they start again and tell
            window.publish(newest.version)
            await self._change()

    async def _change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- what is left behind --------------------------------------------------------------------------------------

    def _write_trajectories(self, version: int, groups: list[GroupRecord]) -> None:
        from jobs.trajectories import write_episodes

        rows = [(group.task, group.group, episode) for group in groups for episode in group.episodes]
        write_episodes(self._run.trajectories / f"rl-{version:05}.parquet", rows)

    async def result(self) -> dict[str, Any]:
        engines = [list(report.spans) for report in await self._pool.busy()]
        told = {**self.book.summary(engines), "steps": self._config.steps, "engine_restarts": self._pool.restarts}
        if self._rescue is None:
            return told
        self._rescue.write()
        return {**told, "rescue": self._rescue.told()}

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

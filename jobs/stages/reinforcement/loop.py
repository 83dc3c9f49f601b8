"""Asynchronous reinforcement learning: everything runs at once, within the staleness window.

    feed ----> roll ----> (window) ----> pack ----> learners ----> publish
      ^        engines                   oldest     DeepSpeed        |
      |        play episodes             first                      engines load v + 1
      +---------------- room: slots of trained and dropped groups, once v + 1 is live

feed     waits for room in the window; admits a group and starts its roll
roll     plays the group's episodes; a zero-variance group is dropped, a failed one's task is issued again later
         (a teacher may score its tokens: `jobs.teachers.scoring`)
pack     waits for a batch that meets every staleness deadline; ends its spare groups (`rl.window.spares`); records it,
         and deals it to the learners (with `engine.sleep_mode`, engines sleep from here until publish)
publish  waits for new weights; brings the engines to the newest, and moves the window

Each event of a group is written to the ledger at once (`coa.learning.accounts`).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from actors.learner.buffer import Finished, Started, Stepped
from actors.messages import Publication
from actors.rollout.clocks import BusyReport
from cluster.learner_group import Learners
from cluster.pool import EnginePool
from cluster.session import store_object
from coa.agent.records import GroupRecord
from coa.errors import EpisodeFailed, InfrastructureError, NotFinite
from coa.json_object import Json, JsonView
from coa.learning import faults
from coa.learning.accounts import SPARE
from coa.learning.batches import BatchStore
from coa.learning.orders import Train
from coa.learning.samples import to_samples
from coa.learning.task_stream import TaskStream
from coa.learning.window import Ticket, Window
from coa.reporting.metrics import MetricsLog
from coa.types import Sample
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.run.trajectories import write_episodes
from jobs.stages.reinforcement.elastic import ElasticEngines
from jobs.stages.reinforcement.groups import Group, first_group, play_group, shares
from jobs.stages.reinforcement.groups_in_flight import GroupsInFlight
from jobs.stages.reinforcement.held_out import HeldOut
from jobs.stages.reinforcement.ledger import AttemptLedger
from jobs.stages.reinforcement.rl_stats import (
    NO_VARIANCE,
    STAGE,
    RlStats,
    console_fields,
    engines_in,
    prefill_of,
    tolerance_of,
)
from jobs.stages.reinforcement.times import LoopTimes
from jobs.stages.reinforcement.waits import LoopCounts, Waits, alike
from jobs.teachers.fallback import TeacherFallback, TeamState
from jobs.teachers.scoring import TeacherScoring

FAILURES_S = 1800.0
"""Maximum seconds for which groups may fail without a finished one, before the stage gives up."""
SAID_S = 10.0
"""Seconds for which learners wait for a batch before the terminal says why."""
LOOK_EVERY_S = 5.0
"""Seconds between two looks at what is waited for."""
LONGEST_PAUSE_S = 60.0
"""Maximum seconds for which a failed group's slot stays empty; the pause grows with the failures in a row."""
REPORT_S = 5.0
"""Maximum seconds for which a step waits for the engines' reports of how they spent their time."""


def publication(event: Started | Stepped) -> Publication:
    assert event.weights is not None, "the stage's learners publish them"
    return Publication(event.version, event.weights, event.probes)


class Reinforcement:
    """The loops of the stage and their shared state. The window decides; the loops act and wait for a change."""

    def __init__(
        self,
        run: RunDir,
        pool: EnginePool,
        learning: Learners,
        stage: Stage,
        scorer: TeacherScoring | None = None,
        fallback: TeacherFallback | None = None,
        elastic: ElasticEngines | None = None,
        put: Callable[[Any], Any] = store_object,
    ) -> None:
        """put: stores a rank's share, and returns a reference to it."""
        self._run, self._pool, self._learning, self._stage, self._put = run, pool, learning, stage, put
        self._scorer, self._fallback, self._elastic = scorer, fallback, elastic
        self._config = run.config.rl
        self._algorithm = self._config.algorithm_of()
        self._window: Window | None = None
        self._stream = TaskStream()
        self._changed = asyncio.Condition()
        self._loops: list[asyncio.Future[None]] = []
        self._publishing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failures = 0
        """Number of groups that failed since the last finished one."""
        self._failing_since = 0.0
        """When the first of them failed, by the event loop's clock."""
        self._groups_in_flight = GroupsInFlight()
        self._waits = Waits()
        self._packing_since: float | None = None
        """When `_pack` began to wait for a batch, by the event loop's clock; None while it does not."""
        self._newest: Started | Stepped | None = None
        self._metrics: MetricsLog | None = None
        self._held_out = HeldOut(run, pool, learning.spawn, self._record)
        self.stats, self.times = RlStats(), LoopTimes(takes_turns=run.config.engine.sleep_mode)
        self._reports: list[BusyReport] = []
        self.ledger = AttemptLedger(run.folder)
        self._batches = BatchStore(run.batches)

    # --- events of the learners -----------------------------------------------------------------------------------

    async def start(self, event: Started) -> None:
        """The learners are at a version, for the first time or again: everything made for another one is void."""
        for task in self._loops:
            task.cancel()
        self._groups_in_flight.clear()
        self._failures = 0
        self.stats.families.void()
        self.stats.played.clear()
        self.stats.divergences.clear()
        self._stream = TaskStream(event.cursor, apart=self._config.window.groups_per_batch)
        if self._newest is None:
            self._run.console.say(f"{STAGE}: {event.parity}")
        self._newest = event
        if self._metrics is not None:
            self._metrics.close()
        self._metrics = self._run.metrics(STAGE, event.version + 1)
        if self._fallback is not None:
            await self._fallback.start(event.version, self._learning.spawn)
        self._stage.update(event.version)
        self._stage.phase("loading the learners' weights into the engines")
        self.stats.sync(await self._pool.sync(publication(event)))
        self._stage.phase("waiting for the first group")
        self._waits = Waits()
        begun = self._run.count_start(STAGE)
        first = first_group(begun, event.cursor)
        self._window = Window(self._config.window, version=event.version, batches=self._config.steps, first_group=first)
        self.ledger.start(begun, event.version, event.cursor)
        spawn = self._learning.spawn
        self._publishing = spawn(self._publish(self._window))
        self._loops = [
            spawn(self._feed(self._window)),
            spawn(self._pack(self._window, event)),
            self._publishing,
            spawn(self._watch(self._window)),
        ]
        if self._elastic is not None:
            self._loops.append(spawn(self._elastic.watch(self._window, lambda: self._at.version)))
        self._held_out.start(event.version)
        self.stats.begin()
        self.times.begin(await self._engine_reports(), event.spent)

    async def stepped(self, event: Stepped) -> None:
        assert self._window is not None
        self._window.trained(event.version)
        self._newest = event
        await self._change()
        self.stats.suspect(faults.of_step(event.report, tolerance_of(self._run.config)))
        for sentence in faults.of_updates(event.report):
            self._run.console.say(f"rl: step {event.version}: {sentence}")
        groups = self.stats.step(event)
        self._write_trajectories(event.version, groups)
        found = self._pool.occupancy
        engines = {**engines_in(found), "engines_up": self._pool.up, **self.stats.prefill(found.cache)}
        spent = self.times.step(await self._engine_reports(), event.spent)
        record = {**self.stats.record(event, groups), **engines, **spent}
        if self._fallback is not None:
            record["imitated"] = self._fallback.trained(event.version)
            record["teacher_down"] = int(self._fallback.state is TeamState.down)
        self._record(event.version, record)
        self._stage.update(event.version, **console_fields(record), slowest=self.times.slowest())
        if event.version == self._config.steps:
            self._stage.phase("writing the model")
        self.stats.skipping.step(event.report)

    async def caught_up(self, event: Finished) -> None:
        """Waits until the engines run the final version; raises the error that prevents this."""
        self.times.finish(event.spent)
        self._stage.phase("loading the last weights into the engines")
        await self._publishing
        await self._held_out.finish()

    # --- the loops ------------------------------------------------------------------------------------------------

    async def _feed(self, window: Window) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: window.room() > 0)
            while window.room() > 0:
                index = self._stream.take(window.room_to_end())
                ticket = window.admit()
                self.ledger.issue(ticket, index)
                roll = self._learning.spawn(self._roll(window, ticket, index))
                self._groups_in_flight.begin(ticket.group, index, roll)

    async def _roll(self, window: Window, ticket: Ticket, index: int) -> None:
        task = self._run.training_task(STAGE, index)
        self.stats.families.issue(ticket.group, task.family)
        self._tell_news(window)
        try:
            group = await play_group(self._pool, task, ticket, index, self._config, self._run.config.agent)
            samples = await self._samples_of(group)
        except EpisodeFailed as failure:
            await self._failed(window, ticket, index, failure)
        else:
            self._on_group(window, group, samples)
        await self._change()

    async def _samples_of(self, group: Group) -> Sequence[Sample] | None:
        """A group's samples; None if nothing can be learnt from it. Raises EpisodeFailed if a teacher is to score them
        and can't."""
        if not self._algorithm.keep(group.episodes):
            return None
        masked = self._config.mask_truncated
        samples = to_samples(group.episodes, self._algorithm, group.number, mask_truncated=masked)
        self.stats.suspect(group.faults(samples, self._algorithm, mask_truncated=masked))
        if self._scorer is None:
            return samples
        try:
            divergence, samples = await self._scorer.weigh(samples)
        except NotFinite as error:
            raise group.failed(error) from error
        self.stats.divergences.append(divergence)
        return samples

    async def _failed(self, window: Window, ticket: Ticket, index: int, failure: EpisodeFailed) -> None:
        """Records a failed group and frees its slot.

        If more groups fail in a row than a batch has, something that all groups need is down, such as a search service:
        the stage waits for it, and these failures do not count as tries of their tasks.
        """
        now = asyncio.get_running_loop().time()
        if not self._failures:
            self._failing_since = now
        self._failures += 1
        outage = self._failures > self._config.window.groups_per_batch
        if outage and now - self._failing_since > FAILURES_S:
            minutes = FAILURES_S / 60
            raise InfrastructureError(f"no group was finished for {minutes:.0f} minutes: {failure}") from failure
        self._groups_in_flight.settle(ticket.group)
        again = self._stream.fail(index, counted=not outage)
        self.ledger.fail(ticket, failure, again=again)
        self.stats.fail(failure, again=again)
        self._waits.fail(str(failure))
        self.stats.families.lose(ticket.group, str(failure))
        self._tell_news(window)
        await asyncio.sleep(min(LONGEST_PAUSE_S, 0.05 * self._failures))
        window.fail(ticket.group)

    def _on_group(self, window: Window, group: Group, samples: Sequence[Sample] | None) -> None:
        self._failures = 0
        self._waits.play()
        reason = "" if samples is not None else alike(group.episodes)
        self.stats.play(group.number, reason)
        self._tell_news(window)
        record = group.record()
        if self._fallback is not None and window.version < self._config.steps:
            self._fallback.offer(record, group.index, self._learning.spawn)
        if samples is not None:
            self._groups_in_flight.wait(group.number, samples)
            window.finish(group.number)
            self.ledger.play(record)
        else:
            self._groups_in_flight.settle(group.number)
            self._stream.done(group.index)
            self.ledger.drop(record, NO_VARIANCE)
            self.stats.dropped[NO_VARIANCE] += 1
            self._waits.drop(reason)
            self.stats.refills += window.drop(group.number)
        self.stats.played.append(record)

    async def _pack(self, window: Window, started: Started) -> None:
        while True:
            waited, self._packing_since = False, asyncio.get_running_loop().time()
            async with self._changed:
                while (groups := window.take()) is None:
                    waited |= window.waits_for_old()
                    await self._changed.wait()
            self.stats.deadline_waits += waited
            self._packing_since = None
            self._waits = Waits()
            if self._stage.doing:
                self._stage.phase("" if self._stage.fields else "the first step")
            samples: list[Sample] = []
            for number in groups:
                index, found = self._groups_in_flight.take(number)
                self._stream.done(index)
                samples.extend(found)
            if spares := self._groups_in_flight.stop(window.stop_spares(), self._stream, self.ledger):
                self.stats.dropped[SPARE] += len(spares)
                for number in spares:
                    self.stats.families.lose(number, "stopped, since its batch was complete without it")
                self._tell_news(window)
            version = window.version - 1
            if self._fallback is not None:
                samples.extend(self._fallback.take(version))
            updates, share = self._config.learner.updates_per_batch, started.shares_prefixes
            dealt = shares(samples, self._learning.replicas, updates, share=share)
            references = tuple((self._put(share),) for share in dealt)
            order = Train(version=version, shares=references, cursor=self._stream.cursor())
            self.ledger.lease(version, groups)
            if self._config.keep_batches:
                await asyncio.to_thread(self._batches.write, version + 1, dealt)
            if self._run.config.engine.sleep_mode:
                await self._held_out.finish()  # its episodes belong to this version
                await self._pool.sleep()
            if not await self._learning.put(order, started.epoch):
                return

    async def _watch(self, window: Window) -> None:
        """Shows what the learners wait for, once they wait for long."""
        now = asyncio.get_running_loop().time
        while window.version < self._config.steps:
            await asyncio.sleep(LOOK_EVERY_S)
            since = self._packing_since
            idle = window.version <= self._at.version
            if since is not None and idle and now() - since >= SAID_S:
                found = self._pool.occupancy
                counts = LoopCounts(
                    serving=found.serving,
                    joining=found.joining,
                    ready=window.ready,
                    running=window.running,
                    batch=self._config.window.groups_per_batch,
                )
                self._stage.phase(*self._waits.describe(counts))

    async def _publish(self, window: Window) -> None:
        while window.live < self._config.steps:
            async with self._changed:
                await self._changed.wait_for(lambda: self._at.version > window.live)
            newest = self._at
            # Engines that fail to load it do not serve until they have loaded this version or a newer one.
            began = asyncio.get_running_loop().time()
            self.stats.sync(await self._pool.sync(publication(newest)))
            self.stats.sync_s.append(asyncio.get_running_loop().time() - began)
            window.publish(newest.version)
            self._held_out.reached(newest.version)
            await self._change()

    def _tell_news(self, window: Window) -> None:
        for sentence in self.stats.news(window.version):
            self._run.console.say(f"rl: {sentence}")

    async def _change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @property
    def _at(self) -> Started | Stepped:
        """The learners' newest event with weights."""
        assert self._newest is not None, "the loops run between two starts"
        return self._newest

    # --- results --------------------------------------------------------------------------------------------------

    def _record(self, step: int, row: JsonView) -> None:
        assert self._metrics is not None
        self._metrics.write(STAGE, step, **row)

    def _write_trajectories(self, version: int, groups: list[GroupRecord]) -> None:
        rows = [(group.task, group.group, episode) for group in groups for episode in group.episodes]
        write_episodes(self._run.trajectories / f"rl-{version:05}.parquet", rows)

    async def _engine_reports(self) -> list[BusyReport]:
        """The current report of each slot; the last reports of all slots if one does not answer in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORT_S):
                self._reports = await self._pool.busy()
        return self._reports

    async def result(self) -> Json:
        reports = await self._engine_reports()
        found = {
            **self.stats.summary([list(report.spans) for report in reports]),
            **self.times.whole(reports),
            **prefill_of(self._pool.occupancy.cache),
            "steps": self._config.steps,
            "engine_restarts": self._pool.restarts,
            "episodes_moved": self._pool.moves,
            "calls_retried": self._pool.retried,
        }
        if self._fallback is None:
            return found
        self._fallback.write()
        return {**found, "teacher_fallback": self._fallback.stats()}

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

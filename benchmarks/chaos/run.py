"""The loop of a chaos run: observes the run, strikes when the course says so, and records each recovery.

    look ──► course ──► strike | recovered        every second, as long as a round trains
      ▲                    │
      └──── the driver is kept up; lost nodes are replaced

A round is one RL stage of the recipe; if it ends before all strikes are made, another round begins.
"""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import psutil

from benchmarks.chaos.course import Course, Recovered, Seen, Struck, View
from benchmarks.chaos.findings import Journal
from benchmarks.chaos.nodes import NODES, Nodes
from benchmarks.chaos.plan import STOP_S, WAITING, Kind, Part, Strike
from benchmarks.chaos.processes import Below, send
from benchmarks.chaos.rounds import ENGINES, EXECUTORS, RANKS, Round
from coa.errors import ClusterDown, InfrastructureError
from jobs.run.console import Stage

LOOK_S = 1.0
LAST_STEPS = 2
"""Number of versions before the last one at which no strike is made."""
GIVEN_UP_S = 900.0
"""Maximum seconds between two steps, and before the first one."""
REPLACED_S = 3.0
"""Seconds after which a lost node is replaced."""
WANTED = {
    Part.engine: ENGINES,
    Part.core: ENGINES,
    Part.tools: EXECUTORS,
    Part.teacher: 1,
    Part.buffer: 1,
    Part.rank: RANKS,
    **dict.fromkeys(WAITING, 1),
    Part.node: NODES,
    Part.driver: 1,
}


@dataclass
class Chaos:
    nodes: Nodes
    journal: Journal
    say: Callable[[str], None]
    deadline: float = math.inf
    """After which no further strike is made."""
    clock: Callable[[], float] = time.monotonic
    """Clock of all times here; the wall clock may jump."""
    _below: Below = field(default_factory=Below)
    _found: dict[str, psutil.Process] = field(default_factory=dict)
    """The processes of the last look, by key."""
    _stopped: list[tuple[float, psutil.Process]] = field(default_factory=list)
    _lost_at: float | None = None

    def play(self, number: int, round_: Round, strikes: tuple[Strike, ...], stage: Stage) -> tuple[Strike, ...]:
        """Plays a round to its end; returns the strikes that are left. Raises InfrastructureError if the run does not
        recover."""
        assert stage.total is not None
        course = Course(strikes, WANTED, last_step=stage.total - 1 - LAST_STEPS)
        restarts, moved = round_.restarts, self.clock()
        if round_.driver is None:
            round_.start()
        while not round_.keep_up(struck=course.struck is not None):
            now = self.clock()
            self._go_on(now)
            view = self._look(now, round_)
            if now > self.deadline and course.struck is None:
                course = replace(course, strikes=())
            course, act = course.advance(now, view)
            match act:
                case Struck():
                    restarts = round_.restarts
                    self._strike(act, round_, now)
                    self.say(f"{act.strike.number + 1:>3}  {act.strike.kind}: {act.victim.key}")
                case Recovered():
                    self._recovered(act, number, round_, round_.restarts - restarts)
            stage.update(view.step.version if view.step else 0)
            stage.phase(course.doing(now, view))
            moved = view.step.at if view.step and view.step.at > moved else now if view.over else moved
            if now - moved > GIVEN_UP_S:
                raise InfrastructureError(f"no step for {GIVEN_UP_S:.0f} s: see {round_.folder}")
            time.sleep(LOOK_S)
        return course.strikes

    def _recovered(self, found: Recovered, number: int, round_: Round, restarts: int) -> None:
        alarms, round_.alarms = sum(round_.alarms.values()), dict.fromkeys(round_.alarms, 0)
        hit = self.journal.recovered(found, restarts=restarts, alarms=alarms, staleness=round_.staleness, round_=number)
        again = f", the driver was started again {restarts} times" if restarts else ""
        end = "" if hit.stepped else ", at the end of the stage"
        self.say(f"     recovered in {hit.seconds:.0f} s, all processes back in {hit.whole_s:.0f} s{again}{end}")

    # --- looks and signals --------------------------------------------------------------------------------------------

    def _look(self, now: float, round_: Round) -> View:
        self._found.clear()
        seen: list[Seen] = []
        for raylet in (self.nodes.head(), *self.nodes.raylets()):
            parts = dict(self._below.look_below(now, raylet))
            busy = any(one.busy for one in parts)
            self._found |= {one.key: process for one, process in parts.items()}
            seen += parts
            if raylet != self.nodes.head():
                seen.append(Seen(str(raylet), Part.node, busy))
        if round_.driver is not None:
            for one, process in self._below.look_at(now, round_.driver, Part.driver):
                self._found[one.key] = process
                seen.append(one)
        self._below.looked()
        return View(tuple(seen), round_.step(now), round_.trained)

    def _strike(self, struck: Struck, round_: Round, now: float) -> None:
        match struck.strike.kind:
            case Kind.node:
                self.nodes.kill(int(struck.victim.key))
                self._lost_at = now
            case Kind.driver:
                round_.kill_driver()
            case kind:
                process = self._found[struck.victim.key]
                send(process, signal.SIGSTOP if kind.stops else signal.SIGKILL)
                if kind.stops:
                    self._stopped.append((now + STOP_S, process))

    def _go_on(self, now: float) -> None:
        """Resumes stopped processes and replaces lost nodes once their time has come."""
        for one in [one for one in self._stopped if one[0] <= now]:
            self._stopped.remove(one)
            send(one[1], signal.SIGCONT)
        if self._lost_at is not None and now - self._lost_at >= REPLACED_S:
            try:
                self.nodes.replace_lost()
                self._lost_at = None
            except ClusterDown:  # a machine that restarts engines and learners may have no time for a node, too
                self._lost_at = self.clock()

"""When a run is struck and when it has recovered, on a run that is made up and a clock that is set."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from benchmarks.chaos.course import IDLE_S, Course, Recovered, Seen, Step, Struck, View
from benchmarks.chaos.plan import PAUSE_S, STOP_S, WAITING, Kind, Part, Strike, draw

WANTED = {Part.engine: 2, Part.core: 2, Part.rank: 2, Part.buffer: 1, Part.driver: 1, Part.node: 2}
WANTED |= {Part.tools: 2, Part.teacher: 1, **dict.fromkeys(WAITING, 1)}
BACK_S, SERVES_S, STEP_S = 20.0, 15.0, 5.0
"""A killed process is back so late; an engine serves so much later; a step takes so long."""


@dataclass
class FakeRun:
    """Parts that come back by themselves, and a step every STEP_S; a look a second."""

    now: float = 1000.0
    processes: dict[str, Part] = field(default_factory=dict)
    gone: list[tuple[float, str, Part]] = field(default_factory=list)
    """When a process is there again, under which key."""
    serves: dict[str, float] = field(default_factory=dict)
    """From when on an engine serves."""
    step: Step | None = None
    idle: set[Part] = field(default_factory=set)
    born: int = 0

    def __post_init__(self) -> None:
        for part, count in WANTED.items():
            for _ in range(count):
                self.processes[self.key()] = part

    def key(self) -> str:
        self.born += 1
        return f"p{self.born}"

    def look(self) -> View:
        self.now += 1.0
        for at, key, part in [one for one in self.gone if one[0] <= self.now]:
            self.gone.remove((at, key, part))
            self.processes[key] = part
            self.serves[key] = at + SERVES_S
        if self.step is None or self.now - self.step.at >= STEP_S:
            engines = [key for key, part in self.processes.items() if part is Part.engine]
            up = sum(self.serves.get(key, 0.0) <= self.now for key in engines)
            self.step = Step(self.step.version + 1 if self.step else 1, self.now, up)
        seen = tuple(Seen(key, part, part not in self.idle) for key, part in self.processes.items())
        return View(seen, self.step)

    def strike(self, struck: Struck) -> None:
        part = self.processes.pop(struck.victim.key)
        stops = struck.strike.kind.stops
        key = struck.victim.key if stops else self.key()
        self.gone.append((self.now + (STOP_S if stops else BACK_S), key, part))


def course_of(*kinds: Kind, pause_s: float = 10.0, last_step: int = 10_000) -> Course:
    strikes = tuple(Strike(number, kind, pause_s, 0.5) for number, kind in enumerate(kinds))
    return Course(strikes, WANTED, last_step=last_step)


def play(course: Course, run: FakeRun, seconds: float) -> tuple[Course, list[tuple[float, Struck | Recovered]]]:
    """What was done and found, each with its time."""
    told: list[tuple[float, Struck | Recovered]] = []
    until = run.now + seconds
    while run.now < until and not course.done:
        view = run.look()
        course, act = course.advance(run.now, view)
        if act is not None:
            told.append((run.now, act))
        if isinstance(act, Struck):
            run.strike(act)
    return course, told


def test_strikes_hit_every_kind_equally_often_and_are_equal_for_equal_seeds() -> None:
    three = 3 * len(Kind)
    drawn = draw(three, 7)
    assert Counter(strike.kind for strike in drawn) == dict.fromkeys(Kind, 3)
    assert drawn == draw(three, 7)
    assert [one.kind for one in drawn] != [one.kind for one in draw(three, 8)]
    assert all(PAUSE_S[0] <= strike.pause_s <= PAUSE_S[1] for strike in drawn)
    assert min(Counter(strike.kind for strike in draw(three + 4, 0)).values()) == 3


def test_a_course_strikes_all_and_waits_for_each_recovery_and_its_pause() -> None:
    strikes = draw(20, 0)
    course, told = play(Course(strikes, WANTED, last_step=10_000), FakeRun(), 10_000)
    assert course.done
    acts = [act for _, act in told]
    assert [type(act) for act in acts] == [Struck, Recovered] * 20
    assert tuple(act.strike for act in acts if isinstance(act, Struck)) == strikes
    for (recovered_at, _), (struck_at, struck) in zip(told[1::2], told[2::2], strict=False):
        assert isinstance(struck, Struck)
        assert struck.strike.pause_s <= struck_at - recovered_at <= struck.strike.pause_s + 2


def test_who_watches_is_told_what_is_waited_for() -> None:
    course, run = course_of(Kind.core, Kind.rank), FakeRun()
    assert course.doing(run.now, View()) == "starting"
    assert course.doing(run.now, run.look()) == "2 kills left"
    strike = course.strikes[0]
    struck = replace(course, struck=Struck(strike, Seen("p1", strike.kind.part, busy=True)), struck_at=run.now - 21.4)
    assert struck.doing(run.now, run.look()) == f"recovering from {strike.kind}, 21 s"
    assert struck.doing(run.now, View(over=True)) == "evaluating"


def test_an_engine_has_recovered_with_the_step_that_says_it_serves() -> None:
    course, told = play(course_of(Kind.engine), FakeRun(), 500)
    [_, (_, found)] = told
    assert isinstance(found, Recovered)
    assert course.done
    assert found.stepped
    assert found.whole_s == BACK_S
    assert BACK_S + SERVES_S <= found.seconds <= BACK_S + SERVES_S + STEP_S


def test_a_step_of_before_it_was_whole_shows_nothing() -> None:
    run = FakeRun()
    _, [_, (_, found)] = play(course_of(Kind.rank), run, 500)
    assert isinstance(found, Recovered)
    assert BACK_S < found.seconds <= BACK_S + STEP_S + 1


def test_what_is_stopped_has_recovered_by_going_on() -> None:
    _, [(_, struck), (_, found)] = play(course_of(Kind.stop_rank), FakeRun(), 500)
    assert isinstance(struck, Struck)
    assert isinstance(found, Recovered)
    assert found.victim == struck.victim
    assert found.whole_s == STOP_S


def test_a_killed_process_that_is_still_seen_is_no_recovery() -> None:
    run, course = FakeRun(), course_of(Kind.buffer, pause_s=0.0)
    struck = None
    while not isinstance(struck, Struck):
        course, struck = course.advance(run.now, run.look())
    for _ in range(50):
        course, act = course.advance(run.now, run.look())
        assert act is None


def test_an_idle_victim_is_waited_for_but_not_for_ever() -> None:
    run = FakeRun(idle={Part.teacher})
    course, told = play(course_of(Kind.teacher, pause_s=5.0), run, 5 + IDLE_S - 5)
    assert told == []
    run.idle.clear()
    course, [(_, struck), _] = play(course, run, 100)
    assert isinstance(struck, Struck)
    assert struck.victim.busy
    run = FakeRun(idle={Part.teacher})
    _, [(at, struck), _] = play(course_of(Kind.teacher, pause_s=5.0), run, 500)
    assert isinstance(struck, Struck)
    assert not struck.victim.busy
    assert at - 1000.0 >= 5 + IDLE_S


def test_strikes_whose_victims_are_idle_let_the_others_go_first() -> None:
    run = FakeRun(idle={Part.teacher, Part.buffer})
    course, told = play(course_of(Kind.teacher, Kind.core, Kind.buffer, Kind.rank), run, 150)
    assert [act.strike.kind for _, act in told if isinstance(act, Struck)] == [Kind.core, Kind.rank]
    assert [strike.kind for strike in course.strikes] == [Kind.teacher, Kind.buffer]
    run.idle = {Part.teacher}
    course, [(_, struck), _] = play(course, run, 50)
    assert isinstance(struck, Struck)
    assert (struck.strike.number, struck.victim.busy) == (2, True)
    assert [strike.kind for strike in course.strikes] == [Kind.teacher]


def test_nothing_is_struck_before_the_first_step_nor_near_the_end() -> None:
    run, course = FakeRun(), course_of(Kind.core, pause_s=0.0, last_step=3)
    view = run.look()
    for _ in range(20):
        course, act = course.advance(run.now, replace(view, step=None))
        assert act is None
    for version in (4, 5):
        for _ in range(20):
            course, act = course.advance(run.now, replace(view, step=Step(version, run.now, 2)))
            assert act is None
    assert len(course.strikes) == 1


def test_the_end_of_the_stage_ends_the_wait_and_says_so() -> None:
    run, course = FakeRun(), course_of(Kind.rank, Kind.core, pause_s=0.0)
    act = None
    while not isinstance(act, Struck):
        course, act = course.advance(run.now, run.look())
    course, act = course.advance(run.now + 3, replace(run.look(), over=True))
    assert isinstance(act, Recovered)
    assert not act.stepped
    course, act = course.advance(run.now + 4, replace(run.look(), over=True))
    assert act is None
    assert [strike.kind for strike in course.strikes] == [Kind.core]


@pytest.mark.parametrize("pick", [0.0, 0.5, 0.999])
def test_the_victim_is_one_of_the_busy_ones(pick: float) -> None:
    assert Strike(0, Kind.core, 5.0, pick).choose(2) == (0 if pick < 0.5 else 1)

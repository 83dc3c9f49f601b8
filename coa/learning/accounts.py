"""The accounts of RL: every attempt at a task that was issued, and its outcome.

    issue ──► playing ──play──► waiting ──lease──► leased to a batch ──(a later checkpoint)──► trained
                 └─────drop: a reason, and whether the task is issued again

An attempt is a group: the play of one task of the stream, under a ticket. The lines of a ledger are read in their
order. A `start` says from which checkpoint the learners continued: the batches before it count as trained, and
everything later is undone. Those attempts are dropped as `rolled_back`, and their tasks are issued again. Between two
starts, `acknowledge` takes the newest checkpoint from elsewhere.

    {"what": "start", "start": 0, "version": 0, "cursor": [0]}
    {"what": "issue", "group": 0, "task": 0, "version": 0}
    {"what": "play", "group": 0, "tokens": 83, "calls": 2}          maxima over its episodes
    {"what": "lease", "version": 0, "groups": [0]}                   on disk before the batch is handed out
    {"what": "finish", "version": 1}

Lines that contradict each other are faults; accounts without faults balance. Pure: no files, no clock.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coa.json_object import JsonView

K = TypeVar("K")

Line = JsonView

PLAYING, WAITING, LEASED, TRAINED = "playing", "waiting", "leased", "trained"
OPEN = (PLAYING, WAITING, LEASED)
"""States of an unfinished attempt; leased: in a batch that no known checkpoint includes yet."""
ROLLED_BACK = "rolled_back"
SPARE = "spare"
"""Why a group was dropped that its batch did not need."""


@dataclass(slots=True)
class Attempt:
    task: int
    """Index in the stage's stream."""
    group: int
    version: int
    """Version of its ticket."""
    start: int
    """Number of the learners' start under which it was issued."""
    state: str = PLAYING
    """PLAYING, WAITING, LEASED, or the reason for which it was dropped."""
    batch: int | None = None
    """Version of the batch that it is leased to."""
    tokens: int | None = None
    """Of its longest episode, prompt included. One that did not come to an end counts with its task's next attempt that
    did, or, if it failed, with what it had by then, if that is more. None: not known."""
    calls: int | None = None
    """Maximum tool calls of an episode, counted in the same way. None if unknown."""
    again: bool = False
    """Whether its task is issued again."""
    settled: int | None = None
    """Number of the line that ended its task: leased, or dropped for good."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Position in the stream of tasks when a batch was formed; a checkpoint after the batch continues there."""

    line: int
    cursor: tuple[int, ...]
    """See `coa.learning.task_stream.Cursor`."""


@dataclass
class Accounts:
    """Folds the lines of a ledger; one method per kind of line."""

    attempts: dict[int, Attempt] = field(default_factory=dict)
    """Attempts by group number, in the order of issue."""
    faults: list[str] = field(default_factory=list)
    """Contradictions between lines."""
    starts: int = 0
    acknowledged: int = 0
    """Batches below this version are included in a saved checkpoint."""
    finished: bool = False
    _line: int = 0
    _start: int = 0
    _next: int = 0
    """Index of the next new task."""
    _open: set[int] = field(default_factory=set)
    """Tasks that were issued and are not settled."""
    _under_way: dict[int, int] = field(default_factory=dict)
    """The group of each of them that is being played, or waits for its batch."""
    _cut_off: dict[int, list[Attempt]] = field(default_factory=dict)
    """By task, attempts that did not come to an end and whose task is issued again: their whole sizes are not known
    yet."""
    _version: int = 0
    """Version of the next batch."""
    _marks: dict[int, Mark] = field(default_factory=dict)
    """Marks by the version that their batch produced; the first start's by its version."""

    def add(self, line: Line) -> None:
        """Adds a line; raises KeyError or TypeError if it is not a line of a ledger."""
        self._line += 1
        taken: dict[str, Callable[[Line], None]] = {
            "start": self._begin,
            "issue": self._issue,
            "play": self._play,
            "drop": self._drop,
            "lease": self._lease,
            "finish": self._finish,
        }
        taken[line["what"]](line)

    def acknowledge(self, version: int) -> None:
        """A checkpoint of this version is kept, so the batches before it are trained. A `start` line that goes back
        further holds instead: that checkpoint was found damaged."""
        if version > self._version:
            self._fault(f"a checkpoint is at version {version}, and batches end at {self._version}")
        self.acknowledged = max(self.acknowledged, version)

    def state(self, attempt: Attempt) -> str:
        """One of OPEN, TRAINED, or the reason for which it was dropped."""
        if attempt.batch is not None and attempt.state == LEASED and attempt.batch < self.acknowledged:
            return TRAINED
        return attempt.state

    def cursor(self) -> list[int]:
        """The cursor that the stage's `TaskStream` has after these lines."""
        return [self._next, *sorted(self._open)]

    # --- lines --------------------------------------------------------------------------------------------------------

    def _begin(self, line: Line) -> None:
        version, cursor = line["version"], tuple(normal(line["cursor"]))
        if not self.starts:
            self._marks[version] = Mark(self._line, cursor)
        mark = self._marks.get(version)
        if mark is None:
            self._fault(f"start {line['start']} is at version {version}, which no batch made")
            mark = Mark(self._line, cursor)
        elif mark.cursor != cursor:
            self._fault(f"start {line['start']} at version {version} has another cursor: {gap(mark, cursor)}")
        self._roll_back(mark.line)
        self._marks = {made: old for made, old in self._marks.items() if made <= version}
        self._marks[version] = mark
        self.starts, self._start = self.starts + 1, line["start"]
        self.acknowledged = self._version = version
        self._next, *flying = cursor
        self._open, self._under_way, self.finished = set(flying), {}, False

    def _roll_back(self, since: int) -> None:
        """Undoes everything that was not settled at line `since`, except failures whose task is issued again anyway."""
        for attempt in self.attempts.values():
            unfinished = attempt.state in (PLAYING, WAITING)
            if attempt.state == PLAYING:
                self._cut_off.setdefault(attempt.task, []).append(attempt)
            if unfinished or (attempt.settled is not None and attempt.settled > since):
                attempt.state, attempt.settled, attempt.batch, attempt.again = ROLLED_BACK, None, None, True

    def _issue(self, line: Line) -> None:
        group, task = line["group"], line["task"]
        if group in self.attempts:
            return self._fault(f"group {group} is issued a second time, with task {task}")
        if task > self._next:
            self._fault(f"tasks {self._next} to {task - 1} are skipped: group {group} has task {task}")
        elif task in self._under_way:
            self._fault(f"task {task} is played twice at a time, as groups {self._under_way[task]} and {group}")
        elif task < self._next and task not in self._open:
            self._fault(f"task {task} is issued again, as group {group}, though it is finished")
        self._next = max(self._next, task + 1)
        self._open.add(task)
        self._under_way[task] = group
        self.attempts[group] = Attempt(task, group, line["version"], self._start)

    def _play(self, line: Line) -> None:
        if attempt := self._attempt_of(line["group"], PLAYING):
            attempt.state, attempt.tokens, attempt.calls = WAITING, line["tokens"], line["calls"]
            self._size_cut_off(attempt)

    def _drop(self, line: Line) -> None:
        """A group that failed, or that was played and says nothing; or one that is not needed, played or not."""
        states = (PLAYING, WAITING) if line["reason"] == SPARE else (PLAYING,)
        if attempt := self._attempt_of(line["group"], *states):
            playing = attempt.state == PLAYING
            attempt.state = line["reason"]
            attempt.tokens, attempt.calls = line.get("tokens", attempt.tokens), line.get("calls", attempt.calls)
            attempt.again = line["again"]
            self._under_way.pop(attempt.task, None)
            if attempt.again and playing:
                self._cut_off.setdefault(attempt.task, []).append(attempt)
            if not attempt.again:
                self._settle(attempt)
                self._size_cut_off(attempt)

    def _lease(self, line: Line) -> None:
        version = line["version"]
        if version != self._version:
            self._fault(f"a batch of version {version} is handed out, expected version {self._version}")
        for group in line["groups"]:
            if attempt := self._attempt_of(group, WAITING):
                attempt.state, attempt.batch = LEASED, version
                self._under_way.pop(attempt.task, None)
                self._settle(attempt)
        self._version = version + 1
        self._marks[version + 1] = Mark(self._line, tuple(self.cursor()))

    def _finish(self, line: Line) -> None:
        if line["version"] != self._version:
            self._fault(f"the stage is finished at version {line['version']}, and batches end at {self._version}")
        self.acknowledged, self.finished = line["version"], True
        for attempt in self.attempts.values():
            if self.state(attempt) in OPEN:
                self._fault(f"group {attempt.group}, task {attempt.task}, is unfinished: {attempt.state}")
        for task in sorted(self._open - self._under_way.keys()):
            self._fault(f"task {task} is open: it was to be issued again, and was not")

    # --- attempts and balance -----------------------------------------------------------------------------------------

    def _size_cut_off(self, played: Attempt) -> None:
        """The next attempt at their task tells most about how long they would have become."""
        for attempt in self._cut_off.pop(played.task, []):
            attempt.tokens = _larger(attempt.tokens, played.tokens)
            attempt.calls = _larger(attempt.calls, played.calls)

    def _attempt_of(self, group: int, *states: str) -> Attempt | None:
        attempt = self.attempts.get(group)
        if attempt is None:
            self._fault(f"group {group} was never issued")
        elif attempt.state not in states:
            self._fault(f"group {group}, task {attempt.task}, is {attempt.state}, not {' or '.join(states)}")
            return None
        return attempt

    def _settle(self, attempt: Attempt) -> None:
        attempt.settled = self._line
        self._open.discard(attempt.task)

    def _fault(self, text: str) -> None:
        self.faults.append(f"line {self._line}: {text}")

    def grouped(self, key: Callable[[Attempt], K]) -> dict[K, list[Attempt]]:
        rows: dict[K, list[Attempt]] = {}
        for attempt in self.attempts.values():
            rows.setdefault(key(attempt), []).append(attempt)
        return rows

    def balance(self, key: Callable[[Attempt], object] = lambda attempt: None) -> dict[object, Counter[str]]:
        """Number of attempts by `key` and by state: one of OPEN, TRAINED, or the reason for which it was dropped. The
        sum of a row is the number of issued attempts."""
        return {name: Counter(map(self.state, attempts)) for name, attempts in self.grouped(key).items()}


def _larger(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)


def delay(attempts: Sequence[Attempt]) -> float | None:
    """Mean number of versions between admission and training of the attempts that are in a batch; None if there are
    none."""
    waited = [attempt.batch - attempt.version for attempt in attempts if attempt.batch is not None]
    return sum(waited) / len(waited) if waited else None


def fold(lines: Iterable[Line]) -> Accounts:
    accounts = Accounts()
    for line in lines:
        accounts.add(line)
    return accounts


def normal(cursor: int | Sequence[int]) -> Sequence[int]:
    """Converts a checkpoint's cursor to a list; a number alone is the next task, with no task in flight."""
    return [cursor] if isinstance(cursor, int) else cursor


def gap(mark: Mark, cursor: Sequence[int]) -> str:
    """Describes how a checkpoint's cursor differs from that of the accounts."""
    (ours, *flying), (theirs, *issued_again) = mark.cursor, cursor
    skipped = sorted((set(flying) | set(range(ours, theirs))) - set(issued_again))
    doubled = sorted((set(issued_again) | set(range(theirs, ours))) - set(flying))
    named = (
        f"{how} {', '.join(map(str, tasks[:5]))}" for how, tasks in (("skips", skipped), ("doubles", doubled)) if tasks
    )
    return "; ".join(named) or f"{list(cursor)} for {list(mark.cursor)}"


def length_bucket(tokens: int) -> int:
    """Rounds a token count up to a power of two. Lost attempts are counted by length, because losing long episodes
    would bias training towards short ones."""
    return 1 << max(tokens - 1, 0).bit_length()

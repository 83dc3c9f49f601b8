"""Which kind of team works on which question: learnt from finished runs, by success per token (the aim of AgentRouter,
arXiv 2510.05445).

    outcomes -> ridge regression by kind, over the words of the question: expected successes s, expected tokens t
    question -> the kind with the largest s - price * t

`price` is the success per token that the choice has on the questions it was learnt from; with it, the choice has the
largest ratio of sums (Dinkelbach, 1967).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coa.json_object import Json, JsonView
from coa.seeds import fraction
from coa.teams.roles import ROLES
from coa.teams.transcript import AgentStep, Graded, Transcript, prompt_of

MOST_WORDS, LEAST_TASKS = 512, 5
"""The most frequent words are features, if they are in the questions of so many tasks."""
RIDGE = 10.0
"""Penalty on the square of each weight, in runs."""
FOLDS = 5
ITERATIONS = 20
"""Steps of Dinkelbach's method, which is exact after a few."""
_WORD = re.compile(r"[\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff]|[^\W\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff]++")
"""A word, or a character of Chinese, Japanese or Korean, which have no blanks between words or few."""
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What a finished run gave and cost."""

    task_id: str
    question: str
    kind: str
    successes: int
    """Number of its chains that are worth imitating."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """What was learnt. K kinds, W words."""

    kinds: tuple[str, ...]
    words: tuple[str, ...]
    weights: Matrix
    """[2, K, 1 + W]: of successes and of tokens; the constant first."""
    price: float
    """Successes per token."""

    def choose(self, question: str) -> str:
        """The kind of team for a question."""
        successes, tokens = self.expected([question])
        return self.kinds[int(np.argmax(successes[0] - self.price * tokens[0]))]

    def expected(self, questions: Sequence[str]) -> tuple[Matrix, Matrix]:
        """[Q, K] each: expected successes and tokens."""
        seen = features(questions, self.words)
        successes, tokens = (np.maximum(seen @ weights.T, 0.0) for weights in self.weights)
        return successes, tokens

    def to_json(self) -> Json:
        return {
            "kinds": list(self.kinds),
            "words": list(self.words),
            "weights": self.weights.tolist(),
            "price": self.price,
        }

    @classmethod
    def from_json(cls, record: JsonView) -> Self:
        """The inverse of `to_json`."""
        return cls(
            kinds=tuple(record["kinds"]),
            words=tuple(record["words"]),
            weights=np.array(record["weights"], np.float64),
            price=record["price"],
        )


def tokens_of(run: Transcript) -> int:
    """Tokens of all requests and replies, as language models counted them; for scripted experts, the words that such
    models would have been sent and would have written."""
    if run.usage.requests:
        return run.usage.tokens
    asked = [(n, step) for n, step in enumerate(run.steps) if isinstance(step, AgentStep) and step.agent in ROLES]
    texts = [message.content for n, _ in asked for message in prompt_of(run, n).messages]
    return sum(len(text.split()) for text in (*texts, *(step.output for _, step in asked)))


def outcome_of(run: Graded, successes: int) -> RunOutcome:
    task = run.transcript.task
    return RunOutcome(
        task_id=task.id,
        question=task.question,
        kind=run.transcript.team,
        successes=successes,
        tokens=tokens_of(run.transcript),
    )


def words_in(question: str) -> set[str]:
    return set(_WORD.findall(question.lower()))


def features(questions: Sequence[str], words: Sequence[str]) -> Matrix:
    """[Q, 1 + W]: 1, and whether each word is in the question."""
    place = {word: 1 + at for at, word in enumerate(words)}
    seen = np.zeros((len(questions), 1 + len(words)))
    seen[:, 0] = 1.0
    for row, question in enumerate(questions):
        seen[row, [place[word] for word in words_in(question) if word in place]] = 1.0
    return seen


def learn(outcomes: Iterable[RunOutcome]) -> Routes:
    """Routes from runs of at least one kind."""
    by_kind: dict[str, list[RunOutcome]] = defaultdict(list)
    question_of: dict[str, str] = {}
    for one in outcomes:
        by_kind[one.kind].append(one)
        question_of[one.task_id] = one.question
    kinds = tuple(sorted(by_kind))
    counts = Counter(word for question in question_of.values() for word in words_in(question))
    frequent = sorted((-count, word) for word, count in counts.items() if LEAST_TASKS <= count < len(question_of))
    words = tuple(word for _, word in frequent[:MOST_WORDS])
    weights = np.stack([_fit(by_kind[kind], words) for kind in kinds], axis=1)
    routes = Routes(kinds=kinds, words=words, weights=weights, price=0.0)
    return Routes(kinds=kinds, words=words, weights=weights, price=_price(*routes.expected([*question_of.values()])))


def _fit(runs: Sequence[RunOutcome], words: Sequence[str]) -> Matrix:
    """[2, 1 + W]: ridge regression of successes and of tokens; the constant is not penalized."""
    seen = features([run.question for run in runs], words)
    wanted = np.array([(run.successes, run.tokens) for run in runs], np.float64)
    penalty = np.diag([1e-9, *[RIDGE] * len(words)])
    return np.asarray(np.linalg.solve(seen.T @ seen + penalty, seen.T @ wanted).T, np.float64)


def _price(successes: Matrix, tokens: Matrix) -> float:
    """The largest ratio of successes to tokens that a choice of one column for each row has."""
    price, rows = 0.0, np.arange(len(successes))
    for _ in range(ITERATIONS):
        chosen = np.argmax(successes - price * tokens, axis=1)
        price = float(successes[rows, chosen].sum() / max(tokens[rows, chosen].sum(), 1.0))
    return price


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Successes per token of routes on tasks that they were not learnt from, beside those of each kind alone."""

    tasks: int
    """Tasks that every kind has worked on."""
    alone: Mapping[str, float]
    routed: float
    shares: Mapping[str, float]
    """Share of the tasks that each kind was chosen for."""

    @property
    def best(self) -> str:
        """The best kind alone."""
        return max(self.alone, key=self.alone.__getitem__)


def measure(outcomes: Sequence[RunOutcome]) -> Saving | None:
    """What routes are worth, by cross-validation over tasks; None if no task was worked on by every kind."""
    kinds = sorted({one.kind for one in outcomes})
    by_task: dict[str, dict[str, RunOutcome]] = defaultdict(dict)
    for one in outcomes:
        by_task[one.task_id].setdefault(one.kind, one)
    complete = {task: runs for task, runs in by_task.items() if len(runs) == len(kinds)}
    if not complete:
        return None
    chosen: list[RunOutcome] = []
    for fold in range(FOLDS):
        held_out = {task for task in complete if _fold(task) == fold}
        rest = [one for one in outcomes if one.task_id not in held_out]
        if held_out and {one.kind for one in rest} == set(kinds):
            routes = learn(rest)
            runs = (complete[task] for task in sorted(held_out))
            chosen += [by_kind[routes.choose(by_kind[kinds[0]].question)] for by_kind in runs]
    if not chosen:
        return None
    counts = Counter(one.kind for one in chosen)
    of_all = [complete[one.task_id] for one in chosen]
    return Saving(
        tasks=len(chosen),
        alone={kind: _per_token([runs[kind] for runs in of_all]) for kind in kinds},
        routed=_per_token(chosen),
        shares={kind: counts[kind] / len(chosen) for kind in kinds},
    )


def _fold(task_id: str) -> int:
    return int(fraction(0, "fold", task_id) * FOLDS)


def _per_token(runs: Sequence[RunOutcome]) -> float:
    return sum(run.successes for run in runs) / max(1, sum(run.tokens for run in runs))

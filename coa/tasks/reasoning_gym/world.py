"""The world `reasoning_gym`: endless tasks of the data sets that a recipe names.

    tasks: {world: reasoning_gym}
    world: {datasets: {chain_sum: {max_terms: 3}, gcd: {}}, level: 1}

Tasks take turns between the data sets. A question is for training or held out by a hash of it, so that no seed brings
a held-out question into training.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from coa.bounds import ProperShare
from coa.errors import UserError
from coa.extensions import OF_USERS_CODE
from coa.json_object import Json
from coa.seeds import derive, fraction
from coa.tasks.questions import question_key
from coa.tasks.reasoning_gym.entries import SIZE, Reference, check, require_package
from coa.tasks.worlds import Settings, World
from coa.types import Task

NAME = "reasoning_gym"
"""Name of the world and of its grader."""
SEEDS = 2**31
HALF = SIZE // 2
"""Entries of an instance that training takes; the others are in place of those that are held out."""
FRUITLESS = 20 * SIZE
"""Entries in a row that are of no use, after which a data set has too few different questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymSettings(Settings):
    datasets: dict[str, Any] = field(default_factory=dict)
    """Names of the data sets (https://github.com/open-thought/reasoning-gym/blob/main/GALLERY.md), each with the
    settings that differ from its defaults: `{chain_sum: {max_terms: 3}, gcd: {}}`."""
    level: Annotated[int, Ge(0)] | None = None
    """Difficulty, as a level of the data sets' curricula, from 0; a curriculum with fewer levels takes its last one.
    None for the data sets' default settings."""
    held_out: ProperShare = 0.2
    """Share of the questions that occur only in evaluation tasks."""
    profile: str = "code"
    """Agent profile of the tasks; the profile determines the tools."""


class ReasoningGym(World):
    name = NAME
    settings_type: ClassVar[type[Settings]] = ReasoningGymSettings

    def mistake(self) -> str:
        if not self.settings.datasets:
            return "tasks.world=reasoning_gym needs world.datasets, such as world.datasets={chain_sum: {}, gcd: {}}"
        try:
            require_package()
            for dataset, settings in self.settings.datasets.items():
                check(dataset, self.settings.level, settings)
        except UserError as error:
            return str(error)
        return ""

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        number, which = divmod(index, len(self.settings.datasets))
        dataset = list(self.settings.datasets)[which]
        chunk, place = divmod(number, HALF)
        for entry_index in (place, *(HALF + (place + further) % HALF for further in range(HALF))):
            reference = self._reference(dataset, purpose, seed, chunk, entry_index)
            entry = self._entry(reference)
            if not self._is_held_out(entry):
                return self._task(f"{dataset}-{purpose}-{number}", reference, entry)
        raise self._too_few(dataset)

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        names = list(self.settings.datasets)
        shares = [count // len(names) + (n < count % len(names)) for n in range(len(names))]
        return tuple(
            task for name, share in zip(names, shares, strict=True) for task in self._held_out(name, share, seed)
        )

    def profiles(self) -> set[str]:
        return {self.settings.profile}

    def graders(self) -> set[str]:
        return {NAME}

    def _held_out(self, dataset: str, count: int, seed: int) -> Iterator[Task]:
        """Held-out tasks of a data set, each with another question."""
        asked, fruitless, position = set[str](), 0, 0
        while len(asked) < count:
            reference = self._reference(dataset, "evaluate", seed, *divmod(position, SIZE))
            entry, position, fruitless = self._entry(reference), position + 1, fruitless + 1
            key = question_key(entry["question"])
            if self._is_held_out(entry) and key not in asked:
                asked.add(key)
                fruitless = 0
                yield self._task(f"{dataset}-evaluate-{len(asked) - 1}", reference, entry)
            if fruitless == FRUITLESS:
                raise self._too_few(dataset)

    def _reference(self, dataset: str, purpose: str, seed: int, chunk: int, index: int) -> Reference:
        first = derive(seed, purpose, dataset)
        settings = self.settings
        return Reference(dataset, settings.level, settings.datasets[dataset], (first + chunk * SIZE) % SEEDS, index)

    def _entry(self, reference: Reference) -> Json:
        try:
            return reference.entry()
        except OF_USERS_CODE as error:
            raise UserError(f"reasoning-gym could not make {reference.to_json()}: {error}") from error

    def _is_held_out(self, entry: Json) -> bool:
        return fraction("held out", question_key(entry["question"])) < self.settings.held_out

    def _task(self, id: str, reference: Reference, entry: Json) -> Task:
        """A data set may have no answer of its own, only a scorer of answers."""
        return Task(
            id=id,
            question=entry["question"],
            answers=() if entry["answer"] is None else (str(entry["answer"]),),
            profile=self.settings.profile,
            family=reference.dataset,
            grader=NAME,
            metadata=reference.to_json(),
        )

    def _too_few(self, dataset: str) -> UserError:
        return UserError(
            f"world.datasets.{dataset}: too few different questions for world.held_out={self.settings.held_out:g}; "
            "its settings or world.level make more"
        )

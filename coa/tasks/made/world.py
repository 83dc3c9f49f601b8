"""The world `documents`: tasks that `coa tasks` makes of a user's own documents.

    tasks: {world: documents}
    world: {corpus: handbooks}

It has no tasks of its own: `coa tasks` writes them to a file, which `tasks.path` names from then on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from coa.bounds import AtLeast1, Share
from coa.tasks.made.documents import files_in
from coa.tasks.worlds import Settings, World
from coa.types import Task

NAME = "documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsSettings(Settings):
    corpus: str = ""
    """Folder of documents: text, Markdown, HTML or PDF."""
    profile: str = "mhqa"
    """Agent profile of the tasks: one that calls wiki_search, which finds the passages of the documents."""
    per_passage: AtLeast1 = 3
    """Maximum number of questions that are proposed for a passage of about 1,000 characters."""
    hops: Annotated[int, Ge(1), Le(5)] = 2
    """Maximum number of passages that a question rests on: each further one says what the one before it is about. A
    question for which no further passage is found has fewer."""
    merged: Share = 0.25
    """Share of the questions with one passage that are merged in pairs, so that both must be answered."""
    tries: AtLeast1 = 3
    """Number of times that the model alone is asked. A question that it answers without tools is dropped."""
    team_tries: AtLeast1 = 2
    """Number of runs of the team, with its tools, of which one must be right. Otherwise the question is dropped."""

    PATHS: ClassVar = ("corpus",)


class Documents(World):
    name = NAME
    settings_type: ClassVar[type[Settings]] = DocumentsSettings

    def mistake(self) -> str:
        return "tasks.world=documents has no tasks yet: make them with `coa tasks`, and set tasks.path to their file"

    @property
    def folder(self) -> Path:
        return Path(self.settings.corpus)

    def check_corpus(self) -> int:
        """The number of its files; raises UserError if there are no documents to read."""
        return len(files_in(self.folder))

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        raise ValueError("tasks.world=documents has no tasks without tasks.path")

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        raise ValueError("tasks.world=documents has no tasks without tasks.path")

    def profiles(self) -> set[str]:
        return {self.settings.profile}

    def runs_in_words(self) -> str:
        return "no team runs"

    def evaluation_in_words(self, count: int | None) -> str:
        return "no tasks"

"""The kinds of teams that questions go to, learnt from earlier runs (`team.learn_from`).

    transcripts of several kinds -> demonstrations and tokens of each run -> teachers/routes.json

They are learnt once for a run's folder, so that a stage that resumes plays the same teams.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from coa.storage.files import write_atomically
from coa.teams.kinds import KINDS
from coa.teams.routing import Routes, RunOutcome, Saving, learn, measure, outcome_of
from coa.teams.store import read_transcripts, transcripts_at
from jobs.recipe.needs import filter_of
from jobs.run.run_dir import RunDir


def routes_of(run: RunDir) -> Routes | None:
    """The run's routes; None if all of its team runs are of one kind. Where they are learnt, says what they save."""
    if not run.config.team.learn_from:
        return None
    path = run.teachers / "routes.json"
    if path.exists():
        return Routes.from_json(json.loads(path.read_text()))
    with run.console.waiting("distill", "learning which kind of team works on which question"):
        outcomes = [*outcomes_of(run)]
        routes, saving = learn(outcomes), measure(outcomes)
    write_atomically(path, json.dumps(routes.to_json()))
    run.console.say(saving_in_words(saving))
    return routes


def outcomes_of(run: RunDir) -> Iterator[RunOutcome]:
    """The runs of `team.learn_from`, but those that were imported."""
    config = run.config
    filter = filter_of(config)
    for path in map(Path, config.team.learn_from):
        for graded in read_transcripts(transcripts_at(path)):
            if graded.transcript.team in KINDS:
                yield outcome_of(graded, filter.demonstrations(graded))


def saving_in_words(saving: Saving | None) -> str:
    if saving is None:
        return "kinds of teams: what choosing is worth is unknown, since no task was worked on by every kind"
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in saving.shares.items() if share)
    alone = saving.alone[saving.best]
    return (
        f"kinds of teams: {shares} of the questions. On {saving.tasks} tasks held out in turn: "
        f"{1e6 * saving.routed:.0f} demonstrations per million tokens, {1e6 * alone:.0f} by {saving.best} alone"
    )

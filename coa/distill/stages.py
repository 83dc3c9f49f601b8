"""The rules of the filter's stages (paper, section 3.2.1): pure functions of one run that say why to drop it, or None.

No rule depends on other runs: if a share of the runs is kept, it is drawn by hash.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from coa.agent.grammar import ANSWER, TAGS, Chain, Form, Kind, Span
from coa.agent.profiles import profile as find_profile
from coa.bounds import AnyInt, AtLeast1, Share
from coa.distill.convert import steps_of
from coa.distill.duplicates import DuplicateConfig
from coa.seeds import fraction
from coa.teams.roles import TEAM
from coa.teams.router import GOOD_ENOUGH, score_of
from coa.teams.transcript import Ending, Graded, Transcript, UserStep, is_routing

TOO_SIMPLE = "too few interactions"
WRONG = "wrong answer"
UNGRADED = "ungraded"
DISOBEYED = "instructions disobeyed"
REPEATED = "repeated tool input"
VIOLATION = "transition violation"
NO_REFLECTION = "no reflection"
SHOWN = 80
"""Maximum characters of an answer that are quoted."""


@dataclass(frozen=True)
class FilterConfig:
    """Settings of the filter. Defaults are the paper's, except for the sampling ratios, which it does not give."""

    contamination_words: AtLeast1 = 13
    """A task is dropped if it shares this many consecutive words with an evaluation question."""
    min_interactions: int = 5
    """Minimum steps of agents and tools in a run, not counting decisions about which role is next."""
    right_answers_only: bool = True
    """Whether runs whose answer is wrong or ungraded are dropped."""
    keep_without_reflection: Share = 0.5
    """Share of the runs without a reflection that are kept, under profiles not in `reflection_required`."""
    reflection_required: tuple[str, ...] = ("code", "math")
    """Profiles for which all runs without a reflection are dropped."""
    duplicates: DuplicateConfig = field(default_factory=DuplicateConfig)
    """Which runs count as duplicates of others."""
    correction_copies: Annotated[float, Ge(1)] = 2.0
    """Average number of copies of a run whose first double check scored low and whose answer is right."""
    seed: AnyInt = 0
    """Seed of the random choices of the filters."""


# Complexity.


def lack_of_complexity(transcript: Transcript, config: FilterConfig) -> str | None:
    return TOO_SIMPLE if interactions(transcript) < config.min_interactions else None


def interactions(transcript: Transcript) -> int:
    """The number of interactions that become the chain."""
    return sum(
        not (is_routing(step) or isinstance(step, UserStep) or getattr(step, "agent", "") == TEAM)
        for step in steps_of(transcript)
    )


# Quality.


def lack_of_quality(run: Graded, chain: Chain, config: FilterConfig) -> str | None:
    if run.transcript.ending is not Ending.ANSWERED:
        return run.transcript.ending.value
    if config.right_answers_only and not run.correct:
        return UNGRADED if run.correct is None else WRONG
    if run.objection:
        return DISOBEYED
    calls = [(span.tag, tool_input(span)) for span in chain if TAGS[span.tag].kind is Kind.TOOL]
    if len(set(calls)) < len(calls):
        return REPEATED
    return None if find_profile(run.transcript.task.profile).transitions_hold(chain) else VIOLATION


def detail_of(reason: str, transcript: Transcript, chain: Chain) -> str:
    """Detail of a reason to drop a run: the transition that the profile forbids, or a wrong answer beside the accepted
    one; "" for other reasons."""
    if reason == WRONG:
        return answer_pair(transcript.task.answers, chain)
    if reason != VIOLATION:
        return ""
    profile = find_profile(transcript.task.profile)
    return f"{profile.broken_transition(chain)} under {profile.name}"


def answer_pair(accepted: Sequence[str], chain: Chain) -> str:
    """The chain's answer beside the accepted ones: "`28`, accepted `27`"."""
    answer = chain[-1].text if chain and chain[-1].tag == ANSWER else ""
    return f"{_quoted(answer)}, accepted {' or '.join(map(_quoted, accepted[:3]))}"


def _quoted(text: str) -> str:
    line = " ".join(text.replace("`", "'").split())
    return f"`{line}`" if len(line) <= SHOWN else f"`{line[:SHOWN]}…`"


def tool_input(span: Span) -> str:
    """A call's input in the form that is compared: a query's words in lower case; any other input stripped.

    Only characters without meaning in a query are dropped: URLs are unchanged, -5 is not 5, and C++ is not C.
    """
    if TAGS[span.tag].form is not Form.LINE:
        return span.text.strip()
    return " ".join(part for word in span.text.split() for part in _parts(word)) or span.text.strip()


_IDLE = re.compile(r"(?!(?<!\w)-\d)[^\w+#%$€£°^<>=]|_")
"""Characters that are ignored in a query; a number's sign and symbols with a meaning are not."""


def _parts(word: str) -> list[str]:
    return [word] if "://" in word else _IDLE.sub(" ", word.lower()).split()


# Reflection.


def lack_of_reflection(transcript: Transcript, chain: Chain, config: FilterConfig) -> str | None:
    if any(span.tag == "reflection" for span in chain):
        return None
    if transcript.task.profile in config.reflection_required:
        return NO_REFLECTION
    drawn = fraction(config.seed, "reflection", transcript.task.id, transcript.attempt)
    return None if drawn < config.keep_without_reflection else NO_REFLECTION


# Correction.


def copies_of(run: Graded, chain: Chain, config: FilterConfig) -> int:
    """The number of copies of a kept run: `correction_copies` on average if it corrected itself, else 1."""
    if not (run.correct and doubted_itself(chain)):
        return 1
    transcript, (whole, part) = run.transcript, divmod(config.correction_copies, 1)
    return int(whole) + (fraction(config.seed, "correction", transcript.task.id, transcript.attempt) < part)


def doubted_itself(chain: Chain) -> bool:
    """Whether the first double check scored low; if the run's answer is right, it corrected itself."""
    first = next((score_of(span.text) for span in chain if span.tag == "double_check"), None)
    return first is not None and first < GOOD_ENOUGH

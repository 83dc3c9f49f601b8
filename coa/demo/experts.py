"""Scripted experts: fallible members of the team for the tiny world, behind the interface of a language model.

Each family has a lazy and a careful route. The lazy route relies on memory, or on a search snippet, and is often wrong,
although nothing in the run shows it; the careful route calls the tool. The route of a run is one decision of one agent,
at one word of its reply:

    calc  planner   plan "compute in head"         or "compute by code"
    mhqa  searcher  think "I know T already"       or "next look up T"
    web   verifier  double_check "4 looks right"   or "2 may be outdated"

Of the runs with right answers, most are lazy, and all look successful.
"""

import re
from dataclasses import dataclass

from coa.agent.grammar import ANSWER, OBSERVATION, THINK, Chain, Profile, Span, parse, render
from coa.agent.profiles import profile as find_profile
from coa.demo.general import general_reply
from coa.demo.questions import (
    CALC,
    KINDS,
    MHQA,
    MULTI,
    PROFILE_OF,
    WEB,
    Birthplace,
    Current,
    Puzzle,
    Sum,
    family_of,
    read_question,
)
from coa.demo.tasks import solution
from coa.demo.words import SURNAMES
from coa.demo.world import World, another
from coa.errors import InfrastructureError
from coa.seeds import derive, fraction
from coa.teams.evolved import EVOLVER, INTEGRATOR, SELECTOR
from coa.teams.pyramid import HEAD, JUDGE, LEAF
from coa.teams.roles import (
    CODER,
    CRITIC,
    DONE,
    DOUBLE_CHECK,
    OPPONENT,
    PLANNER,
    ROLES,
    SEARCHER,
    TEAM,
    THINKER,
    TOOL,
    VERIFIER,
    WORKER,
    worker_of,
)
from coa.teams.router import GOOD_ENOUGH, after_tool, score_of
from coa.teams.transcript import OTHERS, QUESTION, WORK, Prompt, Reply

IN_HEAD, BY_CODE = "compute in head", "compute by code"
OUTDATED, LOOKS_RIGHT, CONFIRMED = "2 may be outdated", "4 looks right", "4 page says so"
UNCHECKED = "2 nobody looked"
REPEATS, PROMISING = "1 that was done", "4 that is new"
_NEXT = "next: "
"""Prefix with which a thinker names a member."""


@dataclass(frozen=True)
class ExpertConfig:
    """Probabilities that the scripted experts take the lazy route, and that it succeeds. Lists have a share for each
    kind of question, in the order of `coa.demo.questions.KINDS`.

    The shares decrease from kind to kind, so that some kinds are mostly careful after filtering and others mostly lazy.
    """

    lazy_calc: tuple[float, ...] = (0.88, 0.82, 0.60, 0.48)
    """Shares of sums that are answered without a program."""
    lazy_mhqa: tuple[float, ...] = (0.90, 0.86, 0.72, 0.60)
    """Shares of multi-hop questions that are answered without the last lookup."""
    lazy_web: tuple[float, ...] = (0.92, 0.88, 0.76, 0.64)
    """Shares of web questions that are answered from a search snippet, without opening the page."""
    recall_calc: float = 0.46
    """Share of sums that the lazy planner gets right without a program."""
    recall_mhqa: float = 0.48
    """Share of towns whose name the lazy searcher remembers correctly. (The lazy verifier is right if the search
    snippet is up to date.)"""

    def lazy(self, puzzle: Puzzle) -> float:
        family = family_of(puzzle)
        shares = {CALC: self.lazy_calc, MHQA: self.lazy_mhqa, WEB: self.lazy_web}[family]
        return shares[KINDS[family].index(puzzle.kind)]


class ScriptedMind:
    """A Mind for any role of the team: it reads its role and the work so far from the messages, like a language
    model."""

    def __init__(self, world: World, config: ExpertConfig) -> None:
        self._world = world
        self._config = config

    async def replies(self, prompts: list[Prompt]) -> list[Reply | InfrastructureError]:
        return [Reply(self.reply(prompt)) for prompt in prompts]

    def reply(self, prompt: Prompt) -> str:
        seen = prompt.messages[1].content.removeprefix(QUESTION).partition(OTHERS)[0]
        question, _, work = seen.partition(WORK)
        chain = parse(_without_names(work)).chain
        profile = find_profile(prompt.profile)
        if prompt.role == THINKER:
            return _say(THINK, _NEXT + _next_member(profile, chain))
        chain = tuple(span for span in chain if not _names_next(span))
        if prompt.role in (HEAD, LEAF) and isinstance(asked := read_question(question), Birthplace):
            return self._branch(prompt.role, asked, chain, prompt.seed)
        if ROLES[prompt.role].solves or prompt.role == HEAD:
            return self._solve(profile, question, chain, prompt.seed)
        if prompt.role in (VERIFIER, OPPONENT, JUDGE) and chain[-1].tag == ANSWER:
            return _judge(chain, prompt.seed)
        if prompt.role == EVOLVER:
            return _say("reflection", "nobody looked, so look")
        if prompt.role == SELECTOR:
            lacks = _doubts(prompt.seed) and not _looked(chain)
            return _say(DOUBLE_CHECK, PROMISING if lacks else REPEATS)
        if prompt.role == INTEGRATOR:
            return render((Span(DOUBLE_CHECK, CONFIRMED), Span(ANSWER, _answer_in(chain))))
        return self._as_member(prompt.role, profile, question, chain, prompt.seed)

    def _as_member(self, role: str, profile: Profile, question: str, chain: Chain, seed: int) -> str:
        """The reply of a member of a planner's team."""
        if role == PLANNER and chain and chain[-1].tag == OBSERVATION:  # a new plan is due
            over = self._as_member(worker_of(profile), profile, question, chain, seed) == DONE
            return _say(THINK if over else "plan", "go on")
        puzzle = read_question(question)
        if puzzle is None or profile.name not in (PROFILE_OF[family_of(puzzle)], MULTI) or not self._knows(puzzle):
            return general_reply(role, profile, question, chain)
        # After a low score the expert takes the careful route.
        lazy = fraction(seed, "lazy") < self._config.lazy(puzzle) and not _doubted(chain)
        match puzzle:
            case Sum():
                return self._calc(role, puzzle, chain, lazy, seed)
            case Birthplace():
                return self._mhqa(role, puzzle, chain, lazy, seed)
            case Current():
                return self._web(role, puzzle, chain, lazy)

    def _solve(self, profile: Profile, question: str, chain: Chain, seed: int) -> str:
        """The reply of a solver, which is planner, worker and critic in one, and answers where they would propose."""

        def say(role: str, seen: Chain) -> Chain:
            return parse(self._as_member(role, profile, question, seen, seed)).chain

        last = chain[-1] if chain else None
        if last is not None and last.tag == DOUBLE_CHECK and not _doubted(chain):
            return _say(ANSWER, _answer_in(chain))
        if last is None or last.tag in (THINK, "reflection"):
            said = say(PLANNER, chain)
        else:
            tool = chain[-2].tag if last.tag == OBSERVATION else ""
            reflects = tool and after_tool(profile, tool).agent == CRITIC
            said = () if reflects else say(worker_of(profile), chain)
            if not said:  # done
                reflection = say(CRITIC, chain)
                said = (*reflection, *say(PLANNER, (*chain, *reflection)))
        return render(Span(ANSWER, span.text) if span.tag == "suggested_answer" else span for span in said)

    def _branch(self, role: str, puzzle: Birthplace, chain: Chain, seed: int) -> str:
        """The reply of a pyramid's head or leaf: the town is one part of the question, and who holds the office there
        is another."""
        reports = [span.text for span in chain if span.tag == OBSERVATION]
        if role == HEAD:
            if not chain:
                return _say("plan", f"1. town of {puzzle.person}\n2. {puzzle.kind} there")
            if chain[-1].tag == THINK:
                return _say("plan", "look it up")
            return _say(ANSWER, _reported(reports[-1]))
        called = any(span.tag == "wiki_search" for span in chain)
        if chain[0].tag == THINK:
            if not called:
                return _say("wiki_search", puzzle.person)
            return _say(ANSWER, _after("born in", reports[-1], words=2))
        lazy = fraction(seed, "lazy") < self._config.lazy(puzzle)
        if not called and (not lazy or _doubted(chain) or chain[-1].tag == "plan"):
            return _say("wiki_search", _reported(reports[0]))
        return _say(ANSWER, _after(puzzle.kind, reports[-1]) if called else self._recalled_holder(puzzle, seed))

    def _knows(self, puzzle: Puzzle) -> bool:
        match puzzle:
            case Sum():
                return True
            case Birthplace(_, person):
                return self._world.wiki_page(person) is not None
            case Current(_, company):
                return bool(self._world.search_results(company))

    def _calc(self, role: str, puzzle: Sum, chain: Chain, lazy: bool, seed: int) -> str:
        if role == PLANNER and not chain:
            return _say("plan", IN_HEAD if lazy else BY_CODE)
        if role in (CODER, WORKER):
            if chain[-1].text == BY_CODE or _doubted(chain):
                return _say("code", puzzle.program)
            return _say(THINK, f"it makes {self._recalled_sum(puzzle, seed)}")
        if role == CRITIC:
            return _say("reflection", f"it prints {_number(chain[-1].text)}")
        return _say("answer", _last_word(chain))

    def _mhqa(self, role: str, puzzle: Birthplace, chain: Chain, lazy: bool, seed: int) -> str:
        if role == PLANNER and not chain:
            return _say("plan", "find town first")
        if role in (SEARCHER, WORKER):
            looked_up = [span.text for span in chain if span.tag == OBSERVATION]
            if not looked_up:
                return _say("wiki_search", puzzle.person)
            if len(looked_up) > 1:
                return DONE
            town = _after("born in", looked_up[0], words=2)
            if lazy:
                return _say(THINK, f"I know {town} already")
            return render((Span(THINK, f"next look up {town}"), Span("wiki_search", town)))
        if role == CRITIC:
            return _say("reflection", f"page says {puzzle.kind} {_after(puzzle.kind, chain[-1].text)}")
        if chain[-1].tag == THINK:
            return _say("answer", self._recalled_holder(puzzle, seed))
        return _say("answer", _last_word(chain))

    def _web(self, role: str, puzzle: Current, chain: Chain, lazy: bool) -> str:
        if role == PLANNER and not chain:
            return _say("plan", "search then check")
        last = chain[-1]
        if role in (SEARCHER, WORKER):
            if last.tag == "double_check":
                return _say("crawl_page", _page_in(chain))
            found = [span.text for span in chain if span.tag == OBSERVATION]
            if not found:
                return _say("web_search", f"{puzzle.company} {puzzle.kind}")
            return DONE if _crawled(chain) else _say("suggested_answer", _before(f"as {puzzle.kind}", found[-1]))
        if role == VERIFIER:
            if _crawled(chain):
                return _say("double_check", CONFIRMED)
            return _say("double_check", LOOKS_RIGHT if lazy else OUTDATED)
        if role == CRITIC:
            return _say("reflection", f"page says {puzzle.kind} {_after(puzzle.kind, last.text)}")
        if last.tag in ("reflection", THINK):
            return _say("suggested_answer", _last_word(chain))
        return _say("answer", next(span.text for span in reversed(chain) if span.tag == "suggested_answer"))

    def _recalled_sum(self, puzzle: Sum, seed: int) -> int:
        """The remembered result of a sum; a wrong one is a little too large, so it has the length of a right one and is
        never below zero."""
        if fraction(seed, "recall") < self._config.recall_calc:
            return puzzle.value
        return puzzle.value + 1 + derive(seed, "slip") % 9

    def _recalled_holder(self, puzzle: Birthplace, seed: int) -> str:
        right = solution(self._world, puzzle)
        if fraction(seed, "recall") < self._config.recall_mhqa:
            return right
        return another(SURNAMES, right, seed, "slip")


def _without_names(work: str) -> str:
    return re.sub(rf"(?:^|(?<=>\n))(?:{'|'.join((*ROLES, TEAM, TOOL))}): (?=<\w)", "", work)


def _say(tag: str, text: str) -> str:
    return render((Span(tag, text),))


def _number(text: str) -> str:
    """The last number of a program's output, whatever the layout around it."""
    numbers = re.findall(r"-?\d+", text)
    return numbers[-1] if numbers else "nothing"


def _last_word(chain: Chain) -> str:
    return chain[-1].text.split()[-1]


def _after(key: str, text: str, words: int = 1) -> str:
    """The words that come after a key in a page: _after("owner", "... owner Berg , sponsor Moss .") is "Berg"."""
    _, found, rest = text.partition(f"{key} ")
    return " ".join(rest.split()[:words]) if found else "unknown"


def _before(key: str, text: str) -> str:
    """The word that comes before a key in a snippet: _before("as owner", "... Berg as owner") is "Berg"."""
    words = text.partition(f" {key}")[0].split()
    return words[-1].strip('"') if f" {key}" in text and words else "unknown"


def _page_in(chain: Chain) -> str:
    """The page that the search result names."""
    result = next(span.text for span in chain if span.tag == OBSERVATION)
    match = re.search(r"\bp\d+\b", result)
    return match[0] if match else "unknown"


def _doubted(chain: Chain) -> bool:
    """Whether the chain ends with a double check that sends back to work: a low score of an answer, or a high one of
    another way."""
    if not chain or chain[-1].tag != DOUBLE_CHECK:
        return False
    score, of_a_way = score_of(chain[-1].text), len(chain) > 1 and chain[-2].tag == "reflection"
    return score is not None and (score >= GOOD_ENOUGH) == of_a_way


def _judge(chain: Chain, seed: int) -> str:
    """Scores an answer: CONFIRMED if the chain used the careful tools; otherwise UNCHECKED or LOOKS_RIGHT with equal
    probability."""
    if _looked(chain):
        return _say(DOUBLE_CHECK, CONFIRMED)
    return _say(DOUBLE_CHECK, UNCHECKED if _doubts(seed) else LOOKS_RIGHT)


def _doubts(seed: int) -> bool:
    """Whether an expert of this run notices that nobody looked: half of them do."""
    return fraction(seed, "doubt") < 0.5


def _looked(chain: Chain) -> bool:
    """Whether the chain used the careful tools; a part of a question takes one lookup, a whole one two."""
    lookups = sum(span.tag == "wiki_search" for span in chain)
    return any(span.tag in ("code", "crawl_page") for span in chain) or lookups > (chain[0].tag == "plan")


def _answer_in(chain: Chain) -> str:
    return next(span.text for span in reversed(chain) if span.tag == ANSWER)


def _reported(report: str) -> str:
    """The answer in a branch's report: `_reported("1. town of Nora Lind: Iron Grove (score 4)") == "Iron Grove"`."""
    return report.partition(": ")[2].split(" (")[0]


def _names_next(span: Span) -> bool:
    return span.tag == THINK and span.text.startswith(_NEXT)


def _next_member(profile: Profile, chain: Chain) -> str:
    """The role that writes next, as the tags of the chain imply."""
    if not chain:
        return PLANNER
    last = chain[-1]
    if _names_next(last):
        return CRITIC
    if last.tag == OBSERVATION:
        return after_tool(profile, chain[-2].tag).agent
    if last.tag == "plan" or _doubted(chain):
        return worker_of(profile)
    return VERIFIER if last.tag == "suggested_answer" else PLANNER


def _crawled(chain: Chain) -> bool:
    return any(span.tag == "crawl_page" for span in chain)

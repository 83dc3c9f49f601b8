"""The rules of a pyramid, after InfiAgent (arXiv 2509.22502): a head splits the question, leaves work, a judge checks
each branch, and the head answers from their reports.

line 0   head -> plan "1. .. 2. .." |                                | report 1 |       | report 2 | head -> answer
line 1                              | leaf .. answer -> judge 3, 4 - '          |       |
line 2                                 ^------------------'1, 2       | leaf .. answer -> judge

A node is a line of its own, which sees its question and the reports of the branches before it. A head may hand a
question to further heads, down to `depth`; a plan that is not numbered is carried out by a leaf on the same line. Work
is done one branch at a time, so that the steps of all lines, in order, are one chain (`one_chain`).
"""

import re
from dataclasses import dataclass, field

from coa.agent.grammar import ANSWER, OBSERVATION, THINK, Chain, Profile, Span, render
from coa.teams.roles import DOUBLE_CHECK, Role
from coa.teams.router import GOOD_ENOUGH, Move, Speak, spans_of
from coa.teams.run import Line
from coa.teams.solving import SolvingRun
from coa.teams.teams import TeamConfig

HEAD, LEAF, JUDGE = "head", "leaf", "judge"
PLAN = "plan"
MOST_BRANCHES = 5
_BRANCH = re.compile(r"^[ \t]*+\d{1,2}[.)][ \t]++(\S.*)$", re.MULTILINE)


def branches_of(plan: str) -> tuple[str, ...]:
    """The questions of a numbered plan, `branches_of("1. Where ?\\n2. Who ?") == ("Where ?", "Who ?")`; none if fewer
    than two lines have a number."""
    found = [match[1].strip() for match in _BRANCH.finditer(plan)]
    return tuple(found) if len(found) > 1 else ()


@dataclass(slots=True)
class Node:
    """A line of the pyramid."""

    parent: int
    depth: int
    """Heads above it."""
    branches: tuple[str, ...] = ()
    reports: list[str] = field(default_factory=list)
    rounds: int = 0
    """How often its answer was improved."""


class PyramidRun(SolvingRun):
    """A run of a pyramid."""

    name = "pyramid"
    own_roles = (
        Role(
            HEAD,
            frozenset({PLAN, ANSWER}),
            "You lead. First write a plan: either two to five numbered lines, each a question that can be answered on "
            "its own or from the answers before it, one agent a line; or, for a simple question, one line without a "
            "number. Once the reports are there, answer from them.",
        ),
        Role(
            LEAF,
            frozenset({PLAN, "reflection", ANSWER}),
            "You work on one part of the question: the last thought of the team, or the head's plan. Call one tool at "
            "a time and wait for its observation, then answer this part alone.",
            solves=True,
        ),
        Role(
            JUDGE,
            frozenset({DOUBLE_CHECK}),
            "You judge the answer to one part of the question by the work that led to it. Begin with a score, 1 "
            "(wrong), 2 (doubtful), 3 (probable) or 4 (right), then say in a few words what is wrong or missing, or "
            "what speaks for it.",
        ),
    )
    settings = frozenset({"rounds", "depth"})
    solvers = frozenset({LEAF})
    judge = JUDGE
    one_chain = True

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (HEAD, LEAF, JUDGE)

    def begin(self) -> tuple[Move, ...]:
        self._nodes = [Node(parent=0, depth=0)]
        return (Speak(HEAD),)

    def fits_otherwise(self, move: Speak, reply: str) -> bool:
        return self._leads(move.line, spans_of(self.team.brief(move.agent), self.profile, reply) or ())

    def _leads(self, line: int, chain: Chain) -> bool:
        """Whether a head's reply ends with its plan, or with its answer once there are reports."""
        if not chain or chain[-1].tag != (ANSWER if self._nodes[line].reports else PLAN):
            return False
        return chain[-1].tag == ANSWER or len(branches_of(chain[-1].text)) <= MOST_BRANCHES

    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        return self._lead(move.line) if move.agent == HEAD else (Speak(JUDGE, move.line),)

    def _lead(self, line: int) -> tuple[Move, ...]:
        node, last = self._nodes[line], self.lines[line].said[-1]
        if last.tag == ANSWER:
            return self.settle() if line == 0 else (Speak(JUDGE, line),)
        node.branches = branches_of(last.text)
        return self._next_branch(line) if node.branches else (Speak(LEAF, line),)

    def judged(self, line: int, score: int) -> tuple[Move, ...]:
        node = self._nodes[line]
        if score < GOOD_ENOUGH and not node.branches and node.rounds < self.team.rounds:
            node.rounds += 1
            return (Speak(LEAF, line),)
        if line == 0:
            return self.settle()
        above = self._nodes[node.parent]
        number = len(above.reports)
        report = f"{number + 1}. {above.branches[number]}: {self.answer_on(line)} (score {score})"
        above.reports.append(report)
        self.announce(node.parent, render((Span(OBSERVATION, report),)))
        return self._next_branch(node.parent)

    def _next_branch(self, line: int) -> tuple[Move, ...]:
        """Opens the line of the next branch; the head itself goes on after the last one."""
        node, branch = self._nodes[line], len(self._nodes)
        if len(node.reports) == len(node.branches):
            return (Speak(HEAD, line),)
        self._nodes.append(Node(parent=line, depth=node.depth + 1))
        self.lines.append(Line("", []))
        known = [Span(OBSERVATION, report) for report in node.reports]
        self.announce(branch, render((*known, Span(THINK, node.branches[len(node.reports)]))))
        return (Speak(HEAD if node.depth + 1 < self.team.depth else LEAF, branch),)

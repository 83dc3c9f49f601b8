"""The rules of a team that evolves, after EvoAgent (arXiv 2406.14228): each generation tries another way, and its
answer is merged with the one before.

generator -> answer -> evolver -> selector -> 3, 4: child -> answer -> integrator -> the next generation, or over
                          ^           |
                          '---- 1, 2 -'  up to TRIES ways; then the answer stands

The evolver does crossover and mutation in one reply: which skills the answer lacked, and a way that differs from those
before. Generations follow each other on one line, so that the chain of a run is the work of one agent that begins
again.
"""

from coa.agent.grammar import ANSWER, Chain, Profile, Span
from coa.teams.roles import DOUBLE_CHECK, GENERATOR, Role
from coa.teams.router import GOOD_ENOUGH, Move, Speak, score_of, spans_of
from coa.teams.solving import SolvingRun
from coa.teams.teams import TeamConfig

EVOLVER, SELECTOR, CHILD, INTEGRATOR = "evolver", "selector", "child", "integrator"
TRIES = 3
"""Ways that are proposed before a generation is given up."""


class EvolvedRun(SolvingRun):
    """A run of a team that evolves."""

    name = "evolved"
    own_roles = (
        Role(
            EVOLVER,
            frozenset({"reflection"}),
            "You make agents evolve. Read how the question was worked on and what was answered, and write a reflection "
            "for the agent that tries next: which knowledge, tools or care the work lacked, and one way to answer that "
            "differs from every way before. Do not answer the question.",
        ),
        Role(
            SELECTOR,
            frozenset({DOUBLE_CHECK}),
            "You check the way that the evolver proposes, before an agent takes it. Begin with a score, 1 (it repeats "
            "an earlier way), 2 (it promises little), 3 (it may help) or 4 (it will), then say why in a few words.",
        ),
        Role(
            CHILD,
            frozenset({"plan", "reflection", ANSWER}),
            "You are the next generation of the agent that answered before you: take the way that the evolver "
            "proposes, call one tool at a time and wait for its observation, never repeat a call, then answer.",
            solves=True,
        ),
        Role(
            INTEGRATOR,
            frozenset({DOUBLE_CHECK, ANSWER}),
            "You merge the answers of two generations. Write a check that begins with how sure you are, 1 (not at all) "
            "to 4 (quite), and says in a few words which work supports which answer; then write the answer that the "
            "work supports best.",
        ),
    )
    settings = frozenset({"rounds"})
    solvers = frozenset({GENERATOR, CHILD})
    judge = SELECTOR

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (GENERATOR, *(role.name for role in cls.own_roles))

    def begin(self) -> tuple[Move, ...]:
        self._generation = 0
        self._tries = 0
        return (Speak(GENERATOR),)

    def fits_otherwise(self, move: Speak, reply: str) -> bool:
        chain = spans_of(self.team.brief(move.agent), self.profile, reply) or ()
        return _is_way(chain) if move.agent == EVOLVER else _is_merged(chain)

    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        following = {EVOLVER: SELECTOR, CHILD: INTEGRATOR}.get(move.agent)
        return (Speak(following),) if following else self._next_generation()

    def judged(self, line: int, score: int) -> tuple[Move, ...]:
        if score >= GOOD_ENOUGH:
            return (Speak(CHILD),)
        self._tries += 1
        return (Speak(EVOLVER),) if self._tries < TRIES else self.settle()

    def _next_generation(self) -> tuple[Move, ...]:
        if self._generation >= self.team.rounds:
            return self.settle()
        self._generation += 1
        self._tries = 0
        return (Speak(EVOLVER),)


def _is_way(chain: Chain) -> bool:
    return bool(chain) and chain[-1].tag == "reflection"


def _is_merged(chain: Chain) -> bool:
    """Whether the chain ends with a check that begins with a score, and an answer."""
    *_, check, answer = (Span("", ""), Span("", ""), *chain)
    return (check.tag, answer.tag) == (DOUBLE_CHECK, ANSWER) and score_of(check.text) is not None

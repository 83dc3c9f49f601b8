"""The rules of a team that evolves, after EvoAgent (arXiv 2406.14228): each generation tries another way, and its
answer is merged with the one before.

generator -> answer -> evolver -> selector -> 3, 4: child -> answer -> integrator -> the next generation, or over
                          ^           |
                          '---- 1, 2 -'  up to TRIES ways; then the answer stands

The evolver does crossover and mutation in one reply: which skills the answer lacked, and a way that differs from those
before. Generations follow each other on one line, so that the chain of a run is the work of one agent that begins
again.
"""

from coa.agent.grammar import ANSWER, Chain, Profile, Span, render
from coa.teams.roles import DOUBLE_CHECK, GENERATOR, Role
from coa.teams.router import GOOD_ENOUGH, CallTool, Move, Over, Speak, after_solver, score_in, score_of, spans_of
from coa.teams.run import TeamRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending

EVOLVER, SELECTOR, CHILD, INTEGRATOR = "evolver", "selector", "child", "integrator"
TRIES = 3
"""Ways that are proposed before a generation is given up."""


class EvolvedRun(TeamRun):
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
            "You check the way that the evolver proposes, before an agent goes it. Begin with a score, 1 (it repeats "
            "an earlier way), 2 (it promises little), 3 (it may help) or 4 (it will), then say why in a few words.",
        ),
        Role(
            CHILD,
            frozenset({"plan", "reflection", ANSWER}),
            "You are the next generation of the agent that answered before you: go the way that the evolver proposes, "
            "call one tool at a time and wait for its observation, never repeat a call, then answer.",
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
    any_tags = True

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (GENERATOR, *(role.name for role in cls.own_roles))

    def begin(self) -> tuple[Move, ...]:
        self._solver = GENERATOR
        self._generation = 0
        self._tries = 0
        return (Speak(GENERATOR),)

    def fits(self, move: Speak, reply: str) -> bool:
        brief = self.team.brief(move.agent)
        if move.agent == SELECTOR:
            return score_in(brief, self.profile, reply) is not None
        if move.agent in (EVOLVER, INTEGRATOR):
            chain = spans_of(brief, self.profile, reply) or ()
            return _is_way(chain) if move.agent == EVOLVER else _is_merged(chain)
        following = after_solver(brief, self.profile, 0, reply)
        return not isinstance(following, Over) or following.ending is Ending.ANSWERED

    def follow(self, move: Move, text: str) -> tuple[Move, ...]:
        if isinstance(move, CallTool):
            return (Speak(self._solver),)
        if not self.fits(move, text):
            return self.give_up(0, Ending.MALFORMED)
        if move.agent == EVOLVER:
            return (Speak(SELECTOR),)
        if move.agent == SELECTOR:
            return self._select(text)
        if move.agent == INTEGRATOR:
            return self._next_generation()
        following = after_solver(self.team.brief(move.agent), self.profile, 0, text)
        if not isinstance(following, Over):
            return (following,)
        return (Speak(INTEGRATOR),) if move.agent == CHILD else self._next_generation()

    def _select(self, text: str) -> tuple[Move, ...]:
        score = score_in(self.team.brief(SELECTOR), self.profile, text)
        assert score is not None
        if score >= GOOD_ENOUGH:
            self._solver = CHILD
            return (Speak(CHILD),)
        self._tries += 1
        return (Speak(EVOLVER),) if self._tries < TRIES else self._settle()

    def _next_generation(self) -> tuple[Move, ...]:
        if self._generation >= self.team.rounds:
            return self._settle()
        self._generation += 1
        self._tries = 0
        return (Speak(EVOLVER),)

    def _settle(self) -> tuple[Move, ...]:
        """Ends the run with the last answer."""
        if self.lines[0].said[-1].tag != ANSWER:
            self.announce(0, render((Span(ANSWER, self.answer_on(0)),)))
        self.ending = Ending.ANSWERED
        return ()


def _is_way(chain: Chain) -> bool:
    return bool(chain) and chain[-1].tag == "reflection"


def _is_merged(chain: Chain) -> bool:
    """Whether the chain ends with a check that begins with a score, and an answer."""
    *_, check, answer = (Span("", ""), Span("", ""), *chain)
    return (check.tag, answer.tag) == (DOUBLE_CHECK, ANSWER) and score_of(check.text) is not None

"""The rules of a planner's team: one line of work, on which the last tag, or a thinker, decides which role is next
(`router`)."""

from dataclasses import replace

from coa.agent.grammar import Profile
from coa.teams.roles import CRITIC, PLANNER, THINKER, VERIFIER, worker_of
from coa.teams.router import (
    CallTool,
    Move,
    Next,
    Over,
    Speak,
    after_reply,
    after_thinker,
    after_tool,
    calls_since_plan,
    may_speak,
    replans,
)
from coa.teams.run import TeamRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending


class PlannerRun(TeamRun):
    """A run of a planner's team."""

    name = "planner"
    settings = frozenset({"thinker", "planning_interval"})

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        verifier = (VERIFIER,) if any(tag.name == "suggested_answer" for tag in profile.tags) else ()
        return (PLANNER, worker_of(profile), CRITIC, *verifier, *((THINKER,) if team.thinker else ()))

    def begin(self) -> tuple[Move, ...]:
        return (Speak(THINKER if self.team.thinker else PLANNER),)

    def fits(self, move: Speak, reply: str) -> bool:
        following = self._after(move, reply)
        return not isinstance(following, Over) or following.ending is Ending.ANSWERED

    def follow(self, move: Move, text: str) -> tuple[Move, ...]:
        following = self._after(move, text)
        if isinstance(following, Over):
            self.ending = following.ending
            return ()
        planned = self._replan(move, following)
        return (planned if planned is not following else self._through_thinker(move, following),)

    def _after(self, move: Move, text: str) -> Next:
        if isinstance(move, CallTool):
            return after_tool(self.profile, move.call.tool)
        if move.agent == THINKER:
            return after_thinker(self.profile, text, may_speak(self.profile, self.lines[0].said))
        return after_reply(self.profile, move.agent, text, tuple(self.team.role(move.agent).tools))

    def _replan(self, move: Move, following: Move) -> Move:
        """The planner, or the critic before it, after `planning_interval` calls; else the role that the tags select."""
        interval, said = self.team.planning_interval, self.lines[0].said
        due = interval and isinstance(move, CallTool) and calls_since_plan(said) % interval == 0
        planner = replans(self.profile, said) if due else None
        return Speak(planner) if planner else following

    def _through_thinker(self, move: Move, following: Move) -> Move:
        thought = isinstance(move, Speak) and move.agent == THINKER
        if not self.team.thinker or thought or isinstance(following, CallTool):
            return following
        return replace(following, agent=THINKER)

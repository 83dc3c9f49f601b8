"""The roles of teams: the tags that each may write, and its system prompt."""

from dataclasses import dataclass
from functools import cache

from coa.agent.grammar import ANSWER, TAGS, THINK, Kind, Profile, Tag
from coa.agent.profiles import profile as find_profile
from coa.registry import Registry

PLANNER, SEARCHER, CODER, WORKER = "planner", "searcher", "coder", "worker"
CRITIC, VERIFIER, THINKER = "critic", "verifier", "thinker"
DEBATER, OPPONENT, GENERATOR, REFINER = "debater", "opponent", "generator", "refiner"
DOUBLE_CHECK = "double_check"
TEAM = "team"
"""The author of steps that a team's rules write instead of an agent, such as the outcome of a vote."""
TOOL = "tool"
"""The name under which an observation is shown to the team."""
DONE = "done"
"""The reply of a worker who needs no further tool: it routes the run on and leaves nothing in the chain."""


@dataclass(frozen=True, slots=True)
class Role:
    """A member of a team."""

    name: str
    tags: frozenset[str]
    """Tags that it may write, besides `think`; a worker and a solver also write the calls of their profile's tools."""
    duty: str
    """The role's instructions in the system prompt."""
    solves: bool = False
    """Whether it works on a question alone, with tools, up to an answer."""


ROLES = Registry(
    "role",
    {
        role.name: role
        for role in (
            Role(
                PLANNER,
                frozenset({"plan", "suggested_answer", ANSWER}),
                "You lead. When nobody has written anything yet, write a plan of fine-grained steps; a worker carries "
                "it out. Later, when a worker, the critic or the verifier hands the run back to you, either write a "
                "new plan, or propose an answer for the verifier where that function exists, or give the final "
                "answer. Let the work so far decide: do not answer against an observation.",
            ),
            Role(
                SEARCHER,
                frozenset({"suggested_answer"}),
                "You carry out the plan with the search tools. Write one tool call and wait for its observation; look "
                "up one thing at a time and never repeat a call. Propose an answer for the verifier, where that "
                "function exists, once a result names one. Think without a call to report back to the planner. Reply "
                f"with the single word {DONE} when the last result should go to the critic.",
            ),
            Role(
                CODER,
                frozenset(),
                "You carry out the plan with Python. Write one complete program that prints what is needed and wait "
                "for its output. Think without a program to report back to the planner. Reply with the single word "
                f"{DONE} when the last output should go to the critic.",
            ),
            Role(
                WORKER,
                frozenset({"suggested_answer"}),
                "You carry out the plan with search tools and with Python. Write one tool call and wait for its "
                "observation; look up one thing at a time, compute with complete programs that print what is needed, "
                "and never repeat a call. Propose an answer for the verifier once a web result names one. Think "
                f"without a call to report back to the planner. Reply with the single word {DONE} when the last result "
                "should go to the critic.",
            ),
            Role(
                CRITIC,
                frozenset({"reflection"}),
                "You judge the latest results: do they answer the question, do they conflict, is anything missing? "
                "State in a reflection what they show, briefly; the planner goes on from there.",
            ),
            Role(
                VERIFIER,
                frozenset({DOUBLE_CHECK}),
                "You check the proposed answer against the work so far. Begin with a score, 1 (wrong), 2 (doubtful), "
                "3 (probable) or 4 (right), then say why in a few words. At 1 or 2 a worker goes on; at 3 or 4 "
                "the planner answers.",
            ),
            Role(
                THINKER,
                frozenset(),
                "You conduct the team. Read the work so far, say in a few sentences where it stands and what is needed "
                "next, and end with the member who does it, in the form `next: NAME`. The planner plans and gives the "
                "final answer; a searcher, coder or worker calls tools and proposes answers; the critic reflects on "
                "the latest result; the verifier checks a proposed answer.",
            ),
            Role(
                DEBATER,
                frozenset({"plan", "reflection", ANSWER}),
                "You work the question out on your own: begin with a plan, then call one tool at a time and wait for "
                "its observation, then answer. Others answer the same question; once you see their answers and what a "
                "critic says of yours, weigh them, look again where they are right, and answer again.",
                solves=True,
            ),
            Role(
                OPPONENT,
                frozenset({DOUBLE_CHECK}),
                "You are one of several who answer the same question, and judge the answer of another of them against "
                "the work that led to it and against the other answers. Begin with a score, 1 (wrong), 2 (doubtful), "
                "3 (probable) or 4 (right), then say in a few words what is wrong or missing, or what speaks for it.",
            ),
            Role(
                GENERATOR,
                frozenset({"plan", "reflection", ANSWER}),
                "You make the first attempt: begin with a plan, then call one tool at a time and wait for its "
                "observation, then answer. A verifier will check your answer.",
                solves=True,
            ),
            Role(
                REFINER,
                frozenset({"reflection", ANSWER}),
                "You mend an attempt that the verifier doubts: read what it found, call tools where something has to "
                "be looked up or computed again, then answer.",
                solves=True,
            ),
        )
    },
)


def worker_of(profile: Profile) -> str:
    """The role that calls the profile's tools."""
    tools = {tag.name for tag in profile.tools}
    if tools == {"code"}:
        return CODER
    return WORKER if "code" in tools else SEARCHER


def tags_of(role: str, profile: Profile, tools: tuple[str, ...] = ()) -> tuple[Tag, ...]:
    """The tags that a role may write in runs of a profile. tools: those of the profile's tools that it may call; an
    empty tuple means all."""
    mine = ROLES[role].tags | {THINK}
    works = ROLES[role].solves or role == worker_of(profile)
    return tuple(
        tag
        for tag in profile.tags
        if tag.name in mine or (works and tag.kind is Kind.TOOL and (not tools or tag.name in tools))
    )


@cache
def allowed(role: str, profile_name: str, tools: tuple[str, ...] = ()) -> frozenset[str]:
    """The names of `tags_of`. A role that scores answers writes double checks under every profile; if the profile has
    no such tag, the chain has another tag for it (`coa.distill.convert`)."""
    return frozenset(tag.name for tag in tags_of(role, find_profile(profile_name), tools)) | (
        ROLES[role].tags & {DOUBLE_CHECK}
    )


@cache
def system_prompt(role: str, profile_name: str, duty: str = "", tools: tuple[str, ...] = ()) -> str:
    """The system prompt of a language model that plays the role; `duty` replaces the role's own."""
    profile = find_profile(profile_name)
    mine = allowed(role, profile_name, tools)
    functions = "\n".join(f"- {tag.open} ... {tag.close}: {tag.use}" for tag in TAGS.values() if tag.name in mine)
    return (
        f"You are the {role} of a team that answers a question.\n{duty or ROLES[role].duty}\n"
        f"Write only these functions, each between its tags, and nothing outside of tags:\n{functions}\n"
        f"Rules of the whole team: {profile.guidance}"
    )

"""Writes a run of another system as a transcript: the same steps, in our tags.

A remark of an agent gets a role by its position in the profile's table, from the first line that applies:

    the user answers it                                 think
    it was meant as a plan, and a plan is allowed there plan              unless the next tag may not follow a plan
    the next tag may follow what came before            think
    a reflection may, and after it the next tag         reflection        after `code`, under `code` and `math`
    a plan may, and after it the next tag               plan              before the first tool
    none of these                                       think             the chain violates the table

If a profile begins with a plan and no remark can be the plan, the model's first reasoning becomes it. No text is
invented. A run whose chain violates its profile's table is imported all the same: the filter drops it
(`coa.distill.filters`), or it fits another profile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from coa.agent.grammar import ANSWER, START, THINK, Profile, Span, render
from coa.agent.profiles import profile as find_profile
from coa.distill.sources.foreign import (
    Activation,
    Answer,
    Call,
    Computed,
    ForeignRun,
    Heard,
    Piece,
    Reason,
    Refused,
    Remark,
    Thought,
)
from coa.distill.sources.tools import ToolTable, call_of
from coa.teams.transcript import AgentStep, Ending, Step, ToolStep, Transcript, UserStep
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage

PLAN = "plan"
ROLES = ("reflection", PLAN)
"""Tags that a remark may get where the table does not allow a thought."""


@dataclass(frozen=True, slots=True)
class _Used:
    call: ToolCall
    result: str | None


_Item = Span | Remark | Thought | _Used | Heard
_Written = Span | _Used | Heard


def to_transcript(run: ForeignRun, task: Task, attempt: int, table: ToolTable, model: str = "") -> Transcript:
    """The run as an ungraded transcript that ends with its first answer. model: for agents that name none. Raises
    Refused if the run cannot be written in our tags."""
    profile = find_profile(task.profile)
    work = _up_to_the_answer([_items(activation, profile, table) for activation in run.activations])
    items = [item for items in work for item in items]
    if not items:
        raise Refused(Reason.EMPTY)
    for item in items[:-1]:
        if isinstance(item, _Used) and item.result is None:
            raise Refused(Reason.NO_RESULT, item.call.tool)
    return Transcript(
        task=task,
        attempt=attempt,
        seed=0,
        steps=_steps(run.activations, _with_roles(work, profile)),
        ending=Ending.ANSWERED if _tag_of(items[-1]) == ANSWER else Ending.OUT_OF_STEPS,
        team=run.team,
        models=tuple({one.agent: one.model or model for one in run.activations if one.model or model}.items()),
    )


def _items(activation: Activation, profile: Profile, table: ToolTable) -> list[_Item]:
    return [item for piece in activation.pieces if (item := _item(piece, profile, table)) is not None]


def _item(piece: Piece, profile: Profile, table: ToolTable) -> _Item | None:
    match piece:
        case Thought(text):
            return Thought(text.strip()) if text.strip() else None
        case Answer(text):
            return Span(ANSWER, text.strip()) if text.strip() else None
        case Remark(text, meant):
            return Remark(text.strip(), meant) if text.strip() else None
        case Heard(text):
            return Heard(text.strip()) if text.strip() else None
        case Call(name, arguments, result):
            call = call_of(name, arguments, table, profile)
            return Span(ANSWER, call.argument) if call.tool == ANSWER else _Used(call, result)
        case Computed():
            raise Refused(Reason.NOT_COMPUTED)
    return piece


def _tag_of(item: _Item) -> str:
    """The tag of an item, as far as it is known; "" otherwise."""
    match item:
        case Span(tag, _):
            return tag
        case Thought():
            return THINK
        case _Used(call, _):
            return call.tool
        case Remark(_, meant):
            return meant
        case Heard():
            return ""


def _up_to_the_answer(work: Sequence[list[_Item]]) -> list[list[_Item]]:
    kept: list[list[_Item]] = []
    for items in work:
        answered = next((n for n, item in enumerate(items) if _tag_of(item) == ANSWER), None)
        if answered is not None:
            return [*kept, items[: answered + 1]]
        kept.append(items)
    return kept


def _with_roles(work: Sequence[list[_Item]], profile: Profile) -> list[list[_Written]]:
    every = [item for items in work for item in items]
    tags = [_tag_of(item) for item in every]
    opening = _reasoned_plan(every, profile)
    written: list[list[_Written]] = []
    state, at = START, 0
    for items in work:
        written.append([])
        for n, item in enumerate(items):
            at += 1
            to_user = isinstance(next(iter(items[n + 1 :]), None), Heard)
            following = next((tag for tag in tags[at:] if tag not in ("", THINK)), "")
            if isinstance(item, Thought):
                item = Span(PLAN if item is opening else THINK, item.text)
            elif isinstance(item, Remark):
                item = Span(THINK if to_user else _role(profile, state, item.meant, following), item.text)
            written[-1].append(item)
            state = state if isinstance(item, Heard) or _tag_of(item) == THINK else _tag_of(item)
    return written


def _reasoned_plan(items: Sequence[_Item], profile: Profile) -> Thought | None:
    """The reasoning that becomes the plan: the first, if a plan is needed and there is no remark before the first
    tag."""
    before = list(takewhile(lambda item: isinstance(item, Remark | Thought), items))
    following = _tag_of(items[len(before)]) if len(before) < len(items) else ""
    spoken = any(isinstance(item, Remark) for item in before) or not following or profile.allows(START, following)
    fits = profile.allows(START, PLAN) and profile.allows(PLAN, following)
    return next((item for item in before if isinstance(item, Thought)), None) if fits and not spoken else None


def _role(profile: Profile, state: str, meant: str, following: str) -> str:
    fits = not following or profile.allows(meant, following) or not profile.allows(state, following)
    if meant and profile.allows(state, meant) and fits:
        return meant
    if following and not profile.allows(state, following):
        for role in ROLES:
            if profile.allows(state, role) and profile.allows(role, following):
                return role
    return THINK


def _steps(activations: Sequence[Activation], work: Sequence[list[_Written]]) -> tuple[Step, ...]:
    steps: list[Step] = []
    owed = Usage()
    """Usage of model calls that have no step yet."""
    for activation, items in zip(activations, work, strict=False):
        owed += activation.usage
        for output, after in _outputs(items):
            if output:
                steps.append(AgentStep(activation.agent, output, usage=owed))
                owed = Usage()
            match after:
                case _Used(call, str(result)):
                    steps.append(ToolStep(call, result.strip()))
                case Heard(text):
                    _hear(steps, text)
    owed += sum((one.usage for one in activations[len(work) :]), Usage())
    if owed != Usage():
        last = max(n for n, step in enumerate(steps) if isinstance(step, AgentStep))
        step = steps[last]
        assert isinstance(step, AgentStep)
        steps[last] = replace(step, usage=step.usage + owed)
    return tuple(steps)


def _hear(steps: list[Step], text: str) -> None:
    """Adds what the user said: to the result that the agent received with it, or as a step of its own."""
    match steps[-1] if steps else None:
        case ToolStep(call, observation):
            steps[-1] = ToolStep(call, f"{observation}\n\n{text}")
        case _:
            steps.append(UserStep(text))


def _outputs(items: Sequence[_Written]) -> Iterator[tuple[str, _Used | Heard | None]]:
    """Yields what an agent writes up to each of its tool calls, with the call, or up to a user's message, with the
    message, and what it writes after the last."""
    spans: list[Span] = []
    for item in items:
        match item:
            case Span():
                spans.append(item)
            case Heard():
                yield render(spans), item
                spans = []
            case _Used(call):
                yield render([*spans, Span(call.tool, call.argument)]), item
                spans = []
    if spans:
        yield render(spans), None

"""A teacher in the place of the policy: what it answers to programs is written as the policy would write it."""

import json

import numpy as np

from actors.gateway.session import Request
from actors.handles import Handle
from actors.messages import TurnOrder
from coa.agent.journal import Said
from coa.errors import InfrastructureError, ProgramFailed, UserError
from coa.json_object import Json
from coa.llm.completions import Completion
from coa.seeds import derive
from coa.usage import Usage


class Teacher:
    """Takes a program's turns (`TakeTurn`), in the version 0 of no policy."""

    def __init__(self, model: Handle) -> None:
        """model: a TeacherModel."""
        self._model = model
        self.usage = Usage()
        """Of all turns so far, also of those that failed."""
        self._written = set[bool]()
        """Whether a reply with calls of tools, and one without, could be written."""

    async def __call__(self, order: TurnOrder, request: Request) -> Said:
        """Raises InfrastructureError if the model gives no reply, or one that the policy could not have said: its chat
        template does not write it, or its parser would read other calls. If that is the first reply of its kind, it
        raises UserError."""
        options: Json = {"tools": list(request.tools)} if request.tools else {}
        seed = derive(order.draw, order.id.task, order.id.group, order.id.sample)
        asked = [_as_sent(message) for message in request.messages]
        answer: Completion | InfrastructureError = await self._model.complete.remote(asked, seed, options)
        self.usage += answer.usage
        if isinstance(answer, InfrastructureError):
            raise answer
        assert request.turn_of is not None, "its messages were read"
        reply: Json = {"role": "assistant", "content": answer.text}
        if answer.tool_calls:
            reply["tool_calls"] = list(answer.tool_calls)
        stops, calls = order.sampling.stop or (), bool(answer.tool_calls)
        try:
            tokens = await request.turn_of(reply, (stops,) if isinstance(stops, str) else stops)
        except UserError as error:
            if calls in self._written:  # an odd reply
                raise ProgramFailed(str(error)) from error
            raise
        self._written.add(calls)
        return Said(
            token_ids=tokens, logprobs=np.zeros(len(tokens), np.float32), versions=((0, len(tokens)),), ended=True
        )


def _as_sent(message: Json) -> Json:
    """The message as endpoints take it: chat templates want the arguments of calls as objects, endpoints as text."""
    calls = [{**call, "function": _with_text(call["function"])} for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls} if calls else message


def _with_text(function: Json) -> Json:
    given = function.get("arguments")
    return {**function, "arguments": given if isinstance(given, str) else json.dumps(given)}

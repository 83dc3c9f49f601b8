"""Errors that clients receive, in the format of their protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.serving.events import TOOL_DOWN

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's error types, by status."""


@dataclass(eq=False)
class ApiError(UserError):
    """A request that is refused, or could not be finished."""

    status: int
    """HTTP status."""
    code: str
    """A short name that programs can compare."""
    message: str
    param: str | None = None
    """The invalid field of the request, if any."""
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.message

    def body(self, path: str) -> Json:
        """The error in the format of the protocol at that path."""
        return self.anthropic() if path.startswith("/v1/messages") else self.openai()

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, round(self.retry_after_s)))}

    def openai(self) -> Json:
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> Json:
        return {"type": "error", "error": {"type": _TYPES.get(self.status, "api_error"), "message": self.message}}


class Invalid(Protocol):
    """The error that pydantic and FastAPI raise for a body of another form."""

    def errors(self) -> Sequence[JsonView]: ...


def invalid_form(error: Invalid) -> ApiError:
    """An error with the first problem of what validation found."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return ApiError(400, "invalid_value", f"{where}: {first['msg']}" if where else first["msg"], where or None)


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param)


def fault_of(code: str, message: str) -> ApiError:
    """An error for a failed part of the system."""
    return ApiError(503 if code == TOOL_DOWN else 500, code, message)


def no_response(id: str, param: str | None = None) -> ApiError:
    return ApiError(404, "response_not_found", f"no response {id!r}", param)

"""What /openapi.json says beyond the types of the requests: the models that there are, and the form of errors."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""How a route says that its answer may be a stream."""


class Fault(BaseModel):
    type: str
    message: str


class OpenaiFault(Fault):
    param: str | None
    code: str


class OpenaiError(BaseModel):
    """Of `ApiError.openai`."""

    error: OpenaiFault


class AnthropicError(BaseModel):
    """Of `ApiError.anthropic`."""

    type: str
    error: Fault


def told_as(kind: type[BaseModel]) -> dict[str, Any]:
    """How a route describes its errors, whose statuses are many and whose form is one."""
    return {"model": kind, "description": "The request can't be met."}


def describe(app: FastAPI, models: Sequence[str]) -> None:
    """models: what requests may name."""

    def openapi() -> dict[str, Any]:
        described = FastAPI.openapi(app)
        for schema in described["components"]["schemas"].values():
            if "model" in schema["properties"]:
                schema["properties"]["model"]["enum"] = list(models)
        return described

    app.openapi = openapi

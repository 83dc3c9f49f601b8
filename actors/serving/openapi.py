"""Additions to /openapi.json beyond the request types: names of the models, and the form of errors."""

from collections.abc import Sequence

from fastapi import FastAPI
from pydantic import BaseModel

from coa.json_object import Json

STREAMS: dict[int | str, Json] = {200: {"content": {"text/event-stream": {}}}}
"""`responses` argument of a route whose answer may be a stream."""


class Fault(BaseModel):
    type: str
    message: str


class OpenaiFault(Fault):
    param: str | None
    code: str


class OpenaiError(BaseModel):
    """Body of an error in OpenAI's protocols (`ApiError.openai`)."""

    error: OpenaiFault


class AnthropicError(BaseModel):
    """Body of an error in Anthropic's protocol (`ApiError.anthropic`)."""

    type: str
    error: Fault


def told_as(kind: type[BaseModel]) -> Json:
    """Description of a route's errors, which all have the same form."""
    return {"model": kind, "description": "The request can't be met."}


def describe(app: FastAPI, models: Sequence[str]) -> None:
    """Adds the model names to the schema. models: names that requests may use."""

    def openapi() -> Json:
        described = FastAPI.openapi(app)
        for schema in described["components"]["schemas"].values():
            if "model" in schema.get("properties", ()):
                schema["properties"]["model"]["enum"] = list(models)
        return described

    app.openapi = openapi

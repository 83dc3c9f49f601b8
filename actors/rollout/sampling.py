"""Sampling parameters of vLLM that somebody else has made."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import vllm


def changed(asked: "vllm.SamplingParams", **fields: object) -> "vllm.SamplingParams":
    """A copy with other fields; raises AttributeError for one that vLLM does not know."""
    params = asked.clone()
    for name, value in fields.items():
        setattr(params, name, value)
    return params

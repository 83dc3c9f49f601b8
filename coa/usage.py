"""What language models are asked for, counted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What replies of language models took; scripted experts take nothing."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __sub__(self, other: "Usage") -> "Usage":
        return self + Usage(-other.requests, -other.prompt_tokens, -other.completion_tokens)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

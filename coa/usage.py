"""How much language models were asked for: requests and tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Requests sent to language models and the tokens of their prompts and completions; scripted experts use none."""

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

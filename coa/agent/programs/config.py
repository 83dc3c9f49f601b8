"""Which program is the agent of a run's episodes."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from coa.bounds import AtLeast1
from coa.errors import UserError


@dataclass(frozen=True)
class ProgramConfig:
    """An agent that somebody else wrote, which plays a run's episodes in place of a profile. It asks the policy through
    the base URL and with the key that it is given. Set either `command` or `function`."""

    command: tuple[str, ...] = ()
    """A program and its arguments, started anew for each episode: the question comes at its standard input, and the
    last line that it prints is the answer. OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
    lead its client to the policy."""
    function: str | None = None
    """MODULE:FUNCTION, a coroutine function `run(task, base_url, key)` that returns the answer as text. `task` has the
    keys `id` and `question`; the environment variables are those of `command`, too."""
    at_once: AtLeast1 = 16
    """Maximum number of programs that run at the same time; further episodes wait."""
    tool_parser: str = "hermes"
    """vLLM's parser of the model's tool calls: hermes, llama3_json, mistral, qwen3_coder and so on."""
    auxiliary: bool = False
    """Whether calls of which nothing came are trained, too: those that begin a conversation, call no tool, and whose
    text neither a later call nor the answer contains."""

    def __post_init__(self) -> None:
        if self.command and self.function:
            raise ValueError("command and function are both set; set only one of them")
        if self.function is not None and not all(self.function.partition(":")):
            raise ValueError(f"function: {self.function!r}; expected MODULE:FUNCTION")

    @property
    def is_set(self) -> bool:
        return bool(self.command or self.function)


def check_program(config: ProgramConfig) -> None:
    """Raises UserError for a program that is not there."""
    if config.command and shutil.which(config.command[0]) is None:
        raise UserError(f"agent.program.command: no program {config.command[0]!r} is found")
    if config.function is None:
        return
    module = config.function.partition(":")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = find_spec(module)
    except (ImportError, ValueError) as error:
        raise UserError(f"agent.program.function: {module} can't be imported: {error}") from error
    if found is None:
        raise UserError(f"agent.program.function: no module {module!r} is found here, in {os.getcwd()}")

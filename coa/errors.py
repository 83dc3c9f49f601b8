"""The ways in which things fail, as types.

`UserError` is a person's mistake: the command line prints it as one line and exits with status 2.
`InfrastructureError` is something of ours that is down; an episode that meets one never becomes a sample.
A wrong answer is neither: it is data.
"""

from coa.usage import Usage


class UserError(Exception):
    """A mistake in a recipe, a file or an argument; its text is the one line that the person sees."""


class InfrastructureError(Exception):
    """A part of the system failed; the work is issued again and the failure is counted."""

    usage = Usage()
    """What language models took and gave no reply for."""


class ToolDown(InfrastructureError):
    """A tool could not run at all (its server is gone, its sandbox is missing), as opposed to giving a bad result."""


class JudgeDown(ToolDown):
    """The judge of answers gave no verdict."""


class SyncError(InfrastructureError):
    """An engine's weights are not the learner's after a sync."""


class EndpointDown(InfrastructureError):
    """A language model's endpoint gave no completion, after all attempts."""

    def __init__(self, text: str, reason: str = "") -> None:
        """reason: a short name to count by, such as "refused"."""
        super().__init__(text)
        self.reason = reason


class EmptyCompletion(InfrastructureError):
    """A language model gave completions without text, at all attempts."""


class RequestRefused(InfrastructureError):
    """An endpoint refuses one request, such as for its content; it is not sent again."""


class ContextTooLong(RequestRefused):
    """A prompt, with room for its reply, is longer than a language model's context."""


class ReplyCutOff(RequestRefused):
    """All tokens that a reply may have are used up before its first word, such as by reasoning."""


class ModelServerDown(InfrastructureError):
    """A server of a language model, started here, did not come up or has ended."""


class DiskFull(InfrastructureError):
    """What has to be kept can't be written."""

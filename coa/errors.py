"""The kinds of failure, as exception types.

`UserError` is a user's mistake: the command line prints it as one line and exits with status 2.
`InfrastructureError` is a part of this system that failed; an episode that meets one never becomes a sample.
A wrong answer is neither: it is data.
"""

from coa.usage import Usage


class UserError(Exception):
    """A mistake in a recipe, a file or an argument; its text is the one line that the user sees."""


class InfrastructureError(Exception):
    """A part of the system failed; the work is issued again and the failure is counted."""

    usage = Usage()
    """Requests and tokens that were sent to language models before this failure."""


class ToolDown(InfrastructureError):
    """A tool could not run at all (its server is gone, its sandbox is missing). A bad result of a tool is no error."""


class ExecutorLost(ToolDown):
    """A tool executor ended, or was ended because it gave no answer, while it had a call: the call may have run."""


class CallLost(ToolDown):
    """A tool call that was repeated after its executor had ended, and whose second executor ended too. It is not made
    again, since it may be what ends them."""


class JudgeDown(ToolDown):
    """The judge of answers gave no verdict."""


class EpisodeTimeout(InfrastructureError):
    """An episode took longer than it may."""


class SyncError(InfrastructureError):
    """An engine's weights are not the learner's."""


class DamagedWeights(SyncError):
    """Bytes of the weights are not those that the learners have published."""


class IncompleteWeights(SyncError):
    """A part of the weights is missing: a bucket, a tensor, or a layer that took none."""


class WrongVersion(SyncError):
    """An engine or one of its workers runs another version than it should, or was sent another."""


class WeightsGone(SyncError):
    """A sync failed after the engine's update had begun: the engine has no whole weights until a complete one."""


class WeightsLost(SyncError):
    """The weights to load are lost with the process that kept them, which is no fault of whoever asks; learners that
    start again publish others."""


class StaleWeights(SyncError):
    """An engine's output does not follow its weights: it computes with others than those that were loaded."""


class EngineDied(InfrastructureError):
    """A rollout engine ended, or stood still and was ended; its text says why."""


class NoEngine(InfrastructureError):
    """No rollout engine could be started any more, after all tries."""


class EpisodeFailed(InfrastructureError):
    """An infrastructure failure ended an episode for good."""

    def __init__(self, where: str, why: str, *, tokens: int, tool_calls: int) -> None:
        """where: type of the failure, such as "ToolDown". tokens: of the episode so far, without its prompt if the
        driver ended it, which does not have the prompt's tokens. tool_calls: those that were made, the failing one
        included."""
        super().__init__(f"{where}: {why}")
        self.where, self.why, self.tokens, self.tool_calls = where, why, tokens, tool_calls


class ProgramFailed(InfrastructureError):
    """A program that is the agent of an episode crashed, or asked the policy nothing."""


class NotFinite(InfrastructureError):
    """A model gave a log-prob that is no finite number."""


class NothingLearnt(InfrastructureError):
    """Learners skipped the updates of several steps in a row."""


class EndpointDown(InfrastructureError):
    """A language model's endpoint gave no completion, after all attempts."""

    def __init__(self, text: str, reason: str = "") -> None:
        """reason: a short name to count by, such as "refused"."""
        super().__init__(text)
        self.reason = reason


class EmptyCompletion(InfrastructureError):
    """A language model gave a completion without text at every attempt, or an engine one without a token: even a policy
    that stops at once samples the end."""


class RequestRefused(InfrastructureError):
    """An endpoint refuses one request, such as for its content; it is not sent again."""


class ContextTooLong(RequestRefused):
    """A prompt, with room for its reply, is longer than a language model's context."""


class ReplyCutOff(RequestRefused):
    """A reply reached `max_tokens` before its first visible word, for instance because the model reasoned first."""


class ModelServerDown(InfrastructureError):
    """A language model's server that this system started did not come up, or has ended."""


class ClusterDown(InfrastructureError):
    """Ray could not be started."""


class OutOfMemory(InfrastructureError):
    """A machine ran out of memory, and Ray ended processes of ours on it."""


class DiskFull(InfrastructureError):
    """A file that has to be kept can't be written, because the disk is full."""


class ReadOnlyDisk(InfrastructureError):
    """A file that has to be kept can't be written, because its file system has become read-only."""


class DamagedFile(InfrastructureError):
    """A file that a run has recorded is missing, or not what was written."""

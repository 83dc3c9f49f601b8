"""What several test files share: tokenizers, chains of every profile, a scripted policy and scripted tools."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coa.agent.codec import Codec
from coa.agent.episode import Ask, Limits
from coa.agent.grammar import ANSWER, OBSERVATION, START, TAGS, THINK, Chain, Kind, Profile, Span
from coa.agent.journal import Said
from coa.agent.profiles import PROFILES
from coa.agent.records import EpisodeRecord
from coa.agent.tokenizer import BEGIN, END, PAD, train_tokenizer
from coa.errors import InfrastructureError
from coa.tools.base import ToolCall
from coa.types import Status, Task

OPENING, CLOSING = f"{BEGIN}user\n", f"{END}\n{BEGIN}assistant\n"
CORPUS = [
    "The mayor of Arden is Berg .",
    "print(3*4-5)",
    "find the town , then its mayor",
    "<plan> </plan> answer",
] * 30


@cache
def tag_codec() -> Codec:
    """Every tag is one token, as with the tokenizer of a policy trained from scratch."""
    tokenizer = train_tokenizer(CORPUS, ["Arden", "Berg"], vocabulary=500)
    return Codec(tokenizer, opening=OPENING, closing=CLOSING)


@cache
def text_codec() -> Codec:
    """Tags are ordinary text and only chat marks are special, as with a pretrained model's tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return Codec(tokenizer, opening=OPENING, closing=CLOSING)


CODECS: dict[str, Callable[[], Codec]] = {"tags are tokens": tag_codec, "tags are text": text_codec}

# --- texts and chains -------------------------------------------------------------------------------------------------

_TAG_TEXT = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]
_PIECES = [*_TAG_TEXT, "<", "</", ">", "\\", "\\\\", "/", "answer>", "<\\answer>", "\x00", "\n", " ", "  ", "�"]
_MARKS = [PAD, BEGIN, END, "<|im_", "é", "🙂", "plan"]

texts = st.lists(st.one_of(st.sampled_from([*_PIECES, *_MARKS]), st.text(max_size=5)), max_size=8).map("".join)
"""Text that nobody vouches for: pieces of tags, escapes, chat marks, control characters, any Unicode."""

plain_texts = st.sampled_from(["", "a", " a ", "Arden is a town", "3*4-5", "<answer> Berg</answer>"])

profiles = st.sampled_from(list(PROFILES.values()))


def chains(profile: Profile, text: st.SearchStrategy[str] = texts) -> st.SearchStrategy[Chain]:
    """Any spans of the profile, in any order."""
    tags = st.sampled_from([tag.name for tag in profile.tags])
    return st.lists(st.builds(Span, tags, text), max_size=6).map(tuple)


@st.composite
def answered_chains(draw: st.DrawFn, profile: Profile, text: st.SearchStrategy[str] = texts) -> Chain:
    """Chains by the transition table, from START to an answer, thoughts in between."""
    spans: list[Span] = []
    state = START
    while state != ANSWER:
        if draw(st.booleans()):
            spans.append(Span(THINK, draw(text)))
        following = profile.transitions[state]
        # After a while, the way that leads on: the last entry of each row comes closer to the answer.
        state = draw(st.sampled_from(following)) if len(spans) < 8 else following[-1]
        spans.append(Span(state, draw(text)))
        if TAGS[state].kind is Kind.TOOL:
            spans.append(Span(OBSERVATION, draw(text)))
    return tuple(spans)


def task(profile: str = "mhqa", *, question: str = "Who ?", answers: tuple[str, ...] = ("Berg",)) -> Task:
    return Task(id="t", question=question, answers=answers, profile=profile, family="test")


# --- a scripted policy and scripted tools -----------------------------------------------------------------------------

ROOMY = Limits(max_turns=20, max_turn_tokens=10_000, max_observation_tokens=10_000, max_tokens=100_000)


def turns_of(chain: Chain) -> tuple[list[Chain], list[str]]:
    """A chain cut at its observations: what the policy says in each turn, and what the tools answer."""
    turns: list[list[Span]] = [[]]
    observations: list[str] = []
    for span in chain:
        if span.tag == OBSERVATION:
            observations.append(span.text)
            turns.append([])
        else:
            turns[-1].append(span)
    return [tuple(turn) for turn in turns], observations


class ScriptedPolicy:
    """Says the given turns, tag text or tokens, one after another; turn t is sampled by version t, at log-prob -t - 1.

    A turn that is longer than it may be is cut off, and has not ended.
    """

    def __init__(self, codec: Codec, turns: Sequence[str | Chain]) -> None:
        self._codec = codec
        self._turns: deque[str | Chain | list[int]] = deque(turns)
        self.prompts: list[list[int]] = []
        self.constraints: list[str | None] = []

    def say(self, token_ids: list[int]) -> None:
        """One more turn."""
        self._turns.append(token_ids)

    async def __call__(self, ask: Ask) -> Said:
        self.prompts.append(ask.prompt.tolist())
        self.constraints.append(ask.constraint)
        said = self._turns.popleft()
        ids = tokens_of(self._codec, said) if isinstance(said, str) else said
        if isinstance(ids, tuple):
            ids = spans_of(self._codec, ids)
        return said_of(ids, version=ask.turn, logprob=-ask.turn - 1, max_tokens=ask.max_tokens)


def said_of(ids: list[int], *, version: int, logprob: float, max_tokens: int) -> Said:
    """A turn of these tokens, cut off where it is longer than it may be."""
    n = min(len(ids), max_tokens)
    return Said(
        token_ids=np.array(ids[:n], np.int32),
        logprobs=np.full(n, logprob, np.float32),
        versions=((version, n),),
        ended=n == len(ids),
    )


def spans_of(codec: Codec, chain: Chain) -> list[int]:
    return [one for span in chain for one in codec.span(span)]


def tokens_of(codec: Codec, text: str) -> list[int]:
    """Tokens that spell the text as it stands, as only a policy can say it."""
    return [one for character in text for one in codec.text(character)]


class ScriptedTools:
    """Answers the given texts, one after another; raises those that are failures."""

    def __init__(self, *answers: str | InfrastructureError) -> None:
        self._answers = deque(answers)
        self.calls: list[ToolCall] = []

    async def __call__(self, call: ToolCall) -> str:
        self.calls.append(call)
        answer = self._answers.popleft()
        if isinstance(answer, InfrastructureError):
            raise answer
        return answer


def played(
    correct: bool, *, sample: int = 0, well_formed: bool = True, status: Status = Status.ANSWERED, answer: str = ""
) -> EpisodeRecord:
    """What is told of an episode of one turn."""
    return EpisodeRecord(
        sample=sample,
        grade=float(correct),
        reward=float(correct),
        correct=correct,
        well_formed=well_formed,
        repairs=(),
        status=status,
        answer=answer,
        text="",
        turns=1,
        tool_calls=(),
        tokens=10,
        policy_tokens=5,
        tokens_sent=10,
        oldest=0,
        newest=0,
    )

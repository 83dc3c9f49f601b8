"""Small real things for tests: a model with random weights, its tokenizer, and tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coa.agent.episode import AgentConfig, Limits
from coa.types import ENVIRONMENT, Sample, Task

AGENT = AgentConfig(
    instructed=False,
    limits=Limits(max_turns=3, max_turn_tokens=24, max_observation_tokens=32, max_tokens=192),
)
TEXTS = (
    "A shop gets 12 boxes of 3 cups and sells 14 . How many cups remain ?",
    " compute by code",
    " print(12*3-14)",
    " code says 22",
)


def make_model(folder: Path, *, seed: int = 0, **sizes: Any) -> Path:
    """A Hugging Face folder with an untrained policy."""
    from actors.learner.config import ModelConfig
    from actors.learner.model.load import new_model
    from coa.agent.tokenizer import save_tokenizer, train_tokenizer

    tokenizer = train_tokenizer(TEXTS * 20, (), vocabulary=1000)
    save_tokenizer(tokenizer, folder)
    config = replace(ModelConfig(hidden_size=64, layers=2, max_positions=512), **sizes)
    model = new_model(config, tokenizer, seed=seed)
    model.save_pretrained(folder)
    return folder


def sum_task(index: int) -> Task:
    a, b, c = 10 + index % 80, 2 + index % 7, 10 + index % 9
    return Task(
        id=f"sum-{index}",
        question=f"A shop gets {a} boxes of {b} cups and sells {c} . How many cups remain ?",
        answers=(str(a * b - c),),
        profile="code",
        family="calc",
    )


def random_sample(rng: np.random.Generator, vocabulary: int, *, imitate: bool = False, version: int = 0) -> Sample:
    """Between 10 and 60 tokens, about half of them trained."""
    length = int(rng.integers(10, 60))
    loss_mask = rng.random(length) < 0.5
    loss_mask[0] = False
    weights = np.where(loss_mask, rng.normal(size=length), 0).astype(np.float32)
    zeros = np.zeros(length, np.float32)
    return Sample(
        token_ids=rng.integers(0, vocabulary, length).astype(np.int32),
        loss_mask=loss_mask,
        imitate=loss_mask.astype(np.float32) if imitate else zeros,
        reinforce=zeros if imitate else weights,
        rollout_logprobs=np.where(loss_mask, np.float32(-6.0), np.float32(0)),
        versions=np.where(loss_mask, version, ENVIRONMENT).astype(np.int32),
    )

"""What a stage makes of a model before anything runs: the folder it starts from, and what engines are probed with."""

from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from actors.learner.config import ModelConfig
from actors.learner.loop import PROBES, probed
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.agent.profiles import profile
from jobs.stages.rl import LONG_PROBE_TOKENS, probe_sequences
from jobs.stages.start import copy_pretrained, prepare_start, prepare_tokenizer
from tests.support.tiny import AGENT, make_model, sum_task


@pytest.mark.slow
def test_a_start_model_for_gpus_is_made_on_a_machine_without_one(tmp_path: Path) -> None:
    source = make_model(tmp_path / "source")
    config = ModelConfig(path=str(source), attention="flash_attention_2")
    run: Any = SimpleNamespace(
        start_model=tmp_path / "start", tokenizer=source, config=SimpleNamespace(model=config, seed=0)
    )
    prepare_start(run)
    assert (tmp_path / "start" / "model.safetensors").exists()
    assert "sdpa" not in (tmp_path / "start" / "config.json").read_text()


def test_a_run_keeps_the_date_of_its_prompts_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}")
    config = SimpleNamespace(model=ModelConfig(path=str(source)))
    run: Any = SimpleNamespace(tokenizer=tmp_path / "tokenizer", config=config)
    for today in ("2026-05-01", "2026-11-26"):
        day = SimpleNamespace(today=partial(date.fromisoformat, today), fromisoformat=date.fromisoformat)
        monkeypatch.setattr("coa.agent.dates.date", day)
        codec = Codec.load(prepare_tokenizer(run))
        assert codec.decode(codec.prompt(profile("direct"), "Who?", instructed=False)) == "2026-05-01 Who?"


def test_a_start_model_is_one_file_whatever_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As engines expect it that are sent its weights; transformers would begin another file at 50 GB."""
    source, asked = make_model(tmp_path / "source"), []
    save = PreTrainedModel.save_pretrained

    def noted(model: Any, folder: Path, **how: Any) -> None:
        asked.append(how)
        save(model, folder, **how)

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", noted)
    copy_pretrained(ModelConfig(path=str(source)), tmp_path / "start")
    assert asked == [{"max_shard_size": "100TB"}]
    assert (tmp_path / "start" / "model.safetensors").exists()


def run_of(folder: Path, agent: AgentConfig) -> Any:
    return SimpleNamespace(
        sft_model=folder, training_task=lambda _, index: sum_task(index), config=SimpleNamespace(agent=agent)
    )


@pytest.mark.parametrize(("max_tokens", "expected"), [(192, 191), (1000, 999), (32768, LONG_PROBE_TOKENS)])
def test_the_fixed_probe_is_as_long_as_an_engine_takes_it(max_tokens: int, expected: int, tmp_path: Path) -> None:
    agent = replace(AGENT, limits=replace(AGENT.limits, max_tokens=max_tokens))
    [probe] = probe_sequences(run_of(make_model(tmp_path), agent))
    assert len(probe) == expected


def test_samples_are_probed_by_their_beginnings_and_the_fixed_probe_whole() -> None:
    fixed, sample = np.arange(3000, dtype=np.int32), np.arange(500, dtype=np.int32)
    job: Any = SimpleNamespace(probe=(fixed,), probe_tokens=256)
    assert [len(one) for one in probed(job, (sample,))] == [3000, 256, 256]
    assert len(probed(job, ())) == 1 + PROBES

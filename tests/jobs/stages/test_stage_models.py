"""What a stage makes of a model before anything runs: the folder it starts from, and what engines are probed with."""

import json
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
from coa.agent.chat_template import date_of
from coa.agent.codec import Codec, read_tokenizer
from coa.agent.episode import AgentConfig
from coa.agent.profiles import profile
from coa.config import load
from coa.distill.dataset.tokens import fingerprint
from coa.errors import UserError
from jobs.recipe.find import find_recipe
from jobs.recipe.models import models_of
from jobs.recipe.schema import Recipe
from jobs.stages.rl import LONG_PROBE_TOKENS, probe_sequences
from jobs.stages.start import copy_pretrained, copy_tokenizer, keep_tokenizer, prepare_start, prepare_tokenizer
from tests.support.tiny import AGENT, make_model, sum_task
from tests.support.tokenizer_kinds import KINDS, LAYOUTS, write


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


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        (("model.max_positions=null",), 384),
        (("model.max_positions=null", "sft.max_tokens=700"), 700),
        (("model.max_positions=null", "sft.max_tokens=100"), 384),
        ((), 512),
    ],
)
def test_a_new_model_has_the_positions_that_its_recipe_asks_for(
    tmp_path: Path, settings: tuple[str, ...], positions: int
) -> None:
    config = load(Recipe, find_recipe("tiny"), settings)
    assert list(models_of(config, ("sft", "rl"), ())) == []
    source = make_model(tmp_path / "source")
    run: Any = SimpleNamespace(start_model=tmp_path / "start", tokenizer=source, config=config)
    prepare_start(run)
    assert json.loads((tmp_path / "start" / "config.json").read_text())["max_position_embeddings"] == positions


def test_a_run_keeps_the_date_of_its_prompts_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}")
    config = SimpleNamespace(model=ModelConfig(path=str(source)))
    run: Any = SimpleNamespace(tokenizer=tmp_path / "tokenizer", config=config)
    for today in ("2026-05-01", "2026-11-26"):
        day = SimpleNamespace(today=partial(date.fromisoformat, today), fromisoformat=date.fromisoformat)
        monkeypatch.setattr("coa.agent.chat_template.date", day)
        codec = Codec.load(prepare_tokenizer(run))
        assert codec.decode(codec.prompt(profile("direct"), "Who?", instructed=False)) == "2026-05-01 Who?"


def test_a_run_keeps_all_templates_of_a_tokenizer(tmp_path: Path) -> None:
    source = write(KINDS["bytes"](), tmp_path / "source", LAYOUTS["chat marks"])
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "rag.jinja").write_text("{{ strftime_now('%d') }}")
    keep_tokenizer(str(source), tmp_path / "kept")
    (tmp_path / "copy").mkdir()
    copy_tokenizer(tmp_path / "kept", tmp_path / "copy")
    copy_tokenizer(tmp_path / "kept", tmp_path / "copy")
    templates = read_tokenizer(tmp_path / "copy").chat_template
    assert templates["default"] == LAYOUTS["chat marks"]
    assert date_of(templates) == date_of(templates["rag"]) == date.today()


@pytest.mark.parametrize("legacy", [True, False, None])
def test_a_tokenizer_is_kept_as_it_was_read(tmp_path: Path, legacy: bool | None) -> None:
    source = write(KINDS["prepend"](), tmp_path / "source", LAYOUTS["instruction"])
    path = source / "tokenizer_config.json"
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "unk_token": "<unk>"}
    settings |= {} if legacy is None else {"legacy": legacy}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    keep_tokenizer(str(source), tmp_path / "kept")
    assert fingerprint(Codec.load(tmp_path / "kept")) == fingerprint(Codec.load(source))


def test_a_tokenizer_that_can_not_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(KINDS["metaspace first"](), tmp_path / "source", LAYOUTS["instruction"])

    def save(tokenizer: Any, folder: Path) -> None:
        write(KINDS["metaspace always"](), folder, LAYOUTS["instruction"])

    monkeypatch.setattr("jobs.stages.start.save_as_read", save)
    with pytest.raises(UserError, match=r"its tokenizer gives other tokens once transformers has saved it$"):
        keep_tokenizer(str(source), tmp_path / "kept")


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

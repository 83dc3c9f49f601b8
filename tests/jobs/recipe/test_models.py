"""The models that a recipe or a command names are looked at before anything starts, and so are their questions."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from actors.teachers.model_server import ModelServerConfig
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Grammar
from coa.agent.profiles import profile
from coa.agent.proof import TEXTS
from coa.config import load
from coa.errors import UserError
from coa.types import Task
from jobs.recipe.find import find_recipe
from jobs.recipe.findings import Finding
from jobs.recipe.hub import require_hub_models
from jobs.recipe.models import begun_at, check_questions, model_server, models_of, served_model
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import write_agent
from tests.support.fakes import tag_codec
from tests.support.mistakes import ROW, mistake, tasks_file
from tests.support.tiny import AGENT, make_model

NO_FIT = "its weights do not fit its config.json: 1 tensor is missing: lm_head.weight ["


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "m"))


@pytest.fixture
def damaged(model: Path) -> Path:
    """A model without its output layer, which transformers would draw at random."""
    tensors = load_file(model / "model.safetensors")
    del tensors["lm_head.weight"]
    write_agent(model, AGENT)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


COMPARED = f"{len(TEXTS)} texts come back from their tokens, 8 prompts are the template's"


def questions(*texts: str) -> list[Task]:
    return [
        Task(id=f"q{number}", question=text, answers=("1",), profile="code", family="")
        for number, text in enumerate(texts, 1)
    ]


def refusal(check: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        check()
    return str(caught.value)


def recipe(*settings: str) -> Recipe:
    """Of a run that has not begun: in a checkout, the recipe's own folder may hold a finished one."""
    return load(Recipe, find_recipe("tiny"), ("run_dir=not/begun", *settings))


# --- every command that loads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("train",), ("sft", "sft.data=[rows.json]"), ("rl", "sft.steps=0"), ("distill",)])
def test_a_run_refuses_a_model_that_does_not_fit_before_it_writes_anything(
    damaged: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(damaged.parent)
    rows = [{"instruction": ROW["question"], "input": "", "output": "<answer> 5</answer>"}]
    (damaged.parent / "rows.json").write_text(json.dumps(rows))
    told = mistake(capfd, words[0], "--recipe", "tiny", "run_dir=run", f"model.path={damaged}", *words[1:])
    assert told.startswith(f"model.path {damaged}: {NO_FIT}")
    assert not (damaged.parent / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--tasks", "tasks.jsonl", "tasks.profile=direct"),
        ("select", "--tasks", "tasks.jsonl", "--mode", "direct"),
        ("ask", "What is 2 + 3 ?", "--profile", "direct"),
        ("serve",),
    ],
)
def test_a_command_with_a_model_refuses_one_that_does_not_fit(
    damaged: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(damaged.parent)
    tasks_file(damaged.parent, {**ROW, "profile": "direct"})
    told = mistake(capfd, words[0], "--model", "m", *words[1:])
    assert told.startswith(f"m: {NO_FIT}")
    assert not (damaged.parent / "runs").exists()


def test_a_command_with_a_folder_of_adapters_says_so(
    model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    told = mistake(capfd, "serve", "--model", "m")
    assert told.startswith("m: it holds adapters (adapter_config.json) and no whole model: merge them into base first")


def test_models_that_score_and_models_of_teachers_are_looked_at(damaged: Path) -> None:
    scorer = recipe(f"rl.on_policy.teacher={damaged}")
    with pytest.raises(UserError, match=r"^rl\.on_policy\.teacher .*: its weights do not fit"):
        list(models_of(scorer, ("rl",), ()))
    assert list(models_of(scorer, ("sft",), ())) == []
    teacher = recipe(f"models.t.serve.model={damaged}", "team.model=t")
    with pytest.raises(UserError, match=r"^models\.t\.serve\.model .*: its weights do not fit"):
        list(models_of(teacher, ("distill",), ()))
    assert list(models_of(teacher, ("rl",), ())) == []


def test_what_a_stage_does_with_a_model_decides_what_is_asked_of_it(whole: Path, model: Path, tmp_path: Path) -> None:
    path, start = model / "config.json", tmp_path / "run" / "checkpoints" / "start"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": None}))
    config = recipe(f"model.path={model}", f"run_dir={tmp_path / 'run'}", "agent.limits.max_tokens=256")
    [_, compared] = models_of(config, ("sft",), ())
    assert compared.what.startswith(f"{model}: samples in packed rows: ")
    with pytest.raises(UserError, match=r"names no architectures, without which vLLM can't serve it$"):
        list(models_of(config, ("sft", "rl"), ()))
    (model / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": false}')
    with pytest.raises(UserError, match=r"transformers refuses to save these settings"):
        list(models_of(config, ("sft",), ()))
    shutil.copytree(whole, start)
    [found] = models_of(config, ("rl",), ())
    assert str(start) in str(found), "the run has a copy of it"


def test_a_teachers_model_needs_a_chat_template_unless_the_server_is_given_one(model: Path) -> None:
    server = ModelServerConfig(model=str(model), max_model_len=512)
    (model / "chat_template.jinja").unlink()
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": None}))
    with pytest.raises(UserError, match=r"^models\.t\.serve\.model .*: its tokenizer has no chat template$"):
        model_server("models.t.serve", server)
    found = model_server("models.t.serve", replace(server, arguments=["--chat-template", "t.jinja"]))
    assert found == Finding(f"models.t.serve.model {model}: configuration, weights and tokenizer")


def test_a_model_of_the_hub_that_is_not_here_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    [found] = models_of(recipe("model.path=nobody/none"), ("sft",), ())
    assert (found.what, found.looked) == ("model.path nobody/none, which is not on this machine yet", False)


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer*"])
def test_a_model_of_the_hub_that_is_here_in_part_is_refused_only_where_no_hub_is_asked(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Elsewhere the rest is fetched when it is loaded."""
    snapshot = tmp_path / "models--nobody--part" / "snapshots" / "1"
    snapshot.parent.mkdir(parents=True)
    model.rename(snapshot)
    (tmp_path / "models--nobody--part" / "refs").mkdir()
    (tmp_path / "models--nobody--part" / "refs" / "main").write_text("1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    policy = recipe("model.path=nobody/part", "agent.limits.max_tokens=256")
    teacher = recipe("models.t.serve.model=nobody/part", "models.t.serve.max_model_len=512", "team.model=t")
    offline = partial(monkeypatch.setattr, "huggingface_hub.constants.HF_HUB_OFFLINE")
    offline(True)
    assert [one.looked for one in (*models_of(policy, ("sft",), ()), *models_of(teacher, ("distill",), ()))] == [
        True
    ] * 3
    require_hub_models(policy)
    for path in snapshot.glob(missing):
        path.unlink()
    why = "in the cache (HF_HUB_OFFLINE is set, so the Hugging Face hub is not asked)"
    for key, config, stage in (("model.path", policy, "sft"), ("models.t.serve.model", teacher, "distill")):
        said = f"{key} nobody/part: there is no such folder, and only a part of such a model {why}"
        assert refusal(partial(list, models_of(config, (stage,), ()))) == said
        assert refusal(partial(require_hub_models, config)) == said
    offline(False)
    [found] = models_of(policy, ("sft",), ())
    assert (found.what, found.looked) == ("model.path nobody/part, which is not on this machine yet", False)
    require_hub_models(policy)


def test_a_model_of_the_hub_that_is_not_here_is_refused_where_no_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"^model\.path nobody/none: there is no such folder, and no such model in the ca"
    ):
        list(models_of(recipe("model.path=nobody/none"), ("sft",), ()))


def test_a_model_that_is_whole_is_told_with_what_was_looked_at(model: Path) -> None:
    found = served_model(model, AGENT, questions("What is 2 + 3 ?"))
    assert found == Finding(
        f"{model}: configuration, weights, tokenizer and chat template ({COMPARED}), and the length of 1 questions"
    )
    enforced = served_model(model, replace(AGENT, grammar=Grammar.enforce), ())
    assert enforced == Finding(
        f"{model}: configuration, weights, tokenizer and chat template ({COMPARED}, turns fit the grammar)"
    )


def test_a_grammar_that_does_not_suit_the_tokenizer_is_refused_where_it_is_enforced(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.rollout.grammar_check.message_ends", lambda *_: [])
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": None}))
    served_model(model, AGENT, ())
    with pytest.raises(UserError) as caught:
        served_model(model, replace(AGENT, grammar=Grammar.enforce), ())
    assert str(caught.value) == (
        f"{model} names no token that ends a message (eos_token_id), without which no turn under a grammar ends: set "
        "agent.grammar=lenient, or take another tokenizer"
    )


def test_a_tokenizer_that_loses_what_it_is_given_is_refused_by_every_stage(model: Path) -> None:
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    path.write_text(json.dumps(tokenizer | {"normalizer": {"type": "Lowercase"}}))
    said = f"{model}: its tokenizer writes ' Who ? ' as ' who ? '"
    for stage in ("distill", "sft", "rl"):
        config = recipe(f"model.path={model}", "agent.limits.max_tokens=256")
        assert refusal(partial(list, models_of(config, (stage,), ()))) == f"model.path {said}"
    assert refusal(partial(served_model, model, AGENT, ())) == said
    scorer = recipe(f"rl.on_policy.teacher={model}")
    assert refusal(partial(list, models_of(scorer, ("rl",), ()))) == f"rl.on_policy.teacher {said}"


def test_a_tokenizer_that_is_larger_than_the_embedding_is_refused(model: Path) -> None:
    size = Codec.load(model).vocabulary
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    last = {"id": size, "content": "more", "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer["added_tokens"].append({**last, "normalized": False, "special": False})
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError) as caught:
        served_model(model, AGENT, ())
    assert str(caught.value) == (
        f"{model}: its tokenizer has tokens up to number {size}, and its embedding only {size} rows, from 0 to "
        f"{size - 1}"
    )


def test_episodes_longer_than_the_models_positions_are_refused(model: Path) -> None:
    long = replace(AGENT, limits=replace(AGENT.limits, max_tokens=513))
    told = "agent.limits.max_tokens=513 is more than the 512 positions of "
    assert refusal(partial(served_model, model, long, ())).startswith(told)
    config = recipe(f"model.path={model}", "agent.limits.max_tokens=513")
    assert refusal(partial(list, models_of(config, ("rl",), ()))).startswith(f"{told}model.path {model}")
    path = model / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] |= {"rope_type": "linear", "factor": 2.0}
    path.write_text(json.dumps(config))
    served_model(model, long, ())


def test_demonstrations_longer_than_the_models_positions_are_refused(model: Path) -> None:
    config = recipe(f"model.path={model}", "agent.limits.max_tokens=256", "sft.max_tokens=513")
    with pytest.raises(UserError, match=r"^sft\.max_tokens=513 is more than the 512 positions of "):
        list(models_of(config, ("sft",), ()))
    for fitting, stage in ((config, "rl"), (replace(config, sft=replace(config.sft, max_tokens=512)), "sft")):
        assert all(found.looked for found in models_of(fitting, (stage,), ()))


@pytest.mark.parametrize(
    ("key", "limit", "stages", "refused"),
    [
        ("agent.limits.max_tokens", 513, ("sft",), True),
        ("agent.limits.max_tokens", 513, ("rl",), True),
        ("agent.limits.max_tokens", 513, ("distill",), False),
        ("agent.limits.max_tokens", 512, ("sft", "rl"), False),
        ("sft.max_tokens", 513, ("sft", "rl"), True),
        ("sft.max_tokens", 513, ("rl",), False),
        ("sft.max_tokens", 512, ("sft", "rl"), False),
    ],
)
def test_a_new_model_has_positions_for_what_is_to_be_learnt(
    key: str, limit: int, stages: tuple[str, ...], refused: bool
) -> None:
    look = partial(list, models_of(recipe(f"{key}={limit}"), stages, ()))
    if refused:
        assert refusal(look) == f"{key}={limit} is more than model.max_positions=512: raise the second"
    else:
        assert look() == []


def test_a_teachers_server_takes_no_more_tokens_than_its_model_has_positions_for(model: Path) -> None:
    long = ModelServerConfig(model=str(model), max_model_len=513)
    with pytest.raises(UserError, match=r"^models\.t\.serve\.max_model_len=513 is more than the 512 positions of "):
        model_server("models.t.serve", long)
    model_server("models.t.serve", replace(long, arguments=['--hf_overrides={"max_position_embeddings": 513}']))


def test_a_teacher_that_scores_has_the_policys_tokens_and_positions_for_them(whole: Path, model: Path) -> None:
    config = recipe(f"model.path={whole}", f"rl.on_policy.teacher={model}", "agent.limits.max_tokens=512")
    assert list(models_of(config, ("rl",), ()))[-1].what.endswith("weights, and the policy's tokenizer")
    alone = recipe(f"rl.on_policy.teacher={model}")
    [found] = models_of(alone, ("rl",), ())
    assert found.what.endswith("configuration, weights and tokenizer")
    path = model / "config.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"max_position_embeddings": 511}))
    said = f"agent.limits.max_tokens=512 is more than the 511 positions of rl.on_policy.teacher {model}"
    assert refusal(partial(list, models_of(config, ("rl",), ()))) == said
    path.write_text(json.dumps(written))
    template = model / "chat_template.jinja"
    template.write_text("Be brief.\n" + template.read_text())
    said = f"rl.on_policy.teacher {model}: it has another tokenizer than the policy"
    assert refusal(partial(list, models_of(config, ("rl",), ()))) == said


def test_a_fine_tuned_model_whose_stage_was_killed_before_its_tokenizer_was_there_is_not_begun_at(
    whole: Path, model: Path, tmp_path: Path
) -> None:
    made = tmp_path / "run" / "checkpoints"
    shutil.copytree(whole, made / "start")
    model.rename(made / "sft-model")
    for path in (made / "sft-model").glob("tokenizer*"):
        path.unlink()
    assert begun_at(tmp_path / "run", ("sft", "rl")) == made / "start"
    (made / "sft.json").write_text("{}")
    assert begun_at(tmp_path / "run", ("sft", "rl")) == made / "sft-model"


def test_a_model_without_a_class_can_not_be_served(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": None}))
    with pytest.raises(UserError, match=r"its config\.json names no architectures, without which vLLM can't serve it$"):
        served_model(model, AGENT, ())


# --- questions --------------------------------------------------------------------------------------------------------


def with_room(tokens: int) -> AgentConfig:
    return AgentConfig(instructed=False, limits=replace(AGENT.limits, max_tokens=tokens))


def test_questions_that_fill_the_context_are_counted_and_named() -> None:
    short, long = "Who ?", "Who is it ? " * 40
    assert check_questions(tag_codec(), with_room(200), questions(short, short)) == 2
    with pytest.raises(UserError) as caught:
        check_questions(tag_codec(), with_room(200), questions(short, long, short, long, long, long, long))
    found = str(caught.value)
    assert found.startswith("5 of 7 questions fill agent.limits.max_tokens=200 with their prompt: q2 (")
    assert found.endswith(" and 2 more; raise the limit, or leave them out")


def test_a_question_is_refused_exactly_if_no_token_fits_after_it() -> None:
    [task] = questions("Who is it ? " * 40)
    length = len(tag_codec().prompt(profile("code"), task.question, instructed=False))
    assert check_questions(tag_codec(), with_room(length + 1), [task]) == 1
    with pytest.raises(UserError, match=rf"q1 \({length} tokens\)"):
        check_questions(tag_codec(), with_room(length), [task])


def test_instructions_that_fill_the_context_are_told_as_such() -> None:
    instructed = replace(with_room(30), instructed=True)
    with pytest.raises(UserError, match=r"^agent\.limits\.max_tokens=30 has no room for the prompt of the profile c"):
        check_questions(tag_codec(), instructed, questions("Who ?"))

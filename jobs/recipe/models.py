"""Checks of the models that a recipe or a command names, before anything starts: their folders, their tokenizers, and
whether the tasks' questions fit in their context."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from actors.learner.sizes import hub_name, local_folder
from actors.rollout.grammar_check import grammars_of, misfit_of
from actors.rollout.support import check_supported
from actors.teachers.model_server import ModelServerConfig
from coa.agent.chat_template import date_of, require_template
from coa.agent.codec import Codec, read_tokenizer
from coa.agent.episode import AgentConfig, Grammar
from coa.agent.proof import TEXTS, cases
from coa.distill.dataset.tokens import fingerprint
from coa.errors import UserError
from coa.pretrained.folder import Pretrained, Use, check_folder
from coa.pretrained.positions import hint_of, positions_of
from coa.pretrained.weights import few, is_fetched
from coa.types import Task
from jobs.recipe.findings import Finding
from jobs.recipe.hub import is_offline, require_hub_model
from jobs.recipe.needs import has_episodes, is_finished, models_paid, new_positions
from jobs.recipe.schema import Recipe

MOST_TAGS = "multi"
CHAT_TEMPLATE = "--chat-template"
"""Argument of vLLM's server that replaces the chat template of the model's folder."""
OVERRIDES = "--hf-overrides"
"""Argument of vLLM's server that changes the model's configuration, its positions included."""


def models_of(config: Recipe, stages: Iterable[str], tasks: Iterable[Task]) -> Iterator[Finding]:
    """Findings about the models that unfinished stages of a recipe load. tasks: those that the policy attempts.
    Raises UserError."""
    stages, run = set(stages), Path(config.run_dir)
    policy: Pretrained | None = None
    if (path := config.model.path) is not None and not (run / "checkpoints" / "start" / "config.json").exists():
        policy = checked("model.path", path, Use.train, engine=has_episodes(stages))
        if policy is None:
            yield _not_here("model.path", path)
        else:
            with keyed("model.path"):
                codec = Codec.load(policy.folder)
            yield policy_of(policy, codec, f"model.path {path}", config.agent, tasks)
            with keyed("model.path"):
                yield from parities_of(policy, path, config, stages)
            check_samples(config, stages, policy.text, path)
    if (own := begun_at(run, stages)) is not None:
        policy = check_folder(own, use=Use.train)
        yield policy_of(policy, Codec.load(own), str(own), config.agent, tasks)
        check_samples(config, stages, policy.text, str(own))
    elif path is None and stages != {"distill"}:
        check_new(config, stages)
    if "rl" in stages and (teacher := config.rl.on_policy.teacher) is not None:
        scorer = checked("rl.on_policy.teacher", teacher, Use.score)
        if scorer is None:
            yield _not_here("rl.on_policy.teacher", teacher)
        else:
            yield scorer_of(scorer, teacher, own or (policy and policy.folder), config.agent)
    for name in sorted(models_paid(config, stages)):
        if config.models[name].serve.model:
            yield model_server(f"models.{name}.serve", config.models[name].serve)


def parities_of(policy: Pretrained, name: str, config: Recipe, stages: Collection[str]) -> Iterator[Finding]:
    """How training computes the log-probs of a model of this configuration; raises UserError if it can't be trained."""
    learners = {"sft": config.sft.learner, "rl": config.rl.learner}
    for lora in dict.fromkeys(learners[stage].lora for stage in learners if stage in stages):
        from actors.learner.policy import check_trained

        found = check_trained(policy.config, config.model.attention, lora)
        copied = "no tiny copy can be made, so it is compared with itself at the start" if found is None else str(found)
        yield Finding(f"{name}: {copied}")


def begun_at(run: Path, stages: Collection[str]) -> Path | None:
    """The folder of the run's own model at which an unfinished stage begins; None if there is none yet. The fine-tuned
    model is whole once its stage is finished: its tokenizer is written behind its weights."""
    tuned = (run / "checkpoints" / "sft.json").exists()
    for stage, name in (("rl", "sft-model"), ("rl", "start"), ("sft", "start")):
        folder = run / "checkpoints" / name
        unfinished = stage in stages and not (run / "checkpoints" / f"{stage}.json").exists()
        if unfinished and (folder / "config.json").exists() and (tuned or name == "start"):
            return folder
    return None


def policy_of(policy: Pretrained, codec: Codec, name: str, agent: AgentConfig, tasks: Iterable[Task]) -> Finding:
    """Checks a model that plays episodes; raises UserError if its tokenizer, its positions or its context
    do not suit them. codec: of its folder."""
    check_tokens(codec, policy.text, name, agent)
    tasks = list(tasks)
    number = check_questions(codec, agent, tasks)
    enforced = check_grammar(policy, name, codec, agent, {task.profile for task in tasks}) if is_enforced(agent) else ""
    quantised = policy.quantization and f" ({policy.quantization})"
    counted = f", and the length of {number} questions" if number else ""
    compared = f"{len(TEXTS)} texts come back from their tokens, {len(list(cases()))} prompts are the template's"
    what = f"configuration, weights{quantised}, tokenizer and chat template ({compared}{enforced})"
    return Finding(f"{name}: {what}{counted}")


def check_tokens(codec: Codec, text: Any, name: str, agent: AgentConfig) -> None:
    """Raises UserError if a model has too few rows for the tokens of a tokenizer, or too few positions for episodes.
    text: the configuration of its language model."""
    if (largest := codec.largest_token()) >= (rows := text.vocab_size):
        raise UserError(
            f"{name}: its tokenizer has tokens up to number {largest}, and its embedding only {rows} rows, from 0 to "
            f"{rows - 1}"
        )
    check_positions("agent.limits.max_tokens", agent.limits.max_tokens, text, name)


def check_positions(key: str, limit: int, text: Any, name: str) -> None:
    """Raises UserError if the setting `key` allows more tokens than the model has positions."""
    positions = positions_of(text)
    if positions is not None and limit > positions:
        raise UserError(f"{key}={limit} is more than the {positions} positions of {name}" + hint_of(text))


def check_samples(config: Recipe, stages: Collection[str], text: Any, name: str) -> None:
    """Raises UserError if demonstrations may be longer than the model has positions."""
    if "sft" in stages and not is_finished(config, "sft") and (limit := config.sft.max_tokens):
        check_positions("sft.max_tokens", limit, text, name)


def check_new(config: Recipe, stages: Collection[str]) -> None:
    """Raises UserError if episodes or demonstrations may be longer than the positions that a new model will have."""
    positions = new_positions(config)
    limits = {"agent.limits.max_tokens": config.agent.limits.max_tokens}
    if "sft" in stages and config.sft.max_tokens:
        limits["sft.max_tokens"] = config.sft.max_tokens
    for key, limit in limits.items():
        if limit > positions:
            raise UserError(f"{key}={limit} is more than model.max_positions={positions}: raise the second")


def scorer_of(scorer: Pretrained, teacher: str, policy: Path | None, agent: AgentConfig) -> Finding:
    """Checks the teacher that scores the policy's tokens; raises UserError if it has other tokens, or too
    few rows or positions for them. policy: its folder; None if it is not there yet."""
    key = "rl.on_policy.teacher"
    day = (policy and date_of(read_tokenizer(policy).chat_template)) or date.today()
    with keyed(key):
        codec = Codec.load(scorer.folder, day)
    check_tokens(codec, scorer.text, f"{key} {teacher}", agent)
    if policy is None:
        return Finding(f"{key} {teacher}: configuration, weights and tokenizer")
    if fingerprint(codec) != fingerprint(Codec.load(policy, day)):
        raise UserError(f"{key} {teacher}: it has another tokenizer than the policy")
    return Finding(f"{key} {teacher}: configuration, weights, and the policy's tokenizer")


def is_enforced(agent: AgentConfig) -> bool:
    """Whether turns are sampled under a grammar, and it can be looked at here."""
    return agent.grammar is Grammar.enforce and find_spec("xgrammar") is not None


def check_grammar(policy: Pretrained, name: str, codec: Codec, agent: AgentConfig, profiles: Collection[str]) -> str:
    """Raises UserError for a tokenizer that does not suit the grammar of a profile; returns what was looked at.
    profiles: those of the tasks; without tasks, the one with the most tags is looked at."""
    grammars = grammars_of(policy.folder, codec, policy.text.vocab_size)
    if misfit := misfit_of(grammars, map(agent.profile, sorted(profiles or [MOST_TAGS]))):
        raise UserError(f"{name} {misfit}: set agent.grammar=lenient, or take another tokenizer")
    return ", turns fit the grammar"


def check_questions(codec: Codec, agent: AgentConfig, tasks: Iterable[Task]) -> int:
    """Raises UserError for questions that fill the whole context, so that no answer fits after them; returns the number
    of questions. A token is at least a byte of text, so only long questions are tokenised."""
    limit, counted = agent.limits.max_tokens, 0
    room: dict[str, int] = {}
    long: list[str] = []
    for task in tasks:
        counted += 1
        profile = agent.profile(task.profile)
        if profile.name not in room:
            room[profile.name] = limit - len(codec.prompt(profile, "", instructed=agent.instructed))
        if room[profile.name] <= 0:
            raise UserError(
                f"agent.limits.max_tokens={limit} has no room for the prompt of the profile {profile.name}, which has "
                f"{limit - room[profile.name]} tokens without a question"
            )
        if len(task.question.encode(errors="replace")) < room[profile.name] // 2:
            continue
        if (length := len(codec.prompt(profile, task.question, instructed=agent.instructed))) >= limit:
            long.append(f"{task.id} ({length} tokens)")
    if long:
        raise UserError(
            f"{len(long)} of {counted} questions fill agent.limits.max_tokens={limit} with their prompt: {few(long)}; "
            "raise the limit, or leave them out"
        )
    return counted


def served_model(model: Path, agent: AgentConfig, tasks: Iterable[Task]) -> Finding:
    """Checks a folder that engines of this command load; raises UserError."""
    found = check_folder(model, use=Use.serve)
    check_supported(found)
    return policy_of(found, Codec.load(model), str(model), agent, tasks)


def model_server(section: str, server: ModelServerConfig) -> Finding:
    """Checks a teacher's model that is served in the cluster; raises UserError. section: the setting with
    the server."""
    key, path = f"{section}.model", str(server.model)
    found = checked(key, path, Use.serve, engine=True)
    if found is None:
        return _not_here(key, path)
    with keyed(key):
        tokenizer = read_tokenizer(found.folder)
        if not _is_given(CHAT_TEMPLATE, server.arguments):
            require_template(tokenizer, path)
    if not _is_given(OVERRIDES, server.arguments):
        check_positions(f"{section}.max_model_len", server.max_model_len, found.text, path)
    return Finding(f"{key} {path}: configuration, weights and tokenizer")


def _is_given(name: str, arguments: Iterable[str]) -> bool:
    """Whether vLLM's server gets the argument, which it takes with underscores too."""
    return any(one.replace("_", "-").startswith(name) for one in arguments)


def checked(key: str, path: str, use: Use, *, engine: bool = False) -> Pretrained | None:
    """The folder of a setting, checked; None for a hub model that is not on this machine, or only in part, and will be
    fetched. engine: whether vLLM loads it too."""
    folder = local_folder(path) if hub_name(path) else Path(path)
    if folder is None or (hub_name(path) and not is_fetched(folder)):
        if is_offline():
            require_hub_model(key, path)
        return None
    with keyed(key):
        found = check_folder(folder, use=use)
        if engine:
            check_supported(found)
    return found


def _not_here(key: str, path: str) -> Finding:
    return Finding.unseen(f"{key} {path}, which is not on this machine yet")


@contextmanager
def keyed(key: str) -> Iterator[None]:
    """Puts the setting before a UserError of the body."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key} {error}") from error

"""Prepares what a run starts from: its tokenizer, the tokens of its data set, and the initial policy."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from omegaconf import OmegaConf

from actors.learner.buffer import Committed
from actors.learner.config import ModelConfig
from coa.agent.chat_template import date_of, with_date
from coa.agent.codec import Codec, read_tokenizer
from coa.agent.proof import says_the_same
from coa.agent.tokenizer import load_tokenizer, save_as_read, save_tokenizer, train_tokenizer
from coa.distill import contamination
from coa.distill.dataset.card import data_card
from coa.distill.dataset.rows import OwnColumns
from coa.distill.dataset.shards import CARD, read_demonstrations
from coa.distill.dataset.summary import summarise
from coa.distill.dataset.tokens import tokenise
from coa.distill.drop_report import FilterReport
from coa.errors import UserError
from coa.storage.files import replacing_folder, write_atomically
from coa.storage.keeping import Keeping
from coa.usage import Usage
from jobs.recipe.needs import longest_sample, new_positions
from jobs.run.agent_file import write_agent, write_world
from jobs.run.run_dir import RunDir

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates",
    "special_tokens_map.json",
)
"""Files of a tokenizer, and the folder of the templates beside the default one."""


def prepare_tokenizer(run: RunDir) -> Path:
    """Returns the folder of the tokenizer: a pretrained model's, whose prompts keep today's date from now on, or a new
    one that is trained on the data set. Raises UserError for a pretrained one that can't be used."""
    if (run.tokenizer / "tokenizer_config.json").exists():
        return run.tokenizer
    path = run.config.model.path
    with replacing_folder(run.tokenizer) as part:
        if path is not None:
            keep_tokenizer(path, part)
        else:
            texts = (f"{task.question} {text}" for task, text, _ in read_demonstrations(run.data))
            tokenizer = train_tokenizer(texts, run.world.lexicon(), vocabulary=run.config.model.vocabulary_limit)
            save_tokenizer(tokenizer, part)
    return run.tokenizer


def require_tokenizer(run: RunDir) -> None:
    """Raises UserError for a pretrained model's tokenizer that can't be used: its tokens are made last, after all that
    is paid for."""
    if run.config.model.path is not None:
        prepare_tokenizer(run)


def keep_tokenizer(model: str, folder: Path) -> None:
    """Writes the tokenizer of a pretrained model, with today's date in its prompts; raises UserError for one that can't
    be used."""
    codec, read = Codec.load(model), read_tokenizer(model)
    read.chat_template = with_date(read.chat_template)
    save_as_read(read, folder)
    if not says_the_same(codec, Codec.load(folder, date_of(read.chat_template))):
        raise UserError(f"{model}: its tokenizer gives other tokens once transformers has saved it")


def own_columns(run: RunDir) -> OwnColumns:
    """The columns that rows of the run's world have in addition to the common ones."""
    return OwnColumns(run.world.columns, run.world.column)


def add_tokens(run: RunDir, report: FilterReport, cost: Usage) -> None:
    """Writes the tokens of every row of the data set, and its data card; raises UserError if every row is too long.

    report: for external data, the result of its check against the evaluation tasks.
    """
    agent = run.config.agent
    limit = longest_sample(run.config, "sft")
    codec = Codec.load(prepare_tokenizer(run))
    made = tokenise(run.data, codec, instructed=agent.instructed, limit=limit, formats=agent.formats)
    if made.too_long == made.rows:
        raise UserError(f"no demonstration fits in {limit} tokens: raise sft.max_tokens, or agent.limits.max_tokens")
    write_card(run, report, cost)


def write_card(run: RunDir, report: FilterReport, cost: Usage) -> None:
    """Writes the card of the data set, whose rows have their tokens; report: as in `add_tokens`."""
    agent, filters = run.config.agent, run.config.distill.filters
    settings = OmegaConf.to_container(OmegaConf.structured(filters), enum_to_str=True)
    assert isinstance(settings, dict)
    if agent.program.is_set:
        settings = {"kept": "runs with a right answer"}
    card = data_card(
        run.folder.name,
        summarise(run.data),
        transcripts=report.transcripts,
        dropped=report.dropped,
        filters={} if run.config.sft.data else {str(key): value for key, value in settings.items()},
        contaminated=sum(report.dropped.get(reason, 0) for reason in contamination.REASONS),
        cost=cost,
        instructed=agent.instructed,
        limit=longest_sample(run.config, "sft"),
    )
    write_atomically(run.data / CARD, card)


def prepare_start(run: RunDir) -> None:
    """Writes the initial policy: a copy of a pretrained model, or a new model with a tokenizer of its own."""
    if (run.start_model / "config.json").exists():
        return
    config, tokenizer = run.config.model, prepare_tokenizer(run)
    with replacing_folder(run.start_model) as part:
        if config.path is not None:
            # In a child process, so that the driver does not keep a large model's memory for the rest of the run.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
                child.submit(copy_pretrained, config, part).result()
        else:
            from actors.learner.model.load import new_model

            sizes = replace(config, max_positions=new_positions(run.config))
            new_model(sizes, load_tokenizer(tokenizer), seed=run.config.seed).save_pretrained(part)
        copy_tokenizer(tokenizer, part)


def copy_pretrained(config: ModelConfig, folder: Path) -> None:
    """Writes a pretrained model as it is trained: in the recipe's dtype, its ends tied or not as they came. Raises
    UserError."""
    from actors.learner.model.load import load_model

    assert config.path is not None
    # Nothing is computed here, where there may be no GPU, and a saved model does not depend on the attention kernel.
    model = load_model(config.path, replace(config, attention="sdpa"))
    # In one file, whatever its size: engines compare it with the weights that they are sent.
    model.save_pretrained(folder, max_shard_size="100TB")


def finish_model(run: RunDir, model: Path) -> None:
    """Writes the tokenizer, `agent.json` and `world.json` beside the weights of a stage."""
    copy_tokenizer(run.start_model, model)
    write_agent(model, run.config.agent)
    write_world(model, run.config, run.world.profiles())


def check_unchanged(run: RunDir, stage: str, what: str, rows: int, digest: str) -> None:
    """Raises UserError if learners would go on from a checkpoint with other rows, or in another order, than before it:
    a batch is a number of places in their list. Notes them before the first checkpoint. what: the rows, in words."""
    path, folder = run.checkpoints / f"{stage}-data.json", run.storage().below(stage)
    if folder.recorded() == [] or not path.exists():
        write_atomically(path, json.dumps({"rows": rows, "digest": digest}))
    elif json.loads(path.read_text())["digest"] != digest:
        raise UserError(
            f"{what}: these {rows} are not those that {stage} began with, or not in their order: bring those back, or "
            f"remove {folder.path} to begin it anew"
        )


def keeping_of(run: RunDir, stage: str, every: int) -> Keeping:
    """Where and which checkpoints of a stage are kept, and what its exports consist of. every: steps between two."""
    config, beside = run.config.checkpoints, run.checkpoints / "export"
    if config.export_every:
        beside.mkdir(parents=True, exist_ok=True)
        finish_model(run, beside)
    return Keeping(
        folder=run.storage(),
        every=every,
        config=config,
        scores=run.scores if stage == "rl" else None,
        exports=str(run.folder / "exports" / f"{stage}-"),
        beside=beside,
    )


def checkpoint_metrics(event: Committed) -> dict[str, float]:
    """The metrics of a committed checkpoint; docs/run_directory.md says what each is."""
    return {
        "checkpoint_write_s": event.write_s,
        "checkpoint_commit_s": event.commit_s,
        "checkpoint_gib": event.size / 2**30,
    }


def copy_tokenizer(source: Path, target: Path) -> None:
    for name in tokenizer_files(source):
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, target / name)


def tokenizer_files(folder: Path) -> Iterator[str]:
    return (name for name in TOKENIZER_FILES if (folder / name).exists())

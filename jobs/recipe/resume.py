"""Decides whether a folder holds the run that a recipe describes, so that a command may resume it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from coa.config import dump, from_plain, read
from coa.errors import UserError
from coa.json_object import Json
from jobs.recipe.schema import Recipe

FREE_TO_CHANGE = (
    "run_dir",
    "session.",
    "placement.",
    "pool.",
    "executor.",
    "teaching.",
    "checkpoints.keep",
    "checkpoints.export_every",
    "checkpoints.grace_s",
    "distill.runs",
    "distill.retry_failed",
    "distill.most_failed",
    "distill.obedience.asks",
    "distill.obedience.schema",
    "evaluation.patience_s",
    "tools.judge.asks",
    "tools.judge.extra",
    "tools.judge.schema",
    "tools.crawl.summary.extra",
    "selection.",
    "rl.evaluate_",
    "rl.keep_batches",
    "wandb.",
)
"""Keys that may differ when a run is resumed: they set resources, amounts, retries and logging, and do not change what
a finished stage contains."""
TELLING = ("tasks.world", "tasks.path", "model.path")
"""Settings that identify a run best: if one of them differs, the error names it rather than another setting."""
FREE_OF_ENDPOINTS = re.compile(
    r"models\.[^.]+\.(endpoint\.(url|key_env|timeout_s|attempts|timeouts|pause_s|max_pause_s|max_retry_after_s"
    r"|concurrent|requests_per_minute|tokens_per_minute|max_tokens|extra(\..+)?)|serve\.(host|port))"
)
"""Keys of the teachers' models that may differ when a run is resumed: addresses, request rates and timeouts, and
`max_tokens` and `extra`, since runs fail if replies are cut off or a field is refused."""


def free_to_change(key: str) -> bool:
    return key.startswith(FREE_TO_CHANGE) or FREE_OF_ENDPOINTS.fullmatch(key) is not None


def fixed_settings(config: Recipe) -> Json:
    """All settings by dotted key, without those that are free to change."""
    return {key: value for key, value in settings_of(config).items() if not free_to_change(key)}


def settings_of(config: Recipe) -> Json:
    """All settings by dotted key."""
    return _flat(OmegaConf.create(dump(config)))


def load_recorded(path: Path) -> Recipe:
    """The recipe that a run wrote at `path`. Raises UserError for one of another version of coa."""
    try:
        return from_plain(Recipe, read(path), str(path))
    except UserError as error:
        raise UserError(f"{path.parent} was written by another version of coa ({error})") from error


def check_same(path: Path, config: Recipe, where: str | None = None) -> None:
    """Raises UserError if the folder of the `config.yaml` at `path` holds a run with other settings. where: its folder,
    if the file is a copy."""
    where = where or str(path.parent)
    if not path.exists():
        return
    try:
        before = fixed_settings(from_plain(Recipe, read(path), str(path)))
    except UserError as error:
        raise UserError(
            f"{where} holds a run that this version of coa can't resume ({error}): choose another run_dir"
        ) from error
    now = fixed_settings(config)
    if changed := [key for key in {**now, **before} if before.get(key) != now.get(key)]:
        key = next((key for key in TELLING if key in changed), changed[0])
        others = f" and {len(changed) - 1} other settings" if len(changed) > 1 else ""
        raise UserError(
            f"{where} holds a run with {key}={before.get(key)}, not {now.get(key)}{others}: resume it with the "
            "same settings, or choose another run_dir"
        )


def _flat(tree: Any, prefix: str = "") -> Json:
    flat: Json = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str | int | float | None) else list(value)
    return flat

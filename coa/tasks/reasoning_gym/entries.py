"""Entries of reasoning-gym's data sets, made anew from a few numbers wherever they are needed.

Reference("chain_sum", level=1, settings={"max_terms": 3}, seed=7, index=12).entry()
{"question": "State the final answer to ...", "answer": "1010", "metadata": {...}}
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Self

from coa.errors import UserError
from coa.json_object import Json

SIZE = 500
"""Entries of one instance of a data set, as in the package's defaults. Entry i of seed s is drawn by seed s + i, so
seeds of instances are multiples of this apart."""
OF_INSTANCES = ("seed", "size")
COMPOSITE = "composite"
"""A data set of data sets, which `world.datasets` is already."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An entry of a data set."""

    dataset: str
    level: int | None
    """See `world.ReasoningGymSettings`."""
    settings: Mapping[str, Any] = field(hash=False)
    seed: int
    index: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def instance(self) -> Any:
        """The package's `ProceduralDataset` that has the entry."""
        return _instance(self.dataset, self.level, json.dumps(dict(self.settings), sort_keys=True), self.seed)

    def entry(self) -> Json:
        return self.instance()[self.index]


def require_package() -> None:
    """Raises UserError if reasoning-gym is not installed."""
    if find_spec("reasoning_gym") is None:
        raise UserError(
            'tasks.world=reasoning_gym needs the package reasoning-gym: pip install "chain-of-agents[reasoning-gym]"'
        )


def check(dataset: str, level: int | None, settings: object) -> None:
    """Raises UserError for an unknown data set, a level that its curriculum does not have, or settings that it does not
    take."""
    from reasoning_gym.factory import CURRICULA, DATASETS

    key = f"world.datasets.{dataset}"
    known = sorted(name for name in DATASETS if name != COMPOSITE)
    if dataset not in known:
        near = get_close_matches(dataset, known, n=1)
        nearest = f"; the nearest is {near[0]}" if near else ""
        raise UserError(f"{key}: reasoning-gym has no such data set{nearest}")
    if not isinstance(settings, Mapping):
        raise UserError(f"{key} is {settings!r}, expected its settings: {{}} for the defaults")
    if level is not None and dataset not in CURRICULA:
        raise UserError(f"world.level={level}: {dataset} has no curriculum; leave the level out")
    fields = [one.name for one in dataclasses.fields(DATASETS[dataset][1]) if one.name not in OF_INSTANCES]
    if unknown := [str(name) for name in settings if name not in fields]:
        raise UserError(f"{key}: unknown key {unknown[0]}; known are {', '.join(fields)}")
    try:
        _config(dataset, level, settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"{key}: {' '.join(str(error).split()) or 'reasoning-gym refuses these settings'}") from error


def _config(dataset: str, level: int | None, settings: Mapping[str, Any]) -> Any:
    """The data set's own configuration: defaults or those of a level, with the settings in place of some."""
    from reasoning_gym.factory import DATASETS, create_curriculum

    if level is None:
        config = DATASETS[dataset][1](**settings)
    else:
        curriculum = create_curriculum(dataset)
        curriculum.set_global_level(level)
        config = dataclasses.replace(curriculum.generate_configuration(), **settings)
    if hasattr(config, "validate"):
        config.validate()
    return config


@lru_cache(maxsize=256)
def _instance(dataset: str, level: int | None, settings: str, seed: int) -> Any:
    from reasoning_gym.factory import DATASETS

    config = _config(dataset, level, json.loads(settings))
    return DATASETS[dataset][0](dataclasses.replace(config, seed=seed, size=SIZE))

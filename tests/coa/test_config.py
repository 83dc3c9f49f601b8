from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from coa.config import dump, from_plain, known_keys, load
from coa.errors import UserError


class Mode(Enum):
    fast = "fast"
    exact = "exact"


@dataclass(frozen=True)
class Optimizer:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    steps: int = 10
    optimizer: Optimizer = field(default_factory=Optimizer)
    mode: Mode = Mode.exact
    names: tuple[str, ...] = ("a",)
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps is {self.steps}, which is negative")


@dataclass(frozen=True)
class Root:
    seed: int = 0
    save: bool = True
    rl: Stage = field(default_factory=Stage)


def recipe(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fails(*overrides: str, path: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load(Root, path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_recipe_there_are_the_defaults() -> None:
    assert load(Root) == Root()


def test_overrides_win_over_the_recipe_and_the_recipe_over_the_defaults(tmp_path: Path) -> None:
    path = recipe(tmp_path, "seed: 4\nrl:\n  steps: 3\n  optimizer: {lr: 1e-4}\n")
    config = load(Root, path, ["rl.steps=7", "rl.mode=fast", "rl.names=[x, y]", "rl.limit=2"])
    assert config == Root(
        seed=4, rl=Stage(steps=7, optimizer=Optimizer(lr=1e-4), mode=Mode.fast, names=("x", "y"), limit=2)
    )


def test_an_empty_recipe_changes_nothing(tmp_path: Path) -> None:
    assert load(Root, recipe(tmp_path, "# nothing\n")) == Root()


def test_what_is_dumped_loads_back_equal(tmp_path: Path) -> None:
    config = load(Root, None, ["seed=9", "rl.mode=fast", "rl.optimizer.betas=[0.8, 0.9]"])
    assert load(Root, recipe(tmp_path, dump(config))) == config


def test_a_plain_tree_loads_like_a_recipe() -> None:
    assert from_plain(Root, {"rl": {"steps": 3}}, "tasks.json") == Root(rl=Stage(steps=3))
    with pytest.raises(UserError, match=r"tasks\.json: unknown key sed; the nearest known key is seed"):
        from_plain(Root, {"sed": 3}, "tasks.json")


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    assert fails("rl.stepz=3") == "rl.stepz=3: unknown key rl.stepz; the nearest known key is rl.steps"
    assert fails("steps=3") == "steps=3: unknown key steps; the nearest known key is rl.steps"
    path = recipe(tmp_path, "rl:\n  optimiser:\n    lr: 1\n")
    assert fails(path=path) == f"{path}: unknown key rl.optimiser; the nearest known key is rl.optimizer"


def test_a_wrong_value_names_key_value_and_type(tmp_path: Path) -> None:
    assert fails("seed=x") == "seed=x: seed is 'x', expected int"
    assert fails("seed=1.5") == "seed=1.5: seed is 1.5, expected int"
    assert fails("rl.optimizer.lr=fast").endswith("rl.optimizer.lr is 'fast', expected float")
    assert fails("rl.mode=slow") == "rl.mode=slow: rl.mode is 'slow', expected one of fast, exact"
    assert fails("rl.limit=x") == "rl.limit=x: rl.limit is 'x', expected int | None"
    assert fails("rl.names=x") == "rl.names=x: rl.names is 'x', expected tuple[str, ...]"
    assert fails("rl.optimizer.betas=[a, b]").endswith("expected tuple[float, float]")
    assert fails("seed={a: 1}") == "seed={a: 1}: seed is {'a': 1}, expected int"
    assert fails("seed=") == "seed=: seed is None, expected int"
    path = recipe(tmp_path, "rl: 3\n")
    assert fails(path=path) == f"{path}: rl is 3, expected a section with keys"


def test_a_value_that_a_dataclass_refuses_is_one_line() -> None:
    assert fails("seed=1", "rl.steps=-1") == "rl.steps is -1, which is negative"


def test_a_malformed_override_says_how_to_write_one() -> None:
    assert fails("seed") == "'seed' is not an override: write key=value, such as seed=1"
    assert fails("=3") == "'=3' is not an override: write key=value, such as seed=1"
    assert fails("seed=[1") == "'seed=[1' is not an override: the value is not YAML"


def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    assert fails(path=missing) == f"recipe {missing}: No such file or directory"
    assert fails(path=tmp_path) == f"recipe {tmp_path}: Is a directory"
    path = recipe(tmp_path, "seed: 1\nrl: [\n")
    assert fails(path=path).startswith(f"recipe {path}: line 3: ")
    path = recipe(tmp_path, "- 1\n")
    assert fails(path=path) == f"{path}: a recipe is [1], expected a section with keys"
    path = recipe(tmp_path, "seed: 1\nseed: 2\n")
    assert "duplicate key seed" in fails(path=path)
    path.write_bytes(b"\xff\xfe")
    assert fails(path=path) == f"recipe {path}: not UTF-8 text"
    path = recipe(tmp_path, "hello")
    assert "\n" not in fails(path=path)


def test_an_interpolation_that_leads_nowhere_is_one_line() -> None:
    assert fails("seed=${nothing}") == "seed=${nothing}: Interpolation key 'nothing' not found"


def test_known_keys_are_dotted() -> None:
    assert [key for key, _ in known_keys(Root)][:4] == ["seed", "save", "rl", "rl.steps"]


def test_a_refused_value_names_the_file_that_sets_it_and_no_override(tmp_path: Path) -> None:
    path = recipe(tmp_path, "rl: {steps: -1, optimizer: {lr: -2}}\n")
    assert fails("seed=1", path=path) == f"{path}: rl.steps is -1, which is negative"
    assert fails("rl.steps=1", path=path) == f"{path}: rl.optimizer.lr is -2, expected at least 0"
    assert fails("rl.steps=1", "rl.optimizer.lr=-3", path=path) == "rl.optimizer.lr is -3, expected at least 0"


@dataclass(frozen=True)
class Formula:
    text: str = "1"

    def __post_init__(self) -> None:
        if self.text != "1":
            raise ValueError(f"{self.text!r} is no formula")


@dataclass(frozen=True)
class Rewards:
    formula: Formula = field(default_factory=Formula)


def test_a_refusal_that_names_no_field_begins_with_its_section(tmp_path: Path) -> None:
    path = recipe(tmp_path, "formula: {text: x}\n")
    with pytest.raises(UserError) as refused:
        load(Rewards, path)
    assert str(refused.value) == f"{path}: formula: 'x' is no formula"

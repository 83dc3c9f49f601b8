"""The type of a setting decides how its value is read: in a recipe, in an override, and from Python."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pytest

from coa.config import dump, from_plain, load
from coa.errors import UserError
from coa.paths import local
from jobs.api import overrides_of
from jobs.recipe.schema import Recipe

LOOKS_LIKE_ANOTHER = ["3.10", "0042", "1e3", "no", "on", "12:30", "1_000", "0x10", "2024-01-01", ".5", "true", "-0"]


class Switch(Enum):
    on = "on"
    off = "off"


@dataclass(frozen=True)
class Inner:
    name: str = ""


@dataclass(frozen=True)
class Kinds:
    text: str = "x"
    maybe: str | None = "x"
    texts: tuple[str, ...] = ()
    listed: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    switch: Switch = Switch.on
    whole: int = 0
    part: float = 0.0
    flag: bool = False
    inner: Inner = field(default_factory=Inner)
    files: tuple[str, ...] = ()
    file: str | None = None

    PATHS: ClassVar = ("file", "files")


def ways(folder: Path, key: str, written: str) -> list[Kinds]:
    """The setting by a recipe, and by an override."""
    path = folder / "r.yaml"
    path.write_text(f"{key}: {written}\n")
    return [load(Kinds, path), load(Kinds, None, [f"{key}={written}"])]


@pytest.mark.parametrize("text", LOOKS_LIKE_ANOTHER)
def test_a_text_keeps_what_is_written(tmp_path: Path, text: str) -> None:
    quoted = load(Kinds, None, overrides_of({"text": text, "inner": {"name": text}, "texts": [text]}))
    assert (quoted.text, quoted.inner.name, quoted.texts) == (text, text, (text,))
    for config in ways(tmp_path, "text", text):
        assert config.text == text
        assert load(Kinds, _written(tmp_path, dump(config))) == config
    for key, of_text in (("maybe", text), ("path", Path(text)), ("inner", Inner(text))):
        for config in ways(tmp_path, key, f"{{name: {text}}}" if key == "inner" else text):
            assert getattr(config, key) == of_text
    for config in ways(tmp_path, "texts", f"[{text}, '{text}']"):
        assert config.texts == (text, text)
    for config in ways(tmp_path, "listed", f"[{text}]"):
        assert config.listed == [text]
    for config in ways(tmp_path, "named", f"{{a: {text}, {text}: b}}"):
        assert config.named == {"a": text, text: "b"}


def _written(folder: Path, text: str) -> Path:
    path = folder / "dumped.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    ["a: b", "@cf/meta/llama", "x #1", "#1", "*x", "a, b", " two ", "[1", "don't", '"a" or "b"', "key=value", "a\nb"],
)
def test_an_override_of_a_text_need_not_be_yaml(text: str) -> None:
    config = load(Kinds, None, [f"text={text}", f"maybe={text}", f"inner.name={text}"])
    assert (config.text, config.maybe, config.inner.name) == (text, text, text)


def test_a_text_in_quotes_is_what_they_enclose() -> None:
    assert load(Kinds, None, ["text=' a'", 'maybe="null"']) == Kinds(text=" a", maybe="null")
    assert load(Kinds, None, ["text=''"]).text == ""


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_null_is_nothing_where_a_setting_may_be_nothing(tmp_path: Path, text: str) -> None:
    assert [config.maybe for config in ways(tmp_path, "maybe", text)] == [None, None]
    if text:
        assert [config.text for config in ways(tmp_path, "text", text)] == [text, text]
        return
    for key in ("text", "whole", "switch"):
        with pytest.raises(UserError, match=f"^{key}=: {key} is None, expected "):
            load(Kinds, None, [f"{key}="])


def test_numbers_and_switches_are_read_by_their_types(tmp_path: Path) -> None:
    assert [config.whole for config in ways(tmp_path, "whole", "0042")] == [42, 42]
    assert [config.part for config in ways(tmp_path, "part", "1e3")] == [1000.0, 1000.0]
    assert [config.flag for config in ways(tmp_path, "flag", "yes")] == [True, True]
    assert [config.switch for config in ways(tmp_path, "switch", "off")] == [Switch.off, Switch.off]
    assert [config.anything for config in ways(tmp_path, "anything", "{a: 0.5, b: [1, no]}")] == [
        {"a": 0.5, "b": [1, False]}
    ] * 2
    for text, shown in (("12:30", "'12:30'"), ("1.5", "1.5"), ("x", "'x'")):
        with pytest.raises(UserError, match=f"^whole={text}: whole is {shown}, expected int$"):
            load(Kinds, None, [f"whole={text}"])
    with pytest.raises(UserError, match=r"^part=1:30\.5: part is '1:30\.5', expected float$"):
        load(Kinds, None, ["part=1:30.5"])
    with pytest.raises(UserError, match=r"^'whole=\[1' is not an override: the value is not YAML$"):
        load(Kinds, None, ["whole=[1"])


def test_a_list_for_a_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"text is \['a', 1\], expected str$"):
        load(Kinds, None, ["text=[a, 1]"])


def test_a_section_of_ones_own_may_have_a_dash_in_its_name() -> None:
    config = load(Recipe, None, ["models.my-model.endpoint.name=007", "models.b={endpoint: {name: 3.10}}"])
    assert {name: model.endpoint.name for name, model in config.models.items()} == {"my-model": "007", "b": "3.10"}


def test_json_keeps_its_own_types() -> None:
    assert from_plain(Kinds, {"text": "0042", "whole": 3, "maybe": None}, "j") == Kinds("0042", None, whole=3)


def test_paths_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for config in ways(tmp_path, "file", "~/a.csv"):
        assert config.file == "/home/me/a.csv"
    for config in ways(tmp_path, "path", "~/a.csv"):
        assert config.path == Path("/home/me/a.csv")
    for config in ways(tmp_path, "files", "[~/a, b]"):
        assert config.files == ("/home/me/a", "b")
    assert load(Kinds, None, ["text=~/a"]).text == "~/a"
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(UserError, match=r"^it is ~/x, but no home folder is known"):
        local("~/x", "it")


def test_one_path_is_a_list_of_one(tmp_path: Path) -> None:
    assert [config.files for config in ways(tmp_path, "files", "a.jsonl")] == [("a.jsonl",)] * 2
    with pytest.raises(UserError, match=r"^files=a,b: files is 'a,b', which has a comma: write a list, \[A,B\] or "):
        load(Kinds, None, ["files=a,b"])
    assert load(Kinds, None, ["files=['a,b']"]).files == ("a,b",)
    assert load(Recipe, None, ["sft.data=0042"]).sft.data == ("0042",)


@pytest.mark.parametrize("key", ["file", "files", "path"])
def test_a_url_is_no_path(key: str) -> None:
    with pytest.raises(UserError, match=rf"^{key}=s3://b/a: {key} is the URL s3://b/a, expected a path on "):
        load(Kinds, None, [f"{key}=s3://b/a"])
    with pytest.raises(UserError, match="expected a path on this machine, or the name Qwen/Qwen3-4B; "):
        load(Recipe, None, ["model.path=https://huggingface.co/Qwen/Qwen3-4B/tree/main"])


PATHS_OF_THE_RECIPE = (
    "run_dir",
    "tasks.path",
    "tools.sandbox.packages",
    "tools.wiki.corpus",
    "tools.wiki.index",
    "tools.wiki.dense.encoder",
    "executor.cache_dir",
    "models.t.serve.model",
    "distill.transcripts",
    "model.path",
    "rl.on_policy.teacher",
    "selection.sft",
    "serving.keys",
    "serving.follow",
)


@pytest.mark.parametrize("key", PATHS_OF_THE_RECIPE)
def test_every_path_of_a_recipe_may_begin_at_home(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    value: Any = load(Recipe, None, [f"{key}=~/x"])
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    assert str(value) == "/home/me/x"

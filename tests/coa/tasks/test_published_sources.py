"""Data sets as files and folders have them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from coa.errors import UserError
from coa.tasks.loading import load, load_tasks
from coa.tasks.published.source import read_rows


def write_parquet(path: Path, *rows: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def problem(number: int) -> dict[str, str]:
    return {"problem": f"{number} + 1 ?", "answer": str(number + 1), "id": str(number)}


def questions(spec: str) -> list[str]:
    return [task.question for task in load(spec)]


def test_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('\ufeffquestion,answer,profile,id\n"a, b ?",x,web,\n"c\nd ?",,,\n', encoding="utf-8")
    rows = read_rows(path)
    location, row = next(rows)
    assert (location.unit, location.number, row) == ("row", 1, {"question": "a, b ?", "answer": "x", "profile": "web"})
    with pytest.raises(UserError, match=r"t\.csv, row 2: no `answer`"):
        load_tasks(path)


def test_parts_of_one_file_are_read_in_their_order(tmp_path: Path) -> None:
    for number in range(3):
        write_parquet(tmp_path / f"data/test-{number:05}-of-00003-ab{9 - number}.parquet", problem(number))
    write_parquet(tmp_path / "data/train-00000-of-00001.parquet", problem(7))
    assert questions(f"math500={tmp_path}") == ["0 + 1 ?", "1 + 1 ?", "2 + 1 ?"]


def test_a_copy_of_a_data_set_is_read_where_the_hub_has_the_split(tmp_path: Path) -> None:
    for number, path in enumerate(("nq/train", "nq/test", "nq/dev", "hotpotqa/dev", "hotpotqa/test")):
        file = tmp_path / f"{path}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{{"id": "x", "question": "{number} ?", "golden_answers": ["a"]}}\n')
    assert questions(f"nq={tmp_path}") == ["1 ?"]
    assert questions(f"hotpotqa={tmp_path}") == ["3 ?"]
    # One level down, the names of splits are all that is left.
    assert questions(f"nq={tmp_path / 'nq'}") == ["1 ?"]
    with pytest.raises(UserError, match=r"which file\? It has hotpotqa/test\.jsonl, nq/test\.jsonl"):
        load(f"popqa={tmp_path}")


def test_gaia_is_the_validation_split_of_all_levels(tmp_path: Path) -> None:
    row = {"task_id": "a", "Question": "which ?", "Level": "1", "Final answer": "x", "file_name": ""}
    for number, name in enumerate(("validation/metadata", "validation/metadata.level1", "test/metadata")):
        write_parquet(tmp_path / f"2023/{name}.parquet", row | {"Question": f"{number} ?"})
    assert questions(f"gaia={tmp_path}") == ["0 ?"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((), "no file in it that ends in .jsonl, .json, .parquet, .csv, .tsv"),
        (("a.jsonl", "b.jsonl"), "which file? It has a.jsonl, b.jsonl"),
        ([f"{name}.json" for name in "abcdef"], "which file? It has a.json, b.json, c.json, d.json, e.json and more"),
    ],
)
def test_a_folder_of_no_or_many_files_is_a_mistake(tmp_path: Path, files: tuple[str, ...], expected: str) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(UserError) as caught:
        load_tasks(tmp_path)
    assert str(caught.value) == f"{tmp_path}: {expected}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that `save_to_disk` wrote: `one` data set, and `several` splits."""
    import datasets

    folder = tmp_path_factory.mktemp("saved")
    datasets.disable_progress_bars()
    splits: Any = {
        name: datasets.Dataset.from_list([problem(number), problem(number + 1)])
        for number, name in enumerate(("train", "test"))
    }
    splits["test"].save_to_disk(folder / "one")
    datasets.DatasetDict(splits).save_to_disk(folder / "several")
    (folder / "broken").mkdir()
    (folder / "broken" / "state.json").write_text("{}")
    return folder


def test_a_saved_data_set_is_read_in_the_benchmarks_split(saved: Path) -> None:
    assert questions(f"math500={saved / 'one'}") == ["1 + 1 ?", "2 + 1 ?"]
    assert questions(f"aime25={saved / 'several'}") == ["1 + 1 ?", "2 + 1 ?"]


def test_a_saved_data_set_of_several_splits_does_not_tell_which(saved: Path) -> None:
    with pytest.raises(UserError, match=r"several: which split\? It has train, test: give the folder of one of them"):
        load_tasks(saved / "several")
    with pytest.raises(UserError, match=r"several: which split\?"):
        load(f"gaia={saved / 'several'}")


def test_a_broken_saved_data_set_is_one_line(saved: Path) -> None:
    with pytest.raises(UserError, match=r"broken: not a data set that `save_to_disk` wrote: ") as caught:
        load_tasks(saved / "broken")
    assert "\n" not in str(caught.value)

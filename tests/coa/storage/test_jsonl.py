import errno
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.errors import DiskFull, UserError
from coa.storage import jsonl
from coa.storage.jsonl import append_line, append_text, read_lines, to_json, write_lines

values = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=80) | st.integers() | st.none()), max_size=5)


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "a.jsonl") == []


def test_lines_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.jsonl"
    write_lines(path, [{"a": 1}, "two"])
    append_line(path, [3])
    assert path.read_text() == '{"a": 1}\n"two"\n[3]\n'
    assert read_lines(path) == [{"a": 1}, "two", [3]]


@given(values, st.integers(0, 200), st.integers(1, 40))
def test_a_file_cut_off_anywhere_keeps_its_whole_lines_and_takes_the_next(
    tmp_path_factory: pytest.TempPathFactory, rows: list[object], cut: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "a.jsonl"
    write_lines(path, rows)
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    whole = rows[: data.count(b"\n")]
    assert read_lines(path) == whole
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jsonl, "_BLOCK", block)
        append_line(path, {"next": True})
    assert read_lines(path) == [*whole, {"next": True}]


def test_a_torn_tail_that_is_evidence_becomes_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"b": ')
    append_text(path, '{"c": 3}', keep_torn=True)
    assert path.read_text() == '{"a": 1}\n{"b": \n{"c": 3}\n'


def test_a_broken_line_in_the_middle_is_one_line_that_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: not JSON: Expecting value") as caught:
        read_lines(path)
    assert "\n" not in str(caught.value)


def test_values_that_json_does_not_know_are_made_plain(tmp_path: Path) -> None:
    append_line(tmp_path / "a.jsonl", {"at": Path("x")}, default=str)
    assert read_lines(tmp_path / "a.jsonl") == [{"at": "x"}]


def test_a_full_disk_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DiskFull, match=r"a\.jsonl: no space left on the disk"):
        append_line(tmp_path / "a.jsonl", 1)


def test_a_line_that_is_broken_by_a_full_disk_is_gone_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, 1)
    with path.open("a") as file:  # as much of the next as there was room for
        file.write(json.dumps({"a": 2})[:4])
    append_line(path, 3)
    assert path.read_text() == "1\n3\n"


def test_numbers_that_json_does_not_have_are_null_for_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"a": math.nan, "b": [1.5, math.inf, {"c": -math.inf}], "d": "NaN"}, {"a": 0.5}]
    write_lines(path, rows)
    for row in rows:
        append_line(path, row, default=str)
    plain = [{"a": None, "b": [1.5, None, {"c": None}], "d": "NaN"}, {"a": 0.5}]
    assert [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()] == [*plain, *plain]
    path.write_text('{"a": NaN, "b": [-Infinity]}\n')
    assert read_lines(path) == [{"a": None, "b": [None]}], "as they were written once"
    assert to_json({"a": math.nan, "b": Path("x")}, default=str, indent=1) == '{\n "a": null,\n "b": "x"\n}'

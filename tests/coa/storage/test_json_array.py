import codecs
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.errors import UserError
from coa.storage.json_array import read_array

Row = dict[str, Any]

objects = st.lists(st.dictionaries(st.text(max_size=3), st.one_of(st.text(max_size=30), st.integers(), st.none())))


@settings(max_examples=60, deadline=None)
@given(objects, st.sampled_from([None, 1]), st.booleans(), st.sampled_from([b"", codecs.BOM_UTF8]))
def test_an_array_reads_the_same_however_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], indent: int | None, escaped: bool, mark: bytes
) -> None:
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_bytes(mark + json.dumps(rows, indent=indent, ensure_ascii=escaped).encode())
    assert list(read_array(path)) == rows


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON after row 0: parse error: premature EOF"),
        ('{"a": 1}', "not a JSON array"),
        ('[{"a": 1}, 2]', "row 2 is not a JSON object"),
        ('[{"a": 1} {"a": 2}]', "not JSON after row 1: parse error: after array element"),
        ('[{"a": 1}', "not JSON after row 1: parse error: premature EOF"),
        ('[{"a": 1}, ', "not JSON after row 1: parse error: premature EOF"),
        ('[{"a": 1}, {"a": ', "not JSON after row 1: parse error: premature EOF"),
        ('[{"a": ' + "[" * 5000, "not JSON after row 0: "),
        ('[{"a": 1}] [', "not JSON after row 1: parse error: trailing garbage"),
    ],
)
def test_a_broken_array_is_one_line_that_names_the_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_array(path))
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert "\n" not in str(caught.value)


def test_a_number_with_a_fraction_is_one_that_json_can_write(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": [0.5, 1e3, 9223372036854775808]}]')
    [row] = read_array(tmp_path / "a.json")
    assert json.dumps(row) == '{"a": [0.5, 1000.0, 9223372036854775808]}'


def test_files_that_can_not_be_read_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.json: cannot be read: No such file"):
        list(read_array(tmp_path / "gone.json"))
    (tmp_path / "latin.json").write_bytes(b'[{"a": "\xff"}]')
    with pytest.raises(UserError, match=r"latin\.json: not JSON after row 0: .*invalid bytes in UTF8"):
        list(read_array(tmp_path / "latin.json"))


def test_broken_json_is_not_searched_for_its_end_through_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": oops' + " " * (1 << 22))
    tracemalloc.start()
    with pytest.raises(UserError, match="not JSON"):
        list(read_array(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_memory_does_not_grow_with_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[" + ",".join(json.dumps({"a": "x" * 100_000}) for _ in range(300)) + "]")
    tracemalloc.start()
    assert sum(1 for _ in read_array(path)) == 300
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20

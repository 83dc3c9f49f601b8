"""Text files as editors and spreadsheets write them."""

import gzip
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from coa.errors import UserError
from coa.storage.texts import lines, stem_of, suffix_of

TEXT = "größe\r\n«zwei»\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_text_is_read_in_the_encoding_that_its_first_bytes_name(tmp_path: Path, encoding: str, packed: bool) -> None:
    path = tmp_path / ("t.TXT.GZ" if packed else "t.txt")
    data = TEXT.encode(encoding)
    path.write_bytes(gzip.compress(data) if packed else data)
    assert list(lines(path)) == ["größe\r\n", "«zwei»\n"]
    assert (stem_of(path), suffix_of(path)) == ("t", ".txt")


def test_utf_16_without_a_mark_is_seen_by_its_zero_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("question,answer\r\n".encode("utf-16-le"))
    assert list(lines(path)) == ["question,answer\r\n"]


def test_files_that_were_joined_have_a_mark_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(BOM_UTF8 + BOM_UTF8 + b"{}\n" + BOM_UTF8 + b"[]\n")
    assert list(lines(path)) == ["{}\n", "[]\n"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.csv", "a\nin Zürich\n".encode("latin-1"), r", line 2: not UTF-8 text \(b'in Z\\xfcrich\\n'\): save it"),
        ("cut.txt", b"\xff\xfea\0b", ", line 1: not utf-16-le text"),
        ("no.gz", b"plain", ": can't be unpacked: Not a gzipped file"),
        ("half.gz", gzip.compress(b"x" * 1000, mtime=0)[:-10], ": can't be unpacked: "),
    ],
)
def test_what_is_no_text_is_one_line_that_says_where(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"^{tmp_path / name}{said}") as caught:
        list(lines(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_the_nearest_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").touch()
    with pytest.raises(
        UserError, match=r"^corpus 7: cannot be read: No such file or directory; there is questions\.js"
    ):
        list(lines(tmp_path / "qestions.jsonl", "corpus 7"))
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory$"):
        list(lines(tmp_path / "gone" / "x.txt"))

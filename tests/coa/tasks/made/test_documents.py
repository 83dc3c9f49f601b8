"""Folders of documents: their texts, whatever their format, what is left out and why, and passages."""

import asyncio
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader, PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from coa.errors import UserError
from coa.tasks.made import documents
from coa.tasks.made.documents import PASSAGE_CHARS, Document, Unread, files_in, passages_of, read_passages, title_of
from coa.tools.layouts import Passage

TEXT = "The Arden mill was built by Nora Lind."


def pdf(text: str, password: str | None = None) -> bytes:
    """A page with this text; with a password, nobody reads it without."""
    writer = PdfWriter()
    page = writer.add_blank_page(300, 300)
    stream = DecodedStreamObject()
    stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    page[NameObject("/Contents")] = stream
    if password is not None:
        writer.encrypt(password, algorithm="AES-256")
    data = io.BytesIO()
    writer.write(data)
    return data.getvalue()


def read(folder: Path) -> tuple[list[Passage], list[Unread]]:
    return asyncio.run(read_passages(folder))


def test_documents_of_every_format_are_read_and_others_are_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".git").mkdir()
    files = {
        "a.txt": f"The Arden mill\n\n{TEXT}\n".encode(),
        "again.TXT": f"The Arden mill\n\n{TEXT} ".encode(),
        "b.md": b"# Mills\n\nOf barley.\n",
        "blank.txt": b" \n",
        "c.html": b"<html><body><p>Brook has a mayor, Nora Berg, who was chosen twice.</p></body></html>",
        "d.pdf": pdf("A page on rye."),
        "deep/e.txt": "Grün und breit".encode("utf-16"),
        "f.txt": "Ein kühles Café".encode("cp1252"),
        "g.pdf": pdf("Closed.", "secret"),
        "h.pdf": pdf("Open to all.", ""),
        "i.pdf": b"%PDF-1.4 broken",
        "j.pdf": pdf(""),
        "k.png": b"\x89PNG",
        ".hidden.txt": b"no",
        ".git/l.txt": b"no",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    passages, unread = read(tmp_path)
    assert [(one.title, one.text) for one in passages] == [
        ("The Arden mill", f"The Arden mill\n{TEXT}"),
        ("Mills", "# Mills\nOf barley."),
        ("c", "Brook has a mayor, Nora Berg, who was chosen twice."),
        ("d", "A page on rye."),
        ("e", "Grün und breit"),
        ("f", "Ein kühles Café"),
        ("h", "Open to all."),
    ]
    assert {one.name: one.why for one in unread} == {
        "again.TXT": "the text of another one: a.txt",
        "blank.txt": "empty",
        "g.pdf": "encrypted",
        "i.pdf": "can't be read",
        "j.pdf": "no text in it",
        "k.png": "another format",
    }


def test_a_document_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LARGEST", 100)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(3 * TEXT)
    passages, unread = read(tmp_path)
    assert ([one.text for one in passages], unread) == ([TEXT], [Unread("b.txt", "too large")])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "world.corpus: no folder at {0}"),
        (
            {},
            "world.corpus: no documents in {0}: known are .txt, .text, .md, .markdown, ",
        ),
        ({"a.png": b"1"}, "world.corpus: no documents in {0}"),
        ({"a.txt": b""}, "world.corpus: no text in {0}: 1 documents, such as a.txt: empty"),
    ],
)
def test_a_folder_without_a_text_is_a_users_mistake(
    tmp_path: Path, files: dict[str, bytes] | None, message: str
) -> None:
    folder = tmp_path / "docs"
    if files is not None:
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
    with pytest.raises(UserError) as raised:
        read(folder)
    assert str(raised.value).startswith(message.format(folder))


def test_a_pdf_without_the_package_that_reads_it_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"pypdf, which reads PDF, is not installed: pip install 'chain-of-agents\[pdf\]'"
    ):
        files_in(tmp_path)


def test_a_folder_of_documents_with_names_in_capitals_is_one(tmp_path: Path) -> None:
    (tmp_path / "A.MD").write_text(TEXT)
    assert files_in(tmp_path) == [tmp_path / "A.MD"]


@pytest.mark.parametrize(
    ("text", "plain", "title"),
    [
        ("# The mill\n\nIt is old.", True, "The mill"),
        ("The mill\n\nIt is old.", True, "The mill"),
        ("The mill\n\nIt is old.", False, "a 1"),
        ("The mill\nis old.\n\nIt is.", True, "a 1"),
        ("It is old.\n\nVery.", True, "a 1"),
        ("The mill", True, "a 1"),
        (f"{'x' * 200}\n\nIt is.", True, "a 1"),
    ],
)
def test_a_title_is_a_heading_or_a_short_first_line(text: str, plain: bool, title: str) -> None:
    assert title_of("a_1", text, plain=plain) == title


def test_passages_are_whole_paragraphs_then_whole_sentences() -> None:
    long = " ".join(f"Sentence {number} is of forty characters or so." for number in range(40))
    text = f"One.\n\nTwo.\n \nThree\nhas a break.\n\n{long}\n\nLast."
    first, *rest = [one.text for one in passages_of(Document("a", "A", text))]
    assert first.startswith("One.\nTwo.\nThree has a break.\nSentence 0 is")
    assert all(one.startswith("Sentence") for one in rest)
    assert all(one.endswith(".") for one in (first, *rest))
    assert rest[-1].endswith("so.\nLast.")


@given(st.text(st.sampled_from("ab .\n\u3002\uff01?!\t"), max_size=4000))
def test_passages_lose_nothing_and_are_never_too_long(text: str) -> None:
    passages = [one.text for one in passages_of(Document("a", "A", text))]
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < len(one) <= PASSAGE_CHARS for one in passages)


def test_a_test_pdf_is_one_that_others_read() -> None:
    assert PdfReader(io.BytesIO(pdf("A page on rye."))).pages[0].extract_text() == "A page on rye."

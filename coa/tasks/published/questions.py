"""Reads rows of open question answering, single and multi-hop, and of questions that need the web.

The texts of the latter must not be published, so nothing here stores them.
"""

import base64
import hashlib
from itertools import cycle

from coa.tasks.published.item import BadRow, Item, Row, answers, called, text


def flash_rag(row: Row) -> Item:
    """Reads {"id": "test_3", "question": .., "golden_answers": [..]} (FlashRAG's collection), or `answer` for the
    last."""
    return Item(
        question=text(row, "question"), answers=answers(row, "answer", "golden_answers"), id=called(row, "id", "index")
    )


def gaia(row: Row) -> Item | None:
    """Reads {"task_id": .., "Question": .., "Final answer": .., "Level": 2, "file_name": ""}; None for a row with a
    file."""
    if row.get("file_name"):
        return None
    level = called(row, "Level")
    return Item(
        question=text(row, "question", "Question"),
        answers=answers(row, "answer", "Final answer"),
        id=called(row, "task_id", "id"),
        part=f"level{level}" if level else "",
    )


def web_walker(row: Row) -> Item:
    """Reads {"question": .., "answer": .., "root_url": .., "info": {..}}."""
    return Item(
        question=text(row, "question", "Question"), answers=answers(row, "answer", "Answer"), id=called(row, "id")
    )


def browse_comp(row: Row) -> Item:
    """Reads {"problem": .., "answer": .., "canary": ..} with the first two encrypted, or {"question": .., "answer":
    ..}."""
    if row.get("canary"):
        canary = text(row, "canary")
        row = {key: decrypt(text(row, key), canary, key) for key in ("problem", "answer")}
    return Item(question=text(row, "question", "problem"), answers=answers(row, "answer"), id=called(row, "id"))


def decrypt(secret: str, canary: str, column: str) -> str:
    """Decrypts base64 of a text XORed with the repeated SHA-256 of the row's canary (openai/simple-evals)."""
    try:
        sealed = base64.b64decode(secret, validate=True)
        return bytes(
            a ^ b for a, b in zip(sealed, cycle(hashlib.sha256(canary.encode()).digest()), strict=False)
        ).decode()
    except ValueError as error:
        raise BadRow(f"`{column}` can't be decrypted with the row's `canary`") from error


def last_exam(row: Row) -> Item | None:
    """Reads {"id": .., "question": .., "image": "", "answer": ..}; None for a row with an image."""
    if row.get("image"):
        return None
    return Item(question=text(row, "question"), answers=answers(row, "answer"), id=called(row, "id"))

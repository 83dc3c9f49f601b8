"""Reads rows of open question answering, single and multi-hop."""

from coa.tasks.published.item import Item, Row, answers, called, text


def flash_rag(row: Row) -> Item:
    """Reads {"id": "test_3", "question": .., "golden_answers": [..]} (FlashRAG's collection), or `answer` for the
    last."""
    return Item(
        question=text(row, "question"), answers=answers(row, "answer", "golden_answers"), id=called(row, "id", "index")
    )

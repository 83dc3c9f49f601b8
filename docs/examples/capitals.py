"""A benchmark: where its rows are, how one reads, and how it is measured.

COA_EXTENSIONS=docs.examples.capitals coa evaluate --model runs/demo/model --tasks capitals=capitals.jsonl
"""

from coa.tasks.published.benchmark import Benchmark, Decoding, Hub
from coa.tasks.published.item import Item, Row, answers, text
from coa.tasks.published.table import register


def read(row: Row) -> Item:
    """{"country": "Chad", "capital": ["N'Djamena", "NDjamena"]}"""
    return Item(question=f"What is the capital of {text(row, 'country')} ?", answers=answers(row, "capital"))


register(
    Benchmark(
        name="capitals",
        hub=Hub(id="example/capitals", files=("*.jsonl",)),
        rows=(195,),
        profile="mhqa",
        grader="exact",
        metric="avg@k",
        decoding=Decoding(samples=4, temperature=1.0),
        read=read,
        terms="CC0",
    )
)

"""The card of a data set: Markdown, with the front matter that the Hugging Face hub and `datasets` read.

A pure function from plain values to text. In the place of a licence, the card says that the user has to choose one.
"""

import json
import re
from collections.abc import Mapping

from coa.distill.dataset.summary import Summary
from coa.json_object import Json, JsonView
from coa.reporting.markdown import LICENSE, LICENSE_NOTE, TAGS, code, flat, front, joined, rows_of_counts, table
from coa.usage import Usage

_SIZES = {
    10**3: "n<1K",
    10**4: "1K<n<10K",
    10**5: "10K<n<100K",
    10**6: "100K<n<1M",
    10**7: "1M<n<10M",
    10**8: "10M<n<100M",
}
_LOAD = """\
from datasets import load_dataset

rows = load_dataset("PATH_OF_THIS_FOLDER", split="train")"""
_LIST = re.compile(r"list<\w+: (.+)>")


def data_card(
    name: str,
    summary: Summary,
    *,
    transcripts: int,
    dropped: Mapping[str, int],
    filters: JsonView,
    contaminated: int,
    cost: Usage,
    instructed: bool,
    limit: int,
) -> str:
    """The README.md of a data folder.

    transcripts: number of team runs; dropped: counts by reason of those that were not kept. contaminated: number of
    runs whose question is in an evaluation set. filters: settings of the filter; if empty, the card mentions neither
    transcripts nor dropped. cost: of all runs. limit: maximum tokens of a row for training.
    """
    parts = [
        front(_data_front(name, summary)),
        f"# {name}",
        "Chains of agents, distilled: each row is the run of a team of agents on one question, rewritten as the one "
        "stream of tagged text that a single model is to write (Chain-of-Agents, arXiv 2508.13167). What tools "
        "returned stands between `<observation>` tags and is not to be learnt: `policy_mask` is false there.",
        f"{summary.rows:,} rows, {summary.copies:,} with repetitions (`copies`); "
        f"{summary.reflected:,} reflect, {summary.corrected:,} corrected themselves; "
        f"{summary.interactions:.1f} interactions of agents and tools on average.",
        "## Rows",
        *(
            table((what, "rows"), rows_of_counts(summary.counts[what]))
            for what in ("profile", "family", "team", "source")
        ),
        "## Tokens",
        _tokens(summary, instructed, limit),
        "## What was left out",
        *(_filter(transcripts, dropped, filters, contaminated) if filters else (_contaminated(contaminated, "rows"),)),
        "## Teachers",
        _teachers(summary, cost),
        "## License",
        LICENSE_NOTE,
        "## How to load it",
        code("python", _LOAD),
        "`coa export` writes it for TRL and LLaMA-Factory.",
    ]
    return joined(parts)


def _filter(transcripts: int, dropped: Mapping[str, int], filters: JsonView, contaminated: int) -> list[str]:
    return [
        f"Of {transcripts:,} runs, {sum(dropped.values()):,} were dropped.",
        table(("reason", "runs"), rows_of_counts(dropped)) if dropped else "",
        _contaminated(contaminated, "runs"),
        "## Filter",
        table(("setting", "value"), flat(filters)),
    ]


def _contaminated(count: int, what: str) -> str:
    return f"Questions that are in an evaluation: {count:,} {what}, left out."


def _data_front(name: str, summary: Summary) -> Json:
    return {
        "pretty_name": name,
        "license": LICENSE,
        "task_categories": ["question-answering", "text-generation"],
        "tags": [*TAGS, "distillation"],
        "size_categories": [next((size for n, size in _SIZES.items() if summary.rows < n), "100M<n<1B")],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "train-*.parquet"}]}],
        "dataset_info": {
            "features": [{"name": column} | _feature(kind) for column, kind in summary.columns.items()],
            "splits": [{"name": "train", "num_bytes": summary.bytes, "num_examples": summary.rows}],
        },
    }


def _feature(kind: str) -> dict[str, str]:
    listed = _LIST.fullmatch(kind)
    return {"list": listed[1]} if listed else {"dtype": kind}


def _tokens(summary: Summary, instructed: bool, limit: int) -> str:
    tokens = summary.tokens
    if tokens is None:
        return "The rows have no tokens yet."
    rows = {
        "all": f"{tokens.total:,}",
        "to be learnt": f"{tokens.learnt:,} ({tokens.learnt / max(tokens.total, 1):.0%})",
        "a row: mean": f"{tokens.mean:,.1f}",
        "a row: median": f"{tokens.median:,.0f}",
        "a row: 95 % have at most": f"{tokens.p95:,.0f}",
        "a row: longest": f"{tokens.longest:,}",
        "a row: trained on up to": f"{limit:,}",
    }
    begin = "begin with the profile's instructions" if instructed else "are the question alone"
    return f"{table(('tokens', 'number'), rows.items())}\n\nPrompts {begin}."


def _teachers(summary: Summary, cost: Usage) -> str:
    parts: list[str] = []
    scripted = 0
    for models, rows in summary.counts["models"].items():
        if roles := ", ".join(f"{role}: `{model}`" for role, model in json.loads(models or "{}").items()):
            parts.append(f"- {rows:,} rows: {roles}")
        else:
            scripted += rows
    if summary.unnamed:
        parts.append(f"- {summary.unnamed:,} rows: a language model that their logs do not name")
    if scripted > summary.unnamed:
        parts.append(f"- {scripted - summary.unnamed:,} rows: no language model")
    parts.append(
        f"\nAll runs, kept or not, took {cost.requests:,} requests of language models: {cost.prompt_tokens:,} tokens "
        f"sent and {cost.completion_tokens:,} received. Of those, the kept rows took {summary.requests:,} requests, "
        f"{summary.prompt_tokens:,} and {summary.completion_tokens:,} tokens."
    )
    return "\n".join(parts)

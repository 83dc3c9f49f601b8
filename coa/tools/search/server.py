"""Serves an index of a corpus over HTTP: one host holds the index, and tool executors on other hosts query it.

    python -m coa.tools.search.server --corpus wiki-18.jsonl --port 8000 [backend=dense dense.encoder=...]

It uses the protocol of common retrievers (Search-R1's, among others):

    POST /retrieve {"queries": ["who founded Arden"], "topk": 3, "return_scores": true}
    200 {"result": [[{"document": {"title": "Arden", "text": "...", "contents": "\\"Arden\\"\\n..."}, "score": 7.1}]]}

with a list per query, and bare documents if no scores are requested. A request that cannot be answered is 400 with
{"error": why}.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from coa.config import load
from coa.errors import UserError
from coa.tools.layouts import Passage
from coa.tools.search.wiki import MAX_QUERY_CHARS, MAX_TOPK, WikiConfig, canonical, open_index

MAX_QUERIES = 1000

Search = Callable[[str, int], Sequence[Passage]]
"""Finds passages for a query, up to a limit; may block, and is called from several threads."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request of a retriever's client."""

    queries: tuple[str, ...]
    topk: int
    scores: bool


def read_question(data: bytes) -> Question:
    """Reads the body of a request; raises ValueError, which says what is wrong with it, or RecursionError."""
    body = json.loads(data)
    if not isinstance(body, dict) or not isinstance(body.get("queries"), list):
        raise ValueError("queries: a list is expected")
    queries, topk = body["queries"], body.get("topk", 3)
    if len(queries) > MAX_QUERIES or not all(isinstance(query, str) for query in queries):
        raise ValueError(f"queries: at most {MAX_QUERIES} strings are expected")
    if any(len(query) > MAX_QUERY_CHARS for query in queries):
        raise ValueError(f"queries: a query may have {MAX_QUERY_CHARS} characters")
    if type(topk) is not int or not 1 <= topk <= MAX_TOPK:
        raise ValueError(f"topk: a number from 1 to {MAX_TOPK} is expected")
    return Question(tuple(canonical(query) for query in queries), topk, body.get("return_scores") is True)


def make_app(search: Search) -> web.Application:
    """The web application that answers `/retrieve`."""

    def answer(question: Question) -> list[list[object]]:
        found = (search(query, question.topk) if query else () for query in question.queries)
        return [[_item(passage, question.scores) for passage in passages] for passages in found]

    async def retrieve(request: web.Request) -> web.Response:
        try:
            question = read_question(await request.read())
        except (ValueError, RecursionError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({"result": await asyncio.to_thread(answer, question)})

    app = web.Application()
    app.add_routes([web.post("/retrieve", retrieve)])
    return app


def _item(passage: Passage, score: bool) -> object:
    contents = f'"{passage.title}"\n{passage.text}'
    document = {"title": passage.title, "text": passage.text, "contents": contents}
    return {"document": document, "score": passage.score} if score else document


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m coa.tools.search.server", description="Serves a corpus.")
    parser.add_argument("--corpus", required=True, help="JSONL or Parquet, a passage a row")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for every address of this machine (%(default)s)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of wiki, such as backend=dense")
    options = parser.parse_args(arguments)
    try:
        config = load(WikiConfig, overrides=[f"corpus={json.dumps(options.corpus)}", *options.settings])
        web.run_app(make_app(open_index(config).search), host=options.host, port=options.port)
    except (UserError, OSError, OverflowError) as error:  # but UserError: an address that can't be served at
        print(f"coa.tools.search.server: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

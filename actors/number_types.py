"""How much faster this CPU multiplies matrices in bfloat16 than in float32; printed as JSON, by number of rows.

Learners multiply the rows of hundreds of tokens at once, and are limited by arithmetic; an engine has one row for each
request, and is limited by memory as long as they are few.
"""

import json
import time

import torch

LEARNER_ROWS, ENGINE_ROWS = 512, 4
WIDTH = 1024
SECONDS = 0.2
"""For each number type and number of rows."""


def seconds(rows: int, dtype: torch.dtype) -> float:
    """Seconds of a product of [rows, WIDTH] and [WIDTH, 4 WIDTH]: the fastest within SECONDS."""
    left, right = torch.ones(rows, WIDTH, dtype=dtype), torch.ones(WIDTH, 4 * WIDTH, dtype=dtype)
    torch.mm(left, right)
    fastest, until = float("inf"), time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < until:
        torch.mm(left, right)
        fastest = min(fastest, time.perf_counter() - began)
    return fastest


def speedups() -> dict[int, float]:
    return {rows: seconds(rows, torch.float32) / seconds(rows, torch.bfloat16) for rows in (LEARNER_ROWS, ENGINE_ROWS)}


if __name__ == "__main__":
    print(json.dumps(speedups()))

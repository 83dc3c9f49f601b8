"""The model alone through `coa serve`, relative to vLLM's own server: tokens per second and time to first token.

    python -m benchmarks.serve_plain            both models, for the figures
    python -m benchmarks.serve_plain --smoke    a check that it runs: few requests, the tiny model, nothing written

Both servers are up at the same time with the same model and settings, each with its own engine, and are measured in
turns with 64 concurrent streams; the client is a separate process, whose CPU share is reported. `smollm` has random
weights with the shapes of SmolLM2-135M, `tiny` with those of the demo's model. The requests are streamed chat
completions of a fixed length at temperature 1, each with a seed.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from actors.rollout.config import EngineConfig
from benchmarks.harness import median_ratio, report
from benchmarks.load import ask
from benchmarks.served import NAME, coa_server, make_model, make_smollm, vllm_server

AT_ONCE, CONTEXT = 64, 512
ENGINE = EngineConfig()
MODELS: dict[str, Callable[[Path], Path]] = {
    "smollm": make_smollm,
    "tiny": lambda folder: make_model(folder, "tiny", CONTEXT),
}
TOKENS = {"smollm": 48, "tiny": 128}
"""Of each answer."""
TARGETS = {"throughput_smollm": ">= 0.9", "first_token_smollm": "<= 1.2"}


def measure(folder: Path, model: str, *, requests: int, rounds: int) -> dict[str, float]:
    made = MODELS[model](folder / model)
    settings = (f"agent.limits.max_tokens={CONTEXT}", f"engine.max_concurrent={ENGINE.max_concurrent}")
    questions = [f"Who is the current owner of company {n} , and where was he born ?" for n in range(requests)]
    body = {"max_tokens": TOKENS[model], "ignore_eos": True, "temperature": 1.0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    found: dict[str, list[dict[str, Any]]] = {"coa": [], "vllm": []}
    with (
        coa_server(made, folder / f"coa-{model}.log", settings) as ours,
        vllm_server(made, folder / f"vllm-{model}.log", ENGINE, CONTEXT) as theirs,
    ):
        sides = {"coa": (ours, f"{NAME}:plain"), "vllm": (theirs, NAME)}
        for round_ in range(1 + rounds):
            for side, (url, name) in sides.items():
                url = f"{url}/v1/chat/completions"
                got = ask("run", url=url, body={**body, "model": name}, questions=questions, at_once=AT_ONCE)
                assert got["tokens"] == requests * TOKENS[model], f"{side}: {got['tokens']} tokens"
                if round_:  # the first one warms up
                    found[side].append(got)
    return figures(found, model)


def figures(found: dict[str, list[dict[str, Any]]], model: str) -> dict[str, float]:
    rate = {side: [got["tokens"] / got["seconds"] for got in rounds] for side, rounds in found.items()}
    first = {side: [median(got["first_s"]) for got in rounds] for side, rounds in found.items()}
    cores = os.cpu_count() or 1
    return {
        f"throughput_{model}": median_ratio(rate["coa"], rate["vllm"]),
        f"first_token_{model}": median_ratio(first["coa"], first["vllm"]),
        **{f"tokens_s_{model}_{side}": median(rates) for side, rates in rate.items()},
        **{f"first_token_s_{model}_{side}": median(firsts) for side, firsts in first.items()},
        **{
            f"client_share_{model}_{side}": fmean(got["cpu_s"] / got["seconds"] / cores for got in rounds)
            for side, rounds in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in ("tiny",) if smoke else MODELS:
            measured |= measure(Path(folder), model, requests=64 if smoke else 192, rounds=1 if smoke else 3)
    if smoke:
        print(measured)
        return
    report("serve_plain", measured, TARGETS)


if __name__ == "__main__":
    main()

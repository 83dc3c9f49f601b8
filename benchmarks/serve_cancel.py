"""The time until the slot of a disconnected client serves the next one, through the whole of `coa serve`.

    python -m benchmarks.serve_cancel            for the figures
    python -m benchmarks.serve_cancel --smoke    a check that it runs: few requests, nothing written

The engine has 64 slots, all used by long streams, and one more request waits. A client disconnects. `next`: the time
until the waiting request has its first token, which includes that the server notices the disconnect, that the engine
ends the request, and that the first token is computed and sent. `first`: the time to first token of a request that
finds a free slot beside 63 streams. `cancel`, the time to free the slot: each `next` minus the median `first`. Then
1,000 clients disconnect at once: the time until 64 other requests, sent at that moment, all have their first token.
Measured for the model alone (`plain`) and for the agent (`agent`, with turns of the same length).
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.harness import report
from benchmarks.load import ask
from benchmarks.served import NAME, coa_server, make_model
from coa.agent.episode import AgentConfig, Grammar, Limits
from jobs.run.agent_file import write_agent

SLOTS, CONTEXT = 64, 8192
AGENT = AgentConfig(
    instructed=False,
    grammar=Grammar.enforce,
    limits=Limits(max_turns=2, max_turn_tokens=CONTEXT // 2, max_tokens=CONTEXT),
)
"""Untrained and greedy, the policy repeats itself inside of its first tag."""
SETTINGS = (
    "tasks.world=tiny",
    "serving.profile=mhqa",
    "serving.max_requests=2000",
    "serving.max_queued=2000",
    f"engine.max_concurrent={SLOTS}",
    "engine.kv_cache_gib=2.0",
)
TARGETS = {
    **{f"cancel_s_{mode}": "<= 0.1" for mode in ("plain", "agent")},
    **{f"cancel_p99_s_{mode}": "<= 0.5" for mode in ("plain", "agent")},
    **{f"freed_1000_s_{mode}": "<= 5" for mode in ("plain", "agent")},
}


def measure(url: str, mode: str, *, times: int, count: int) -> dict[str, float]:
    name = f"{NAME}:plain" if mode == "plain" else NAME
    body: dict[str, Any] = {"model": name, "temperature": 0.0, "stream": True, "max_tokens": CONTEXT // 2}
    body |= {"ignore_eos": True} if mode == "plain" else {}
    asking = {"url": f"{url}/v1/chat/completions", "body": body, "questions": ["Who ?"], "at_once": SLOTS}
    found = ask("cancel", **asking, times=times)
    first = median(found["first_s"])
    cancels = [wait - first for wait in found["waits_s"]]
    return {
        f"first_s_{mode}": first,
        f"next_s_{mode}": median(found["waits_s"]),
        f"next_p99_s_{mode}": quantiles(found["waits_s"], n=100)[-1],
        f"cancel_s_{mode}": median(cancels),
        f"cancel_p99_s_{mode}": quantiles(cancels, n=100)[-1],
        f"freed_{count}_s_{mode}": ask("flood", **asking, count=count)["freed_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", "tiny", CONTEXT)
        write_agent(model, AGENT)
        with coa_server(model, Path(folder) / "log", SETTINGS) as url:
            for mode in ("plain", "agent"):
                measured |= measure(url, mode, times=20 if smoke else 200, count=200 if smoke else 1000)
    if smoke:
        print(measured)
        return
    report("serve_cancel", measured, TARGETS)


if __name__ == "__main__":
    main()

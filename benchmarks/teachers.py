"""The share of an endpoint's capacity that a team of language models uses, and the driver's CPU time for it.

    python -m benchmarks.teachers

The endpoint, on loopback and in its own process, answers after 200 ms and allows 64 concurrent requests: at most 320
requests per second. `coa distill` plays 200 concurrent runs against it, all processes on this machine. Measured in the
middle of the run, while the maximum number of runs is in progress: answered requests per second divided by 320, and the
driver's CPU time, including its threads, over the same seconds.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import ROOT, report

LATENCY_S, AT_ONCE, IN_FLIGHT = 0.2, 64, 200
CAPACITY = AT_ONCE / LATENCY_S
RUNS = 1500
SETTINGS = (
    "team.model=m",
    # Looked up in an encyclopedia: a sandbox for each call would share the machine's cores.
    "world.families=[mhqa]",
    f"distill.runs={RUNS}",
    f"teaching.runs_in_flight={IN_FLIGHT}",
    "models.m.endpoint.name=expert",
    f"models.m.endpoint.concurrent={AT_ONCE}",
)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, of all its threads."""
    import psutil

    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main() -> None:
    from tests.support.endpoints import EndpointProcess, read_log

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        words = (
            "--latency",
            str(LATENCY_S),
            "--concurrent",
            str(AT_ONCE),
            "--reply",
            "tests.support.expert_replies:reply",
        )
        samples: list[tuple[float, float]] = []
        with EndpointProcess(*words, "--log", str(log)) as endpoint:
            settings = (*SETTINGS, f"run_dir={folder}/run", f"models.m.endpoint.url={endpoint.url}")
            command = [sys.executable, "-m", "jobs.cli", "distill", "--recipe", "tiny", *settings]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as driver:
                while driver.poll() is None:
                    samples.append((time.time(), cpu_s(driver.pid)))
                    time.sleep(0.25)
            if driver.returncode:
                raise SystemExit(f"coa distill ended with {driver.returncode}")
        ended = sorted(seen.finished for seen in read_log(log) if seen.finished and seen.outcome == "200")
    first, last = ended[len(ended) // 4], ended[3 * len(ended) // 4]
    within = [(when, cpu) for when, cpu in samples if first <= when <= last]
    figures = {
        "requests": len(ended),
        "requests_s": len(ended) / 2 / (last - first),
        "capacity_used": len(ended) / 2 / (last - first) / CAPACITY,
        "driver_cores": (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0]),
    }
    report("teachers", figures, {"capacity_used": ">= 0.9", "driver_cores": "<= 0.3"})


if __name__ == "__main__":
    main()

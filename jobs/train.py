"""The whole way: teach, distil, fine-tune, reinforce, evaluate, compare.

    distill -> sft -> evaluate -> rl -> evaluate -> cost of team and model -> report

Each stage leaves its result in the run's folder, and one that is finished is not run again: the same command
resumes a run that was interrupted.
"""

import json
import time
from contextlib import AsyncExitStack
from typing import Any

from omegaconf import OmegaConf

import coa
from cluster.resources import Demand, tool_demands
from coa.data.model_card import model_card
from coa.files import write_atomically
from coa.metrics import read_metrics
from coa.report import write_report
from coa.statistics import token_reduction
from coa.world import tasks_sha256
from jobs import evaluate as evaluation
from jobs.agent_file import AGENT_FILE
from jobs.attempts import decoding
from jobs.console import Console
from jobs.distill import demands_of, distill, require_most
from jobs.engines import engine_pool
from jobs.evaluate import evaluate_stage
from jobs.examples import examples
from jobs.recipe import Recipe
from jobs.rl import reinforcement_demands, rl
from jobs.run import Run, check_run, in_session
from jobs.services import tool_counts, tool_executors
from jobs.sft import sft, sft_demands
from jobs.team_cost import no_cost, team_cost


def check(config: Recipe) -> None:
    check_run(config)


def run(config: Recipe, console: Console) -> None:
    in_session(config, console, train, demands=[ask(config) for ask in DEMANDS.values()])


def distilling_demands(config: Recipe) -> list[Demand]:
    return [] if config.sft.data else demands_of(config)


def tuning_demands(config: Recipe) -> list[Demand]:
    """The tools are there from the first stage to the last."""
    return [*tool_demands(config.placement), *sft_demands(config)]


DEMANDS = {"distill": distilling_demands, "sft": tuning_demands, "rl": reinforcement_demands}
"""What runs at the same time, stage by stage."""


NOTHING_DISTILLED = {"transcripts": 0, "kept": 0, "dropped": {}, "seconds": 0.0}


async def train(run: Run) -> None:
    run.prepare()
    began = time.time()
    results: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        executors = await stack.enter_async_context(tool_executors(run))
        results["distill"] = NOTHING_DISTILLED
        if not run.config.sft.data:
            results["distill"] = await distill(run, executors)
            require_most(run, results["distill"])
        results["sft"] = await sft(run)
        if run.result("evaluation-rl") is None:
            pool = await stack.enter_async_context(engine_pool(run, run.sft_model, executors))
            results["evaluation-sft"] = await evaluate_stage(run, pool, "sft", run.sft_model)
            results["rl"] = await rl(run, pool, executors)
            results["evaluation-rl"] = await evaluate_stage(run, pool, "rl", run.model)
        results["team"] = await team_cost(run, executors)
        results["tools"] = run.result("tools") or run.finish("tools", await tool_counts(executors))
    for name in ("rl", "evaluation-sft", "evaluation-rl"):
        results.setdefault(name, run.result(name))
    seconds = run.result("seconds") or run.finish("seconds", {"total": round(time.time() - began, 1)})
    report = make_report(run, results, seconds["total"])
    metrics = read_metrics(run.folder / "metrics.jsonl")
    write_report(run.folder, report, metrics, examples(run), title=f"Chain-of-Agents: {run.folder.name}")
    write_model_card(run, report)
    show(run, report)


def write_model_card(run: Run, report: dict[str, Any]) -> None:
    config = OmegaConf.to_container(OmegaConf.structured(run.config), enum_to_str=True)
    agent = json.loads((run.model / AGENT_FILE).read_text())
    assert isinstance(config, dict)
    plain = {str(key): value for key, value in config.items()}
    card = model_card(run.folder.name, report, plain, agent, base=run.config.model.path, data=run.config.sft.data)
    write_atomically(run.model / "README.md", card)


def make_report(run: Run, results: dict[str, Any], seconds: float) -> dict[str, Any]:
    """`report.json`: its keys are a contract (docs/run_directory.md)."""
    team, afm = results["team"]["families"], results["evaluation-rl"]["cost"]
    stages = {
        "distill": results["distill"],
        **{name: {key: results[name][key] for key in ("steps", "seconds", "samples")} for name in ("sft", "rl")},
    }
    evaluations = {
        name: {key: value for key, value in results[f"evaluation-{name}"].items() if key != "cost"}
        for name in ("sft", "rl")
    }
    return {
        "version": coa.__version__,
        "seed": run.config.seed,
        "stages": stages,
        "evaluation": {**evaluations, "tasks_sha256": tasks_sha256(run.evaluation_tasks())},
        "cost": {
            "counted": (
                "tokens of every call of an agent or of the model: what was sent, again each "
                f"time it was sent, plus what came back; {results['team']['counted']}; "
                f"{decoding(run.config.evaluation).samples} sampled attempts of the model; the policy's tokenizer"
            ),
            "multi_agent": team.get("all", no_cost()),
            "afm": afm["all"],
            "token_reduction": token_reduction(team.get("all", no_cost()), afm["all"]),
            "families": {
                name: {
                    "token_reduction": token_reduction(team[name], afm[name]),
                    "multi_agent": team[name],
                    "afm": afm[name],
                }
                for name in team
                if name != "all" and name in afm
            },
        },
        "rl": {key: value for key, value in results["rl"].items() if key not in ("steps", "seconds", "samples")},
        "tools": results["tools"],
        "seconds": {"total": seconds},
    }


def show(run: Run, report: dict[str, Any]) -> None:
    console, before, after = run.console, report["evaluation"]["sft"], report["evaluation"]["rl"]
    rows = [
        [
            name,
            evaluation.show(b["greedy"]),
            evaluation.show(a["greedy"]),
            evaluation.show(b["pass_at_1"]),
            evaluation.show(a["pass_at_1"]),
        ]
        for name, b, a in (
            ("all", before, after),
            *((name, before["families"][name], after["families"][name]) for name in before["families"]),
        )
    ]
    n = before["greedy"]["n"]
    console.table(
        f"pass@1 on {n} held-out tasks, with 95 % intervals",
        ["", "greedy: SFT", "RL", "sampled: SFT", "RL"],
        rows,
    )
    cost = report["cost"]
    console.table(
        "cost of a success",
        ["", "team: tokens", "tool calls", "model: tokens", "tool calls", "tokens saved"],
        [cost_row(name, part) for name, part in (("all", cost), *cost["families"].items())],
    )
    console.say(f"run {run.folder}\nmodel {run.model}\nreport {run.folder / 'report.html'}")


def cost_row(name: str, part: dict[str, Any]) -> list[str]:
    def cell(value: float | None, digits: int = 0) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    saved = part["token_reduction"]
    return [
        name,
        cell(part["multi_agent"]["tokens_per_success"]),
        cell(part["multi_agent"]["tool_calls_per_success"], 2),
        cell(part["afm"]["tokens_per_success"]),
        cell(part["afm"]["tool_calls_per_success"], 2),
        "-" if saved is None else f"{saved:.1%}",
    ]

"""All stages of a run: teach, distil, fine-tune, reinforce, evaluate, compare.

    distill -> sft -> evaluate -> rl -> evaluate -> cost of team and model -> report

Each stage leaves its result in the run's folder, and one that is finished is not run again: the same command
resumes a run that was interrupted.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path

from omegaconf import OmegaConf

import coa
from coa.json_object import Json
from coa.reporting.metrics import read_metrics
from coa.reporting.model_card import model_card
from coa.reporting.page import PAGE, Example, alarms, write_report
from coa.reporting.statistics import token_reduction
from coa.storage.files import write_atomically
from coa.tasks.samples import result_name
from coa.tasks.worlds import tasks_sha256
from jobs.evaluation.attempts import decoding
from jobs.evaluation.compared import MODES, gains
from jobs.recipe.schema import EvaluationConfig
from jobs.run.agent_file import AGENT_FILE
from jobs.run.examples import examples
from jobs.run.run_dir import RunDir
from jobs.stages import evaluate as evaluation
from jobs.stages.distill import distill, require_most
from jobs.stages.engines import engine_pool
from jobs.stages.evaluate import BASE, evaluate_base, evaluate_stage
from jobs.stages.remaining import remaining
from jobs.stages.rl import early_learners, rl, tell_bottleneck
from jobs.stages.services import tool_client, tool_counts
from jobs.stages.sft import sft
from jobs.teachers.team_cost import no_cost, team_cost

NOTHING_DISTILLED = {"transcripts": 0, "kept": 0, "dropped": {}, "seconds": 0.0}


async def train(run: RunDir) -> None:
    run.prepare()
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(tool_client(run))
        if run.config.distils:
            require_most(run, await distill(run, tools))
            if line := await asyncio.to_thread(remaining, run):
                run.console.say(line)
        await evaluate_base(run, tools)
        await sft(run)
        if run.result("evaluation-rl") is None:
            async with early_learners(run) as learning:
                pool = await stack.enter_async_context(engine_pool(run, run.sft_model, tools))
                await evaluate_stage(run, pool, "sft", run.sft_model)
                await rl(run, pool, tools, learning)
            await evaluate_stage(run, pool, "rl", run.model)
        with run.console.waiting("team cost", "measuring what the team spends on the held-out tasks"):
            await team_cost(run, tools)
        if run.result("tools") is None:
            run.finish("tools", await tool_counts(tools))
    if run.result("seconds") is None:
        run.finish("seconds", {"total": round(time.monotonic() - began, 1)})
    conclude(run)


def is_finished(run: RunDir) -> bool:
    """Whether all stages are finished, so that `train` would only write and show the report."""
    return run.result("seconds") is not None and not run.config.distill.retry_failed


def conclude(run: RunDir) -> None:
    """Writes the report and the model card of a run whose stages are finished, and shows the results."""
    sides = (*((BASE,) if run.config.evaluates_base else ()), "sft", "rl")
    names = ("sft", "rl", *(f"evaluation-{side}" for side in sides), "team-cost", "tools", "seconds", "bottleneck")
    results: Json = {name: run.result(name) for name in names}
    results["distill"] = run.result("distill") or NOTHING_DISTILLED
    report = make_report(run, results)
    metrics = read_metrics(run.folder / "metrics.jsonl")
    attempt = run.console.boundary.attempt
    with run.console.waiting("report", "writing the page and the model's card"):
        shown: list[Example] = []
        attempt("the page's examples", lambda: shown.extend(examples(run)))
        title = f"Chain-of-Agents: {run.folder.name}"
        write_report(run.folder, report, metrics, shown, title=title, boundary=run.console.boundary)
        attempt("the model's card", lambda: write_model_card(run, report))
    attempt("the table of results", lambda: show(run, report))
    given = Path(run.config.run_dir)
    run.console.say(f"run {given}\nmodel {given / run.model.name}\nreport {given / PAGE}")


def write_model_card(run: RunDir, report: Json) -> None:
    config = OmegaConf.to_container(OmegaConf.structured(run.config), enum_to_str=True)
    agent = json.loads((run.model / AGENT_FILE).read_text())
    assert isinstance(config, dict)
    plain = {str(key): value for key, value in config.items()}
    card = model_card(run.folder.name, report, plain, agent, base=run.config.model.path, data=run.config.sft.data)
    write_atomically(run.model / "README.md", card)


def make_report(run: RunDir, results: Json) -> Json:
    """`report.json`: its keys are a contract (docs/run_directory.md)."""
    team, afm = results["team-cost"]["families"], results["evaluation-rl"]["cost"]
    stages = {
        "distill": results["distill"],
        **{name: {key: results[name][key] for key in ("steps", "seconds", "samples")} for name in ("sft", "rl")},
    }
    evaluations = {
        name: {key: value for key, value in found.items() if key != "cost"}
        for name in (BASE, "sft", "rl")
        if (found := results.get(f"evaluation-{name}"))
    }
    return {
        "version": coa.__version__,
        "seed": run.config.seed,
        "stages": stages,
        "evaluation": {
            **evaluations,
            "gain": gains(*(run.trajectories / f"evaluation-{name}.parquet" for name in ("sft", "rl"))),
            "tasks_sha256": tasks_sha256(run.evaluation_tasks()),
        },
        "cost": {
            "counted": (
                "tokens of prompt and reply over all calls of an agent or of the model, a repeated "
                f"prompt counted each time; {results['team-cost']['counted']}; "
                f"{attempts_in_words(run.config.evaluation)} of the model; the policy's tokenizer"
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
        "bottleneck": results.get("bottleneck"),
        "tools": results["tools"],
        "seconds": results["seconds"],
    }


def attempts_in_words(config: EvaluationConfig) -> str:
    how = decoding(config)
    return f"{how.samples} sampled attempts" if how.temperature else "the greedy attempt"


def show(run: RunDir, report: Json) -> None:
    console, heads = run.console, {BASE: "before", "sft": "SFT", "rl": "RL", "gain": "gain"}
    sides = {side: found for side in heads if (found := report["evaluation"].get(side))}
    families = sides["sft"]["families"]
    parts = {"all": sides}
    parts |= {name: {side: found["families"].get(name, {}) for side, found in sides.items()} for name in families}
    modes = {mode: key for mode, key in MODES.items() if key in sides["sft"]}
    measured = [side for side in sides if side != "gain"]
    console.table(
        f"pass@1 on {sides['sft']['n']} held-out tasks, with 95 % intervals",
        ["", "", *(heads[side] for side in measured)],
        [
            [
                result_name(name, part["sft"]) if n == 0 else "",
                mode,
                *(evaluation.show(part[side].get(key)) for side in measured),
            ]
            for name, part in parts.items()
            for n, (mode, key) in enumerate(modes.items())
        ],
    )
    console.table(
        "gain by RL, task by task, with 95 % intervals",
        ["", *modes],
        [
            [name, *(evaluation.show_gain(part["gain"].get(key)) for key in modes.values())]
            for name, part in parts.items()
        ],
    )
    cost = report["cost"]
    console.table(
        "cost of a success",
        ["", "team: tokens", "calls", "model: tokens", "calls", "tokens saved"],
        [cost_row(name, part) for name, part in (("all", cost), *cost["families"].items())],
    )
    for sentence in alarms(report):
        console.say(sentence)
    if report.get("bottleneck"):
        tell_bottleneck(run)


def cost_row(name: str, part: Json) -> list[str]:
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

"""The card of a model: Markdown, with the front matter that the Hugging Face hub reads.

A pure function from plain values to text, figures and intervals from the run's report.json.
"""

import json
from collections.abc import Sequence

from coa.json_object import Json, JsonView
from coa.reporting.markdown import LICENSE, LICENSE_NOTE, TAGS, code, flat, front, joined, number, table
from coa.tasks.samples import result_name

MEASURED = (("greedy", "greedy"), ("sampled", "pass_at_1"))
"""Names of the pass rates, and their keys in a report."""
GAINS = "; of gains, which are task by task, Newcombe's"


def model_card(
    name: str,
    report: JsonView,
    config: JsonView,
    agent: JsonView,
    *,
    base: str | None,
    data: Sequence[str],
) -> str:
    """The README.md of a model's folder.

    report: report.json; missing values are left out. config: the resolved recipe. agent: agent.json. base: the initial
    model of the training, None for one from scratch. data: the fine-tuning data, if not distilled in the same run.
    """
    evaluation = report.get("evaluation", {})
    parts = [
        front(_model_front(base)),
        f"# {name}",
        "An agent foundation model: one model that plays every role of a team of agents in one stream of tagged text "
        "(Chain-of-Agents, arXiv 2508.13167).",
        f"- base model: {f'`{base}`' if base else 'none, trained from scratch'}\n"
        f"- data: {', '.join(f'`{one}`' for one in data) or 'distilled in the same run'}",
        "## Training",
        table(("stage", "steps", "samples", "seconds"), _stages(report.get("stages", {}))),
        *_settings(config),
        *_evaluation(evaluation),
        _cost(report.get("cost", {})),
        "## How to run it",
        "The model writes a turn up to the end of a tool call or of its answer. Whoever runs it calls the tool, puts "
        "`<observation> RESULT</observation>` behind the turn and lets it write on, all in one assistant message. "
        + (
            "The prompt is the profile's instructions, then the question; "
            if agent.get("instructed")
            else "The prompt is the question alone; "
        )
        + "`agent.json` holds this and the limits of an episode, and `coa` reads it.",
        code("sh", "coa evaluate --model PATH_OF_THIS_FOLDER --tasks tasks.jsonl\nvllm serve PATH_OF_THIS_FOLDER"),
        code("python", _TRANSFORMERS),
        "`agent.json`:",
        code("json", json.dumps(agent, indent=2)),
        "## License",
        LICENSE_NOTE,
    ]
    return joined(parts)


_TRANSFORMERS = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_FOLDER")
model = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_FOLDER")
asked = [{"role": "user", "content": "PROMPT"}]
stops = ["</answer>", "</web_search>"]  # and the closing tag of each other tool that it has
prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
turn = model.generate(**prompt, max_new_tokens=512, stop_strings=stops, tokenizer=tokenizer)
print(tokenizer.decode(turn[0], skip_special_tokens=False))"""


def _model_front(base: str | None) -> Json:
    return {
        "license": LICENSE,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base} if base else {}),
        "tags": TAGS,
    }


def _stages(stages: JsonView) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, stage in stages.items():
        samples = stage.get("kept" if name == "distill" else "samples")
        rows.append((name, number(stage.get("steps")), number(samples), number(stage["seconds"])))
    return rows


def _settings(config: JsonView) -> list[str]:
    parts: list[str] = []
    for stage in ("sft", "rl"):
        if settings := config.get(stage):
            parts += [f"### `{stage}`", table(("setting", "value"), flat(settings))]
    return parts


def _evaluation(evaluation: JsonView) -> list[str]:
    parts = [
        (stage, family, part)
        for stage in ("base", "sft", "rl", "gain")
        if (found := evaluation.get(stage))
        for family, part in {"all": found, **found.get("families", {})}.items()
    ]
    modes = [(label, key) for label, key in MEASURED if any(part.get(key) for _, _, part in parts)]
    rows = [
        (
            stage,
            number(_tasks(part)),
            result_name(family, part),
            *(_interval(part.get(key), signed=stage == "gain") for _, key in modes),
        )
        for stage, family, part in parts
    ]
    if not rows:
        return []
    return [
        "## Evaluation",
        table(("stage", "tasks", "family", *(label for label, _ in modes)), rows),
        f"pass@1 with 95 % intervals (Wilson's{GAINS if 'gain' in evaluation else ''}). " + _shares(evaluation),
    ]


def _tasks(part: JsonView) -> int | None:
    return next((estimate["n"] for _, key in MEASURED if (estimate := part.get(key))), part.get("n"))


def _interval(estimate: JsonView | None, *, signed: bool) -> str:
    if estimate is None:
        return "-"
    mean, low, high = (f"{value:{'+' if signed else ''}.3f}" for value in (estimate["mean"], *estimate["ci95"]))
    return f"{mean} [{low}, {high}]"


def _shares(evaluation: JsonView) -> str:
    """Sentences about episodes that are not well formed; which episodes, if the report says so."""
    sentences: list[str] = []
    for stage in ("sft", "rl"):
        if found := evaluation.get(stage):
            counted = found.get("counted", {})
            of = " and ".join(f"{count} {mode}" for mode, count in counted.items() if count)
            what = f"{of} episodes" if of else "episodes"
            sentences.append(f"{stage}: {found['format_errors']:.2%} of the {what} are not well formed.")
    return " ".join(sentences)


def _cost(cost: JsonView) -> str:
    if not cost:
        return ""
    sides = (("team", cost["multi_agent"]), ("model", cost["afm"]))
    rows = [(who, number(side["tokens_per_success"]), number(side["n"])) for who, side in sides]
    saved = cost.get("token_reduction")
    sentence = "" if saved is None else f"\n\nThe model takes {saved:.1%} fewer tokens a success than the team."
    return table(("", "tokens a success", "attempts"), rows) + sentence

"""The cards of data and model, against what they should say of small inputs."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from coa.distill.dataset.card import data_card
from coa.distill.dataset.summary import Summary, TokenStatistics
from coa.reporting.model_card import model_card
from coa.usage import Usage
from jobs.stages.train import NOTHING_DISTILLED

SUMMARY = Summary(
    rows=1500,
    copies=1600,
    counts={
        "profile": {"mhqa": 1000, "web": 500},
        "family": {"hotpotqa": 1500},
        "team": {"planner": 1500},
        "source": {"team": 1400, "import:a|b": 100},
        "models": {'{"planner": "big", "searcher": "small"}': 1400, "{}": 100},
    },
    reflected=900,
    corrected=12,
    interactions=7.25,
    requests=6000,
    prompt_tokens=2_000_000,
    completion_tokens=300_000,
    unnamed=0,
    tokens=TokenStatistics(total=4_000_000, learnt=1_000_000, mean=2666.7, median=2500.0, p95=6000.0, longest=9000),
    bytes=123456,
    columns={"task_id": "string", "copies": "int32", "reflected": "bool", "token_ids": "list<element: int32>"},
)
DATA = """\
---
pretty_name: chains
license: other
task_categories:
- question-answering
- text-generation
tags:
- chain-of-agents
- agent
- tool-use
- distillation
size_categories:
- 1K<n<10K
configs:
- config_name: default
  data_files:
  - split: train
    path: train-*.parquet
dataset_info:
  features:
  - name: task_id
    dtype: string
  - name: copies
    dtype: int32
  - name: reflected
    dtype: bool
  - name: token_ids
    list: int32
  splits:
  - name: train
    num_bytes: 123456
    num_examples: 1500
---

# chains

Chains of agents, distilled: each row is the run of a team of agents on one question, rewritten as the one stream of \
tagged text that a single model is to write (Chain-of-Agents, arXiv 2508.13167). What tools returned stands between \
`<observation>` tags and is not to be learnt: `policy_mask` is false there.

1,500 rows, 1,600 with repetitions (`copies`); 900 reflect, 12 corrected themselves; 7.2 interactions \
of agents and tools on average.

## Rows

| profile | rows |
| --- | --- |
| mhqa | 1,000 |
| web | 500 |

| family | rows |
| --- | --- |
| hotpotqa | 1,500 |

| team | rows |
| --- | --- |
| planner | 1,500 |

| source | rows |
| --- | --- |
| team | 1,400 |
| import:a&#124;b | 100 |

## Tokens

| tokens | number |
| --- | --- |
| all | 4,000,000 |
| to be learnt | 1,000,000 (25%) |
| a row: mean | 2,666.7 |
| a row: median | 2,500 |
| a row: 95 % have at most | 6,000 |
| a row: longest | 9,000 |
| a row: trained on up to | 8,192 |

Prompts begin with the profile's instructions.

## What was left out

Of 4,000 runs, 2,500 were dropped.

| reason | runs |
| --- | --- |
| wrong answer | 2,400 |
| repeated tool input | 100 |

Questions that are in an evaluation: 7 runs, left out.

## Filter

| setting | value |
| --- | --- |
| `min_interactions` | 5 |
| `judge.url` | null |

## Teachers

- 1,400 rows: planner: `big`, searcher: `small`
- 100 rows: no language model

All runs, kept or not, took 20,000 requests of language models: 7,000,000 tokens sent and 900,000 received. Of those, \
the kept rows took 6,000 requests, 2,000,000 and 300,000 tokens.

## License

**To be filled in by whoever publishes this.** What may be done with it depends on the licence of the tasks, on the \
terms of the models that wrote or were trained, and on those of what tools returned.

## How to load it

```python
from datasets import load_dataset

rows = load_dataset("PATH_OF_THIS_FOLDER", split="train")
```

`coa export` writes it for TRL and LLaMA-Factory.
"""


def make_data_card(summary: Summary = SUMMARY, **changed: Any) -> str:
    told: dict[str, Any] = {
        "transcripts": 4000,
        "dropped": {"wrong answer": 2400, "repeated tool input": 100},
        "filters": {"min_interactions": 5, "judge": {"url": None}},
        "contaminated": 7,
        "cost": Usage(20_000, 7_000_000, 900_000),
        "instructed": True,
        "limit": 8192,
    }
    return data_card("chains", summary, **(told | changed))


def test_the_card_of_a_data_set() -> None:
    assert make_data_card() == DATA


def test_what_nobody_did_is_told_as_such() -> None:
    card = make_data_card(replace(SUMMARY, tokens=None), filters={}, dropped={}, instructed=False)
    assert "## Tokens\n\nThe rows have no tokens yet.\n\n## What was left out\n\nQuestions that are in an" in card
    assert "in an evaluation: 7 rows, left out.\n\n## Teachers" in card
    assert "0 were dropped.\n\nQuestions" in make_data_card(dropped={})
    assert "Prompts are the question alone." in make_data_card(instructed=False)


@pytest.mark.parametrize(("rows", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (10**6, "1M<n<10M")])
def test_the_size_is_told_in_the_hubs_classes(rows: int, size: str) -> None:
    front = yaml.safe_load(make_data_card(replace(SUMMARY, rows=rows)).split("---")[1])
    assert front["size_categories"] == [size]


def estimate(mean: float, low: float, high: float) -> dict[str, Any]:
    return {"mean": mean, "ci95": [low, high], "n": 600}


REPORT = {
    "stages": {
        "distill": {"transcripts": 4000, "kept": 1500, "seconds": 68.6},
        "sft": {"steps": 700, "samples": 44800, "seconds": 301.7},
        "rl": {"steps": 36, "samples": 8984, "seconds": 144.3},
    },
    "evaluation": {
        "sft": {
            "greedy": estimate(0.49333, 0.45349, 0.53325),
            "pass_at_1": estimate(0.45916, 0.41967, 0.49917),
            "families": {"web": {"greedy": {**estimate(0.585, 0.5157, 0.6510), "n": 200}, "pass_at_1": None}},
            "format_errors": 0.00166,
            "counted": {"sampled": 2400, "greedy": 0},
        },
        "rl": {
            "greedy": estimate(1.0, 0.99363, 1.0),
            "pass_at_1": None,
            "families": {},
            "format_errors": 0.0025,
            "counted": {"sampled": 2400},
        },
        "tasks_sha256": "1b99",
    },
    "cost": {
        "multi_agent": {"tokens_per_success": 4372.9, "n": 600},
        "afm": {"tokens_per_success": 156.5, "n": 2400},
        "token_reduction": 0.9642,
    },
}
CONFIG = {
    "seed": 3,
    "sft": {"steps": 700, "learner": {"optimizer": {"lr": 0.003}, "ranks": 2}},
    "rl": {"group": 8, "window": {"max_staleness": 2}},
}
AGENT = {"instructed": True, "limits": {"max_turns": 6}}
MODEL = """\
---
license: other
library_name: transformers
pipeline_tag: text-generation
base_model: Qwen/Qwen2.5-7B
tags:
- chain-of-agents
- agent
- tool-use
---

# afm

An agent foundation model: one model that plays every role of a team of agents in one stream of tagged text \
(Chain-of-Agents, arXiv 2508.13167).

- base model: `Qwen/Qwen2.5-7B`
- data: `me/chains`

## Training

| stage | steps | samples | seconds |
| --- | --- | --- | --- |
| distill | - | 1,500 | 69 |
| sft | 700 | 44,800 | 302 |
| rl | 36 | 8,984 | 144 |

### `sft`

| setting | value |
| --- | --- |
| `steps` | 700 |
| `learner.optimizer.lr` | 0.003 |
| `learner.ranks` | 2 |

### `rl`

| setting | value |
| --- | --- |
| `group` | 8 |
| `window.max_staleness` | 2 |

## Evaluation

| stage | tasks | family | greedy | sampled |
| --- | --- | --- | --- | --- |
| sft | 600 | all | 0.493 [0.453, 0.533] | 0.459 [0.420, 0.499] |
| sft | 200 | web | 0.585 [0.516, 0.651] | - |
| rl | 600 | all | 1.000 [0.994, 1.000] | - |

pass@1 with 95 % intervals (Wilson's). sft: 0.17% of the 2400 sampled episodes are not well formed. rl: 0.25% of the \
2400 sampled episodes are not well formed.

|  | tokens a success | attempts |
| --- | --- | --- |
| team | 4,373 | 600 |
| model | 156 | 2,400 |

The model takes 96.4% fewer tokens a success than the team.

## How to run it

The model writes a turn up to the end of a tool call or of its answer. Whoever runs it calls the tool, puts \
`<observation> RESULT</observation>` behind the turn and lets it write on, all in one assistant message. The prompt is \
the profile's instructions, then the question; `agent.json` holds this and the limits of an episode, and `coa` reads it.

```sh
coa evaluate --model PATH_OF_THIS_FOLDER --tasks tasks.jsonl
vllm serve PATH_OF_THIS_FOLDER
```

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_FOLDER")
model = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_FOLDER")
asked = [{"role": "user", "content": "PROMPT"}]
stops = ["</answer>", "</web_search>"]  # and the closing tag of each other tool that it has
prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
turn = model.generate(**prompt, max_new_tokens=512, stop_strings=stops, tokenizer=tokenizer)
print(tokenizer.decode(turn[0], skip_special_tokens=False))
```

`agent.json`:

```json
{
  "instructed": true,
  "limits": {
    "max_turns": 6
  }
}
```

## License

**To be filled in by whoever publishes this.** What may be done with it depends on the licence of the tasks, on the \
terms of the models that wrote or were trained, and on those of what tools returned.
"""


def test_the_card_of_a_model() -> None:
    assert model_card("afm", REPORT, CONFIG, AGENT, base="Qwen/Qwen2.5-7B", data=["me/chains"]) == MODEL


def test_a_model_from_scratch_has_no_base_and_its_own_data() -> None:
    card = model_card("afm", REPORT, CONFIG, {"instructed": False}, base=None, data=())
    front = yaml.safe_load(card.split("---")[1])
    assert set(front) == {"license", "library_name", "pipeline_tag", "tags"}
    assert "- base model: none, trained from scratch\n- data: distilled in the same run\n" in card
    assert "The prompt is the question alone; `agent.json`" in card


def test_a_model_fine_tuned_on_brought_data_names_it() -> None:
    report = {"stages": {"distill": NOTHING_DISTILLED}}
    card = model_card("afm", report, CONFIG, AGENT, base=None, data=("a.json", "runs/b/data"))
    assert "- data: `a.json`, `runs/b/data`\n" in card
    assert "| distill | - | 0 | 0 |" in card


def test_what_a_report_does_not_tell_is_left_out() -> None:
    card = model_card("afm", {"stages": {"sft": REPORT["stages"]["sft"]}}, {"sft": {}}, AGENT, base=None, data=())
    assert "| sft | 700 | 44,800 | 302 |" in card
    assert not [part for part in ("## Evaluation", "### `", "fewer tokens", "not well formed") if part in card]


def test_the_usage_in_the_model_card_opens_a_models_folder(tmp_path: Any) -> None:
    from tests.support.tiny import make_model

    folder = make_model(tmp_path / "model")
    card = model_card("afm", REPORT, CONFIG, AGENT, base=None, data=())
    usage = card.split("```python\n")[1].split("```")[0].replace("PATH_OF_THIS_FOLDER", str(folder))
    exec(usage.replace("max_new_tokens=512", "max_new_tokens=2").replace("print(", "str("), {})
    assert json.loads(card.split("```json\n")[1].split("```")[0]) == AGENT


def test_rows_that_nobody_named_a_model_of_are_not_told_to_have_none() -> None:
    text = make_data_card(replace(SUMMARY, unnamed=60))
    assert "- 60 rows: a language model that their logs do not name\n- 40 rows: no language model\n" in text

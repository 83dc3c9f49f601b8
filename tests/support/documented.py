"""Commands that the documents show: where each is run, or what keeps a test from running it."""

import re
from collections.abc import Sequence

HERE: Sequence[str] = (
    r"coa ask --model runs/demo/model .*",
    r"coa doctor .*",
    r"coa evaluate --benchmarks",
    r"coa evaluate --model runs/demo/model --best-of 3",
    r"coa evaluate --model runs/demo/model --tasks questions.jsonl (--rows 200|agent.grammar=enforce)",
    r"coa export .*",
    r"coa keys --file keys.jsonl (add|list).*",
    r"coa plan .*",
    r"coa recipe .*",
    r"coa show runs/demo/data",
    r"coa submit --kuberay (cluster|job|service).yaml .*",
    r"coa train --recipe (tiny|web_32b) --dry-run",
    r"coa verify runs/demo( --replay)?",
)
"""Run as they stand in a folder that holds a finished run, by tests/jobs/test_documented.py."""
ELSEWHERE = {
    r"coa distill --recipe teachers.yaml .*": "tests/jobs/teachers/test_teams_served.py",
    r"coa distill --recipe tiny": "tests/jobs/test_train.py",
    r"coa (train|distill) --recipe tiny distill.transcripts=imported .*": "tests/coa/distill/sources/test_imports.py",
    r"coa (distill|sft|evaluate|ask|train) (?!.*agent\.program).*own_tasks.*": "tests/jobs/test_own_tasks.py",
    r"coa train .* agent\.program\.function=.*": "tests/jobs/test_programs.py",
    r"coa evaluate .* --best-of 8 tools.judge.url=.*": "tests/coa/grading/test_chooser.py",
    r"coa evaluate .* --tasks math500=math500.parquet": "tests/coa/tasks/test_published.py",
    r"coa (evaluate|serve|train) .* agent\.formats\.web=.*": "tests/coa/distill/sources/test_published.py",
    r"coa import .*": "tests/coa/distill/sources/test_imports.py",
    r"coa keys --file keys.jsonl revoke .*": "tests/coa/serving/test_keys.py",
    r"coa record .*": "tests/coa/distill/sources/test_recorder.py",
    r"coa select .*": "tests/jobs/stages/test_select.py",
    r"coa serve --follow .*": "tests/jobs/test_follow.py",
    r"coa serve --model runs/demo/model tools.mcp.*": "tests/coa/tools/mcp/test_mcp_tools.py",
    r"coa serve --model runs/demo/model( serving.*)?": "tests/jobs/test_serve.py",
    r'coa serve --model runs/demo/model "serving.cors_origins.*': "tests/cluster/serving/test_front.py",
    r"coa show imported .*": "tests/jobs/test_show.py",
    r"coa submit --address .*": "tests/jobs/test_submit_real.py",
    r"coa (tasks|train) --recipe documents .*": "tests/jobs/stages/test_tasks.py",
    r"coa train --recipe mine.yaml .*": "tests/jobs/test_train.py",
    r"coa train --recipe tiny( run_dir=runs/dapo)?": "tests/jobs/test_train.py",
    r"coa train --recipe tiny run_dir=runs/\w+ rl.algorithm=.*": "tests/actors/learner/test_objectives.py",
    r"coa train --recipe tiny tools.mcp.*": "tests/coa/tools/mcp/test_mcp_tools.py",
    r"coa verify runs/demo --replay 20:25": "tests/jobs/stages/reinforcement/test_replay.py",
    r"make (check|demo|test)": ".ci/run",
}
"""What a command does is run by that file, with settings or data of its own."""
NEEDS = {
    r"coa evaluate .* --tasks aime24 .*": "the network: a benchmark is fetched",
    r"coa sft --recipe web_7b .*": "GPUs",
    r"make nightly.*": "hours: it is all tests",
    r"make real": "the network: a model is fetched",
    r"coa train --recipe (mhqa_7b|web_32b) (rl|placement)\..*": "GPUs",
}


def homes(command: str) -> list[str]:
    """The patterns of all three tables that a command matches."""
    every = (*HERE, *ELSEWHERE, *NEEDS)
    return [pattern for pattern in every if re.fullmatch(pattern, command)]


def runs_here(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in HERE)

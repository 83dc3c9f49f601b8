"""What an evaluation attempts, and what it makes of the episodes."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.rollout.config import SamplingConfig
from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.agent.profiles import profile
from coa.agent.records import EpisodeRecord
from coa.config import load
from coa.errors import ToolDown
from coa.grading.toolset import ToolsConfig, searches_left_open
from coa.reporting.benchmarks import results, show
from coa.reporting.statistics import mean_at_k, wilson
from coa.tasks.published.benchmark import GREEDY, OTHERWISE, Decoding, decoding_of
from coa.tasks.published.table import BENCHMARKS
from coa.tasks.worlds import NoWorld, Settings, find_world
from coa.tools.search.wiki import WikiConfig
from coa.types import Status, Task
from jobs.evaluation.attempts import attempt_all, both, by_protocol, decoding, measure, write_evaluation
from jobs.evaluation.journal import Journal, evaluation_of
from jobs.recipe.schema import EvaluationConfig, Recipe
from jobs.run.console import Console, Stage
from jobs.run.run_dir import RunDir
from jobs.run.trajectories import write_episodes
from jobs.stages.evaluate import advice_on_form, as_published, evaluate_stage, instructed, rows_of
from jobs.stages.services import caution_about
from tests.support.endpoints import EndpointProcess
from tests.support.fakes import played, text_codec
from tests.support.tiny import make_model

TINY = find_world("tiny")(find_world("tiny").settings_type())


def episode(correct: bool, *, sample: int = 0, answer: str = "x", status: Status = Status.ANSWERED) -> EpisodeRecord:
    return played(correct, sample=sample, status=status, answer=answer if status is Status.ANSWERED else "")


def task(number: int, family: str = "aime24", *, profile: str = "math", grader: str = "math") -> Task:
    return Task(id=f"{family}-{number}", question="?", answers=("1",), profile=profile, family=family, grader=grader)


def outcomes(rights: str) -> tuple[EpisodeRecord, ...]:
    """ "10-": right, wrong, and cut off before an answer."""
    return tuple(
        episode(one == "1", sample=i, answer=one, status=Status.TRUNCATED if one == "-" else Status.ANSWERED)
        for i, one in enumerate(rights)
    )


def test_a_model_before_its_training_gets_instructions_and_room_for_them() -> None:
    agent = AgentConfig(instructed=False, limits=Limits(max_tokens=512))
    told = instructed(agent, text_codec(), [task(0), task(1, profile="code")])
    lengths = [
        len(text_codec().prompt(profile(name), "Who ?", instructed=True))
        - len(text_codec().prompt(profile(name), "Who ?", instructed=False))
        for name in ("math", "code")
    ]
    assert told == replace(agent, instructed=True, limits=Limits(max_tokens=512 + max(lengths)))
    assert min(lengths) > 100
    assert instructed(told, text_codec(), [task(0)]) is told


# --- how tasks are attempted ------------------------------------------------------------------------------------------


def test_what_is_set_wins_over_the_protocol_and_the_protocol_over_the_default() -> None:
    unset: dict[str, Any] = {"samples": None, "temperature": None, "top_p": None, "top_k": None, "max_turns": None}
    aime, nq, gaia = (BENCHMARKS[name] for name in ("aime24", "nq", "gaia"))
    assert decoding_of(None, **unset) == OTHERWISE == Decoding(4, 1.0, 1.0)
    assert decoding_of(gaia, **unset) == Decoding(3, 1.0, 0.9, 20, 36)
    assert decoding_of(aime, **unset | {"samples": 4}) == Decoding(4, 0.6, 1.0, 0, 13)
    assert decoding_of(gaia, **unset | {"top_p": 1.0, "temperature": 0.5}) == Decoding(3, 0.5, 1.0, 20, 36)
    assert decoding_of(gaia, **unset | {"top_k": 0, "max_turns": 5}) == Decoding(3, 1.0, 0.9, 0, 5)
    assert decoding_of(nq, **unset | {"temperature": 1.0, "samples": 8}) == Decoding(8, 1.0, 1.0, 0, 8)
    assert decoding_of(nq, **unset | {"samples": 8}) == Decoding(1, 0.0, 1.0, 0, 8), "greedy decoding has one outcome"


def test_a_benchmarks_task_is_attempted_by_protocol_and_another_in_both_ways() -> None:
    config = EvaluationConfig(samples=2)
    assert by_protocol(config, task(0)) == (Decoding(2, 0.6, max_turns=13),)
    assert by_protocol(config, task(0, "gaia/level3")) == (Decoding(2, 1.0, 0.9, 20, 36),)
    assert by_protocol(config, task(0, "nq")) == (replace(GREEDY, max_turns=8),)
    assert by_protocol(config, task(0, "calc")) == (GREEDY, Decoding(2, 1.0)) == both(config)
    assert both(EvaluationConfig(temperature=0.0)) == (GREEDY,)
    limited = EvaluationConfig(samples=2, max_turns=3)
    assert both(limited) == (replace(GREEDY, max_turns=3), Decoding(2, 1.0, max_turns=3))


class ScriptedPool:
    """Answers with as many right episodes as there are samples; tells what it was asked."""

    def __init__(self, down: str | None = None) -> None:
        self.asked: list[tuple[str, int, float, float, int, int | None]] = []
        self._down = down

    async def evaluate(
        self, task: Task, samples: Sequence[int], how: SamplingConfig, max_turns: int | None = None
    ) -> tuple[EpisodeRecord, ...]:
        self.asked.append((task.id, len(samples), how.temperature, how.top_p, how.top_k, max_turns))
        if task.id == self._down:
            raise ToolDown("the judge is down")
        return tuple(episode(True, sample=sample) for sample in samples)


def test_every_task_is_attempted_as_planned(tmp_path: Path) -> None:
    tasks = [task(0), task(0, "gaia/level1"), task(0, "calc")]
    plan = {one.id: by_protocol(EvaluationConfig(), one) for one in tasks}
    pool, stage = ScriptedPool(), Stage("evaluate", 4)
    with Journal(tmp_path / "attempts.jsonl", "e") as journal:
        greedy, sampled = asyncio.run(attempt_all(pool, tasks, plan, stage, journal))
    assert sorted(pool.asked) == [
        ("aime24-0", 16, 0.6, 1.0, 0, 13),
        ("calc-0", 1, 0.0, 1.0, 0, None),
        ("calc-0", 4, 1.0, 1.0, 0, None),
        ("gaia/level1-0", 3, 1.0, 0.9, 20, 36),
    ]
    assert {name: len(found) for name, found in greedy.items()} == {"calc-0": 1}
    assert {name: len(found) for name, found in sampled.items()} == {"aime24-0": 16, "calc-0": 4, "gaia/level1-0": 3}
    assert stage.done == 4


def test_a_judge_that_stays_down_ends_the_evaluation_which_goes_on_with_what_is_left(tmp_path: Path) -> None:
    tasks = [task(0), task(1)]
    plan = {one.id: (GREEDY, Decoding(2, 1.0)) for one in tasks}
    path, stage = tmp_path / "attempts.jsonl", Stage("evaluate", 4)
    with pytest.raises(ExceptionGroup) as caught, Journal(path, "e") as journal:
        asyncio.run(attempt_all(ScriptedPool(down="aime24-1"), tasks, plan, stage, journal))
    assert {type(error) for error in caught.value.exceptions} == {ToolDown}
    with path.open("a") as file:
        file.write('{"task": "aime24-1", "mode": "gre')  # cut off
    pool = ScriptedPool()
    with Journal(path, "e") as journal:
        greedy, sampled = asyncio.run(attempt_all(pool, tasks, plan, stage, journal))
    assert pool.asked == [("aime24-1", 1, 0.0, 1.0, 0, None), ("aime24-1", 2, 1.0, 1.0, 0, None)]
    assert greedy == {one.id: (episode(True),) for one in tasks}
    assert sampled == {one.id: (episode(True), episode(True, sample=1)) for one in tasks}
    assert not path.exists(), "a finished evaluation starts anew"


def test_a_journal_holds_one_evaluation(tmp_path: Path) -> None:
    one = EpisodeRecord(**asdict(episode(False, status=Status.MALFORMED)) | {"repairs": ("x",), "tool_calls": ("y",)})
    for evaluation, before in (("e", {}), ("e", {"t": (one,)}), ("other", {})):
        journal = Journal(tmp_path / "j.jsonl", evaluation)
        assert journal.sampled == before
        assert journal.notice.endswith("2 attempts of another model, other tasks or other settings are discarded") == (
            evaluation == "other"
        )
        assert all(type(kept.status) is Status for kept in journal.sampled.get("t", ()))
        journal.add("t", (one,), greedy=False)
        journal.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def test_an_evaluation_is_the_same_for_the_same_model_tasks_and_settings(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    tasks, recipe = [task(0), task(1)], Recipe()
    plan = {one.id: (GREEDY,) for one in tasks}
    first = evaluation_of(tmp_path, tasks, plan, recipe)
    patient = replace(recipe, run_dir="elsewhere", evaluation=EvaluationConfig(patience_s=1.0))
    assert evaluation_of(tmp_path, tasks, plan, patient) == first
    free = ("pool.starts=9", "wandb.project=x", "rl.evaluate_every=3", "tools.judge.asks=2", "distill.runs=7")
    assert evaluation_of(tmp_path, tasks, plan, load(Recipe, None, free)) == first
    others = {
        evaluation_of(tmp_path, tasks[:1], plan, recipe),
        evaluation_of(tmp_path, [tasks[0], replace(tasks[1], answers=("2",))], plan, recipe),
        evaluation_of(tmp_path, tasks, plan | {tasks[0].id: (Decoding(2, 1.0),)}, recipe),
        evaluation_of(tmp_path, tasks, plan, replace(recipe, seed=1)),
    }
    weights.write_bytes(b"12")
    assert len(others | {first, evaluation_of(tmp_path, tasks, plan, recipe)}) == 6


# --- what comes of it -------------------------------------------------------------------------------------------------


def test_a_benchmarks_result_counts_every_task_and_what_was_cut_off_is_wrong() -> None:
    tasks = [task(number) for number in range(30)]
    rights = ["1" * 16] * 10 + ["1" * 8 + "-" * 8] * 5 + ["-" * 16] * 5 + ["0" * 16] * 10
    episodes = {one.id: outcomes(right) for one, right in zip(tasks, rights, strict=True)}
    found = results(tasks, episodes, partial(decoding, EvaluationConfig()), first_rows=False)["aime24"]
    assert (found["metric"], found["n"], found["rows"]) == ("avg@16", 30, 30)
    assert found["mean"] == pytest.approx(12.5 / 30)
    assert found["ci95"] == mean_at_k([[int(right == "1") for right in samples] for samples in rights])["ci95"]
    assert found["pass_at_k"].keys() == {"2", "4", "8", "16"}
    assert found["pass_at_k"]["16"]["mean"] == 0.5
    assert found["majority_at_k"]["mean"] == 0.5, "no answer is no vote"
    assert found["statuses"] == {"answered": 160 + 40 + 160, "truncated": 40 + 80}
    assert found["decoding"] == {"samples": 16, "temperature": 0.6, "top_p": 1.0, "top_k": 0, "max_turns": 13}
    assert found["warnings"] == []


def test_the_verdict_of_the_published_grader_stands_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def verdicts(answers: Sequence[str], one: Task) -> list[int]:
        return [int(answer == "1" and one.id == "aime24-0") for answer in answers]

    monkeypatch.setattr("jobs.stages.evaluate.published_verdicts", verdicts)
    tasks = [task(0), task(1), task(2, "nq", profile="mhqa", grader="exact_first"), task(3, "calc")]
    episodes = {one.id: outcomes("10") for one in tasks}
    published = asyncio.run(as_published(tasks, episodes))
    assert published == {"aime24-0": [1, 0], "aime24-1": [0, 0]}
    found = results(
        tasks, episodes, partial(decoding, EvaluationConfig(samples=2)), first_rows=True, published=published
    )
    assert (found["aime24"]["mean"], found["aime24"]["as_published"]["mean"]) == (0.5, 0.25)
    assert "as_published" not in found["nq"]
    labels = [row[1] for row in rows_of({"aime24": found["aime24"]})]
    assert labels == ["avg@2", "pass@2", "by plain Math-Verify", "majority@2"]


def test_each_benchmark_in_the_tasks_has_a_result_and_each_level_a_part() -> None:
    web = partial(task, profile="web", grader="judge")
    tasks = [web(0, "gaia/level1"), web(1, "gaia/level2"), web(2, "gaia/level2"), task(3, "calc")]
    episodes = dict(zip((one.id for one in tasks), map(outcomes, ("111", "100", "000", "1")), strict=True))
    found = results(tasks, episodes, partial(decoding, EvaluationConfig()), first_rows=False)
    assert found.keys() == {"gaia"}
    assert (found["gaia"]["metric"], found["gaia"]["n"]) == ("judged pass@1", 3)
    assert found["gaia"]["mean"] == pytest.approx(4 / 9)
    assert found["gaia"]["pass_at_k"]["3"]["mean"] == pytest.approx(2 / 3)
    parts = {name: (part["mean"], part["n"]) for name, part in found["gaia"]["parts"].items()}
    assert parts == {"level1": (1.0, 1), "level2": (pytest.approx(1 / 6), 2)}


def warnings(tasks: Sequence[Task], *, config: EvaluationConfig | None = None, first_rows: bool = False) -> list[str]:
    config = config or EvaluationConfig()
    episodes = {one.id: outcomes("1" * by_protocol(config, one)[-1].samples) for one in tasks}
    [found] = results(tasks, episodes, partial(decoding, config), first_rows=first_rows).values()
    return found["warnings"]


def test_what_keeps_a_result_from_being_comparable_is_told() -> None:
    whole = [task(number) for number in range(30)]
    assert warnings(whole) == []
    assert warnings(whole, first_rows=True) == [], "all of them are the first"
    assert warnings(whole[:28]) == ["28 rows, where 30 are known"]
    assert warnings(whole[:5], first_rows=True) == ["only the first 5 rows of 30"]
    assert warnings(whole, config=EvaluationConfig(samples=4)) == [
        "4 x T 0.6, 13 turns as configured; the protocol has 16 x T 0.6, 13 turns"
    ]
    copy = [task(number, "olympiadbench") for number in range(675)]
    assert warnings(copy) == ["675 rows, as copies in use have; published results are of 674"]
    samples = [task(number, "livecodebench_v5/sample_tests", profile="code", grader="tests") for number in range(167)]
    passes = "sample tests only, which a table of the samples in the question passes; the hub's data set has all tests"
    assert warnings(samples) == [passes]
    own = [task(number, "bamboogle", profile="web", grader="f1") for number in range(125)]
    assert warnings(own) == [
        "grader f1, as rows or recipe say; the protocol has exact_first",
        "profile web, as rows or recipe say; the protocol has mhqa",
    ]


def test_searches_of_made_up_pages_are_told_where_a_benchmark_used_them() -> None:
    tasks = [task(0, "nq", profile="mhqa", grader="exact_first"), task(0)]
    episodes = {"nq-0": outcomes("1"), "aime24-0": outcomes("1" * 16)}
    assert searches_left_open(ToolsConfig(wiki=WikiConfig(corpus="x"))) == ("web_search",)
    tools = searches_left_open(ToolsConfig())
    found = results(tasks, episodes, partial(decoding, EvaluationConfig()), first_rows=True, made_up=tools)
    assert found["nq"]["warnings"][1:] == ["wiki_search searched made-up pages: set tools.wiki or tools.search"]
    assert found["aime24"]["warnings"] == ["only the first 1 rows of 30"]


def test_tasks_that_are_given_apart_are_warned_of_a_worlds_made_up_pages() -> None:
    assert caution_about(ToolsConfig(), TINY) == "", "the world's own tasks are about its pages"
    told = caution_about(ToolsConfig(), TINY, {"mhqa"})
    assert told == "caution: wiki_search will find the made-up pages of the world tiny; see `tools`"
    assert caution_about(ToolsConfig(wiki=WikiConfig(corpus="x")), TINY, {"mhqa"}) == ""


def test_a_stage_is_measured_by_greedy_attempts_alone_where_the_temperature_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n} ?", "answer": "x"}) + "\n" for n in range(10)))
    settings = [f"tasks.path={path}", "tasks.held_out=0.5", f"run_dir={tmp_path / 'run'}", "evaluation.temperature=0"]
    run = RunDir(load(Recipe, None, settings), Console(io.StringIO(), io.StringIO()))
    run.prepare()
    pool: Any = ScriptedPool()
    pool.logprobs = None
    model = make_model(tmp_path / "model")
    found = asyncio.run(evaluate_stage(run, pool, "sft", model))
    held_out = len(run.evaluation_tasks())
    assert "pass_at_1" not in found, "nothing was sampled"
    assert found["counted"] == {"sampled": 0, "greedy": held_out}
    assert (found["cost"]["all"]["n"], len(pool.asked)) == (held_out, held_out)


def majority(family: str, grader: str, answers: Sequence[str], rights: str) -> float:
    one = task(0, family, grader=grader)
    samples = tuple(
        episode(right == "1", sample=i, answer=answer)
        for i, (answer, right) in enumerate(zip(answers, rights, strict=True))
    )
    config = EvaluationConfig(samples=len(samples), temperature=1.0)
    return results([one], {one.id: samples}, partial(decoding, config), first_rows=False)[family]["majority_at_k"][
        "mean"
    ]


def test_answers_that_differ_are_different_votes_and_equal_ones_are_one() -> None:
    mathematics = [r"\boxed{12}", "1/2", "(1, 2)", r"So it is \boxed{7}.", "$7$"]
    assert majority("aime24", "math", mathematics, "00011") == 1.0
    assert majority("aime24", "math", ["1.5", "15", r"\text{East}", "east"], "0011") == 1.0
    assert majority("aime24", "math", ["", "", "7"], "001") == 1.0
    assert majority("aime24", "math", ["3", "3", "1/2", "0.5", r"\frac{2}{4}"], "00111") == 1.0
    assert majority("nq", "exact_first", ["Lind", "The Berg", "berg."], "011") == 1.0


def test_programs_have_no_vote() -> None:
    one = task(0, "codecontests", profile="code", grader="tests")
    config = EvaluationConfig(samples=2)
    found = results([one], {one.id: outcomes("11")}, partial(decoding, config), first_rows=False)["codecontests"]
    assert "majority_at_k" not in found
    assert found["pass_at_k"].keys() == {"2"}


def test_decoding_is_shown_in_few_words() -> None:
    told = [show(one) for one in (Decoding(16, 0.6), Decoding(3, 1.0, 0.9, 20, 36), GREEDY)]
    assert told == ["16 x T 0.6", "3 x T 1, top-p 0.9, top-k 20, 36 turns", "greedy"]


def test_rates_of_all_tasks_and_of_families() -> None:
    tasks = [task(0, "calc"), task(1, "nq")]
    greedy = {"calc-0": outcomes("0"), "nq-1": outcomes("1")}
    found = measure(tasks, greedy, {"calc-0": outcomes("11-0")}, TINY)
    assert found["greedy"] == {"mean": 0.5, "ci95": list(wilson(0.5, 2)), "n": 2}
    assert "pass_at_1" not in found, "one of the tasks was not sampled"
    assert found["families"]["calc"]["pass_at_1"]["mean"] == 0.5
    assert found["families"]["nq"].keys() == {"n", "greedy"}
    assert found["counted"] == {"sampled": 4, "greedy": 1}
    assert found["statuses"] == {"answered": 4, "truncated": 1}
    assert found["strategies"].keys() == {"calc", "nq"}, "what the world measures is there besides"
    assert "greedy" not in measure(tasks[:1], {}, {"calc-0": outcomes("1")}, NoWorld(Settings()))


def test_an_evaluation_with_more_than_half_of_its_episodes_malformed_names_the_setting_that_helps() -> None:
    tasks = [task(0), task(1, profile="code")]
    lenient, enforced = AgentConfig(), AgentConfig(grammar=Grammar.enforce)
    assert advice_on_form(0.5, tasks, lenient) == ""
    advice = advice_on_form(0.51, tasks, lenient)
    assert advice.startswith("51% of the episodes are malformed, ")
    assert "agent.grammar=enforce allows only the tags of the profile (code, math)" in advice
    assert "agent.limits.max_tag_tokens" in advice
    advice = advice_on_form(1.0, tasks, enforced)
    assert "agent.grammar=enforce" not in advice
    assert "a smaller agent.limits.max_tag_tokens" in advice


def test_episodes_are_written_without_a_programs_tests(tmp_path: Path) -> None:
    tests = json.dumps({"stdin": [{"input": "1", "output": "2"}]})
    program = Task(id="p", question="?", answers=(tests,), profile="code", family="codecontests", grader="tests")
    write_episodes(tmp_path / "t.parquet", [(program, 0, outcomes("1")[0])])
    assert [row["answers"] for row in pq.read_table(tmp_path / "t.parquet").to_pylist()] == [[]]
    write_evaluation(tmp_path / "e.parquet", [program, task(0)], {"p": outcomes("1")}, {"aime24-0": outcomes("01")})
    rows = pq.read_table(tmp_path / "e.parquet").to_pylist()
    assert [(row["task_id"], row["group"], row["sample"], row["answers"]) for row in rows] == [
        ("p", "greedy", 0, []),
        ("aime24-0", "sampled", 0, ["1"]),
        ("aime24-0", "sampled", 1, ["1"]),
    ]


@pytest.mark.slow
def test_a_model_is_measured_on_a_benchmark_by_the_command(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", max_positions=256)
    rows = tmp_path / "sums.jsonl"
    rows.write_text("".join(f'{{"problem": "{n} + 1 ?", "answer": "{n + 1}"}}\n' for n in range(5)))
    words = ["evaluate", f"--model={model}", f"--tasks=aime24={rows}", "--rows=3", f"--out={tmp_path / 'out'}"]
    limits = ["agent.instructed=false", "agent.limits.max_turn_tokens=16", "agent.limits.max_tokens=128"]
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words, *limits, "evaluation.samples=2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "avg@2" in done.stdout
    assert "aime24: only the first 3 rows of 30\n" in done.stdout
    assert "of the episodes are malformed" in done.stdout.replace("\n", " "), "it has random weights"
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["benchmarks"]["aime24"]["n"] == found["pass_at_1"]["n"] == 3
    assert sum(found["statuses"].values()) == 6
    assert len(pq.read_table(tmp_path / "out" / "episodes.parquet")) == 6


def chooses_the_second(messages: Sequence[Any], seed: int | None) -> str:
    """What the judge's model says in a process of its own."""
    return '{"rationale": "r", "choice": 2}'


@pytest.mark.slow
def test_ways_to_choose_among_attempts_are_compared_by_the_command(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", max_positions=256)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"question": "{n} boxes ?", "answer": "cups"}}\n' for n in range(12)))
    words = ["evaluate", f"--model={model}", f"--tasks={rows}", "--best-of=3", f"--out={tmp_path / 'out'}"]
    limits = ["agent.instructed=false", "agent.limits.max_turn_tokens=16", "agent.limits.max_tokens=128"]
    form = ["agent.grammar=enforce", "agent.limits.max_tag_tokens=4", "tasks.profile=direct", "tasks.grader=exact"]
    form.append("tools.judge.model=m")
    with EndpointProcess("--reply", f"{__name__}:chooses_the_second") as judge:
        done = subprocess.run(
            [sys.executable, "-m", "jobs.cli", *words, *limits, *form, f"tools.judge.url={judge.url}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.replace(str(tmp_path), "runs").splitlines())) <= 80
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    names = ["greedy", "pass@1", "best of 3 majority", "best of 3 judge", "pass@2", "pass@3"]
    assert [way["name"] for way in found["test_time"]["all"]] == names
    judged = found["test_time"]["all"][3]
    assert judged["rate"]["n"] == 12
    assert judged["selector_tokens_per_task"] > 0, "its answers are noise, and differ"
    assert found["tools"]["chooser"]["calls"] <= 12

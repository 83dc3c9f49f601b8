"""The table of published benchmarks: those of the paper (arXiv 2508.13167), and those that extensions register.

Decoding is the paper's: mathematics and programs at temperature 0.6 (its 32B models; 0.8 for 7B) with up to 12 calls,
the web at 1.0 with top-p 0.9 and 36 turns, open questions greedily with 8 turns (its scripts). The table holds no rows:
these are read from a file, or fetched from where they are published, under the terms there.
"""

from difflib import get_close_matches
from functools import partial
from typing import Any

from coa.errors import UserError
from coa.registry import Registry
from coa.tasks.published.benchmark import GREEDY, Benchmark, Decoding, Hub
from coa.tasks.published.mathematics import olympiad, problem
from coa.tasks.published.programs import code_contests, human_eval, live_code_bench, mbpp, within
from coa.tasks.published.questions import browse_comp, flash_rag, gaia, last_exam, web_walker

CALLS = 12
SIXTEEN = Decoding(samples=16, temperature=0.6, max_turns=CALLS + 1)
ONE = Decoding(samples=1, temperature=0.6, max_turns=CALLS + 1)
WEB = Decoding(samples=3, temperature=1.0, top_p=0.9, top_k=20, max_turns=36)
OPEN = Decoding(samples=1, temperature=0.0, max_turns=8)

_TEST = ("*test*",)
_CC = "CC BY 4.0"
_PRIVATE = "not to be published in plain text, nor trained on"


def _listed(name: str, hub: Hub, rows: tuple[int, ...], terms: str, *aliases: str, **protocol: Any) -> Benchmark:
    return Benchmark(name=name, hub=hub, rows=rows, terms=terms, aliases=aliases, **protocol)


_contest = partial(_listed, profile="math", grader="math", metric="avg@k", decoding=SIXTEEN, read=problem)
_maths = partial(_listed, profile="math", grader="math", metric="pass@1", decoding=ONE)
_programs = partial(_listed, profile="code", grader="tests", metric="pass@1", decoding=ONE)
_greedy = partial(_listed, profile="code", grader="tests", metric="pass@1", decoding=GREEDY)
_web = partial(_listed, profile="web", grader="judge", metric="judged pass@1", decoding=WEB)
_asked = partial(_listed, profile="mhqa", grader="exact_first", metric="exact match", decoding=OPEN, read=flash_rag)


def _open(name: str, rows: int, split: str, *aliases: str) -> Benchmark:
    """A benchmark of open question answering, from the collection that contains the test sets in one layout."""
    hub = Hub(id="RUC-NLPIR/FlashRAG_datasets", config=name, split=split, files=(f"{name}/{split}.jsonl",))
    return _asked(name, hub, (rows,), "CC BY-SA 4.0 (the collection)", *aliases)


def _live_code_bench(number: int, rows: tuple[int, ...], since: str, until: str) -> Benchmark:
    name = f"livecodebench_v{number}"
    hub = Hub(id="livecodebench/code_generation_lite", files=(f"*test{number}.jsonl",))
    read = within(since, until, live_code_bench)
    terms = "Creative Commons; problems are the contests' own"
    return _programs(name, hub, rows, terms, f"skywork_{name}", f"lcb_v{number}", read=read)


def _mbpp(config: str) -> Hub:
    return Hub(id="google-research-datasets/mbpp", config=config, files=(f"{config}/test*",))


_OLYMPIAD = "OE_TO_maths_en_COMP"
_GAIA = Hub(
    id="gaia-benchmark/GAIA", config="2023_all", split="validation", files=("2023/validation/metadata.parquet",)
)
_TABLE = (
    _contest("aime24", Hub(id="math-ai/aime24", files=_TEST), (30,), "Apache-2.0", "aime2024", "aime_2024"),
    _contest("aime25", Hub(id="math-ai/aime25", files=_TEST), (30,), "Apache-2.0", "aime2025", "aime_2025"),
    _contest("amc23", Hub(id="zwhe99/amc23", files=_TEST), (40,), "none stated", "amc2023"),
    _maths(
        "math500",
        Hub(id="HuggingFaceH4/MATH-500", files=_TEST),
        (500,),
        "MIT (of MATH)",
        *("math-500", "math_500"),
        read=problem,
    ),
    _maths(
        "olympiadbench",
        Hub(id="Hothan/OlympiadBench", config=_OLYMPIAD, split="train", files=(f"*{_OLYMPIAD}*",)),
        (674, 675),
        "Apache-2.0",
        read=olympiad,
    ),
    _live_code_bench(4, (101, 100), "2024-08-04", "2024-10-05"),
    _live_code_bench(5, (167,), "2024-09-22", "2025-01-04"),
    _programs(
        "codecontests",
        Hub(id="deepmind/code_contests", files=("*test-*",)),
        (165,),
        "CC BY 4.0",
        *("codecontest", "code_contests"),
        read=code_contests,
    ),
    _greedy(
        "humaneval",
        Hub(id="openai/openai_humaneval", files=("*openai_humaneval/test*",)),
        (164,),
        "MIT",
        *("human_eval", "human-eval"),
        read=human_eval,
    ),
    _greedy(
        "humaneval_plus",
        Hub(id="evalplus/humanevalplus", files=_TEST),
        (164,),
        "Apache-2.0",
        *("humanevalplus", "humaneval+"),
        read=human_eval,
    ),
    _greedy("mbpp", _mbpp("full"), (500, 974), _CC, read=mbpp),
    _greedy(
        "mbpp_sanitized",
        _mbpp("sanitized"),
        (257, 427),
        _CC,
        *("sanitized-mbpp", "mbpp-sanitized"),
        read=mbpp,
    ),
    _greedy(
        "mbpp_plus",
        Hub(id="evalplus/mbppplus", files=_TEST),
        (378,),
        "Apache-2.0",
        *("mbppplus", "mbpp+"),
        read=mbpp,
    ),
    _open("nq", 3610, "test", "nq_full"),
    _open("triviaqa", 11313, "test", "tq"),
    _open("hotpotqa", 7405, "dev"),
    _open("popqa", 14267, "test"),
    _open("2wikimultihopqa", 12576, "dev", "2wiki"),
    _open("musique", 2417, "dev"),
    _open("bamboogle", 125, "test"),
    _web("gaia", _GAIA, (103, 127), f"gated; {_PRIVATE}", "gaia_dev_103", "gaia-text", read=gaia),
    _web(
        "webwalker",
        Hub(id="callanwu/WebWalkerQA", split="main", files=("*main*",)),
        (680,),
        "Apache-2.0",
        *("webwalkerqa", "webwalker_main"),
        read=web_walker,
    ),
    _web(
        "browsecomp",
        Hub(id="smolagents/browse_comp", files=_TEST),
        (1266,),
        f"MIT; encrypted; {_PRIVATE}",
        *("browse_comp", "browse_comp_test_set"),
        read=browse_comp,
    ),
    _web(
        "hle",
        Hub(id="cais/hle", files=_TEST),
        (500, 2158),
        f"MIT; gated; {_PRIVATE}",
        *("hle_test", "humanitys_last_exam"),
        read=last_exam,
    ),
)
BENCHMARKS = Registry("benchmark", {benchmark.name: benchmark for benchmark in _TABLE})


def register(benchmark: Benchmark) -> None:
    """Makes a benchmark known by its names; raises ValueError if one of them is taken."""
    for name in (benchmark.name, *benchmark.aliases):
        if find_benchmark(name) is not None:
            raise ValueError(f"there is a benchmark {name!r} already")
    BENCHMARKS.register(benchmark.name, benchmark)


def find_benchmark(name: str) -> Benchmark | None:
    """The benchmark with this name or alias, in lower or upper case; None if there is none."""
    name = name.lower()
    return BENCHMARKS.get(name) or next((one for one in BENCHMARKS.values() if name in one.aliases), None)


def find(name: str) -> Benchmark:
    """The benchmark with this name or alias; raises UserError that names the nearest."""
    found = find_benchmark(name)
    if found is None:
        names = [known for one in BENCHMARKS.values() for known in (one.name, *one.aliases)]
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.0)
        raise UserError(f"no benchmark {name!r}; the nearest is {near[0]} (`coa evaluate --benchmarks` lists them)")
    return found


def of_family(family: str) -> Benchmark | None:
    """The benchmark whose tasks are of this family: of_family("gaia/level2").name == "gaia"."""
    return BENCHMARKS.get(family.partition("/")[0])

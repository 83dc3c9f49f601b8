"""The table of published benchmarks: those of the paper (arXiv 2508.13167), and those that extensions register.

Decoding is the paper's: mathematics and programs at temperature 0.6 (its 32B models; 0.8 for 7B), the web at 1.0 with
top-p 0.9, open questions greedily (its script). The table holds no rows: these are read from a file, or fetched from
where they are published, under the terms there.
"""

from difflib import get_close_matches
from functools import partial

from coa.errors import UserError
from coa.registry import Registry
from coa.tasks.published.benchmark import Benchmark, Decoding, Hub
from coa.tasks.published.mathematics import olympiad, problem
from coa.tasks.published.programs import code_contests, live_code_bench, within
from coa.tasks.published.protocol import GREEDY
from coa.tasks.published.questions import flash_rag
from coa.tasks.published.web import browse_comp, gaia, last_exam, web_walker

SIXTEEN = Decoding(samples=16, temperature=0.6)
ONE = Decoding(samples=1, temperature=0.6)
WEB = Decoding(samples=3, temperature=1.0, top_p=0.9)

_contest = partial(Benchmark, profile="math", grader="math", metric="avg@k", decoding=SIXTEEN, read=problem)
_maths = partial(Benchmark, profile="math", grader="math", metric="pass@1", decoding=ONE)
_programs = partial(Benchmark, profile="code", grader="tests", metric="pass@1", decoding=ONE)
_web = partial(Benchmark, profile="web", grader="judge", metric="judged pass@1", decoding=WEB)
_PRIVATE = "not to be published in plain text, nor trained on"


def _open(name: str, rows: int, split: str, *aliases: str) -> Benchmark:
    """A benchmark of open question answering, from the collection that contains the test sets in one layout."""
    return Benchmark(
        name=name,
        hub=Hub(id="RUC-NLPIR/FlashRAG_datasets", config=name, split=split, files=(f"{name}/{split}.jsonl",)),
        rows=(rows,),
        profile="mhqa",
        grader="exact_first",
        metric="exact match",
        decoding=GREEDY,
        read=flash_rag,
        aliases=aliases,
        terms="CC BY-SA 4.0 (the collection)",
    )


def _live_code_bench(name: str, rows: tuple[int, ...], file: str, since: str, until: str, *aliases: str) -> Benchmark:
    return _programs(
        name=name,
        hub=Hub(id="livecodebench/code_generation_lite", files=(f"*{file}",)),
        rows=rows,
        read=within(since, until, live_code_bench),
        aliases=aliases,
        terms="Creative Commons; problems are the contests' own",
    )


BENCHMARKS = Registry(
    "benchmark",
    {
        benchmark.name: benchmark
        for benchmark in (
            _contest(
                name="aime24",
                hub=Hub(id="math-ai/aime24", files=("*test*",)),
                rows=(30,),
                aliases=("aime2024", "aime_2024"),
                terms="Apache-2.0",
            ),
            _contest(
                name="aime25",
                hub=Hub(id="math-ai/aime25", files=("*test*",)),
                rows=(30,),
                aliases=("aime2025", "aime_2025"),
                terms="Apache-2.0",
            ),
            _contest(
                name="amc23",
                hub=Hub(id="zwhe99/amc23", files=("*test*",)),
                rows=(40,),
                aliases=("amc2023",),
                terms="none stated",
            ),
            _maths(
                name="math500",
                hub=Hub(id="HuggingFaceH4/MATH-500", files=("*test*",)),
                rows=(500,),
                read=problem,
                aliases=("math-500", "math_500"),
                terms="MIT (of MATH)",
            ),
            _maths(
                name="olympiadbench",
                hub=Hub(
                    id="Hothan/OlympiadBench",
                    config="OE_TO_maths_en_COMP",
                    split="train",
                    files=("*OE_TO_maths_en_COMP*",),
                ),
                rows=(674, 675),
                read=olympiad,
                terms="Apache-2.0",
            ),
            _live_code_bench(
                "livecodebench_v4",
                (101, 100),
                "test4.jsonl",
                "2024-08-04",
                "2024-10-05",
                "skywork_livecodebench_v4",
                "lcb_v4",
            ),
            _live_code_bench(
                "livecodebench_v5",
                (167,),
                "test5.jsonl",
                "2024-09-22",
                "2025-01-04",
                "skywork_livecodebench_v5",
                "lcb_v5",
            ),
            _programs(
                name="codecontests",
                hub=Hub(id="deepmind/code_contests", files=("*test-*",)),
                rows=(165,),
                read=code_contests,
                aliases=("codecontest", "code_contests"),
                terms="CC BY 4.0",
            ),
            _open("nq", 3610, "test", "nq_full"),
            _open("triviaqa", 11313, "test", "tq"),
            _open("hotpotqa", 7405, "dev"),
            _open("popqa", 14267, "test"),
            _open("2wikimultihopqa", 12576, "dev", "2wiki"),
            _open("musique", 2417, "dev"),
            _open("bamboogle", 125, "test"),
            _web(
                name="gaia",
                hub=Hub(
                    id="gaia-benchmark/GAIA",
                    config="2023_all",
                    split="validation",
                    files=("2023/validation/metadata.parquet",),
                ),
                rows=(103, 127),
                read=gaia,
                aliases=("gaia_dev_103", "gaia-text"),
                terms=f"gated; {_PRIVATE}",
            ),
            _web(
                name="webwalker",
                hub=Hub(id="callanwu/WebWalkerQA", split="main", files=("*main*",)),
                rows=(680,),
                read=web_walker,
                aliases=("webwalkerqa", "webwalker_main"),
                terms="Apache-2.0",
            ),
            _web(
                name="browsecomp",
                hub=Hub(id="smolagents/browse_comp", files=("*test*",)),
                rows=(1266,),
                read=browse_comp,
                aliases=("browse_comp", "browse_comp_test_set"),
                terms=f"MIT; encrypted; {_PRIVATE}",
            ),
            _web(
                name="hle",
                hub=Hub(id="cais/hle", files=("*test*",)),
                rows=(500, 2158),
                read=last_exam,
                aliases=("hle_test", "humanitys_last_exam"),
                terms=f"MIT; gated; {_PRIVATE}",
            ),
        )
    },
)


def register(benchmark: Benchmark) -> None:
    """Makes a benchmark known by its names; raises ValueError if one of them is taken."""
    for name in (benchmark.name, *benchmark.aliases):
        if named(name) is not None:
            raise ValueError(f"there is a benchmark {name!r} already")
    BENCHMARKS.register(benchmark.name, benchmark)


def named(name: str) -> Benchmark | None:
    """The benchmark with this name or alias, in lower or upper case; None if there is none."""
    name = name.lower()
    return BENCHMARKS.get(name) or next((one for one in BENCHMARKS.values() if name in one.aliases), None)


def find(name: str) -> Benchmark:
    """The benchmark with this name or alias; raises UserError that names the nearest."""
    found = named(name)
    if found is None:
        names = [known for one in BENCHMARKS.values() for known in (one.name, *one.aliases)]
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.0)
        raise UserError(f"no benchmark {name!r}; the nearest is {near[0]} (`coa benchmarks` lists them)")
    return found


def of_family(family: str) -> Benchmark | None:
    """The benchmark whose tasks are of this family: of_family("gaia/level2").name == "gaia"."""
    return BENCHMARKS.get(family.partition("/")[0])

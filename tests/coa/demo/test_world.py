"""The tiny world: determinism, hold-out by construction, and pages that hold what is asked."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.agent.profiles import profile
from coa.demo import World, WorldConfig, evaluation_tasks, training_task, words
from coa.demo.questions import FAMILIES, KINDS, MHQA, WEB, Birthplace, Current, Sum, read_question
from coa.demo.strategy import careful_route
from coa.demo.tasks import is_held_out
from coa.errors import UserError
from coa.tasks.worlds import tasks_sha256
from coa.tools.base import ToolCall
from coa.tools.layouts import LAYOUTS
from coa.tools.search.wiki import TitleLookup
from coa.tools.web.search import read_hits

WORLD = World(WorldConfig())
TRAINING = [training_task(WORLD, seed=3, purpose="sft", index=i) for i in range(3000)]
EVALUATION = evaluation_tasks(WORLD, 300, seed=5)


def puzzle_of(question: str) -> Sum | Birthplace | Current:
    puzzle = read_question(question)
    assert puzzle is not None
    return puzzle


def test_sizes_and_names_are_as_configured():
    for names, size in ((WORLD.people, 1200), (WORLD.towns, 576), (WORLD.companies, 384)):
        assert len(set(names)) == len(names) == size
        assert all(len(name.split()) == 2 for name in names)
    small = World(WorldConfig(people=7, towns=5, companies=3))
    assert (len(small.people), len(small.towns), len(small.companies)) == (7, 5, 3)


def test_no_name_word_is_in_two_lists():
    lists = (words.FIRST_NAMES, words.SURNAMES, words.TOWN_FIRST, words.TOWN_LAST, words.COMPANY_FIRST)
    count = Counter(word for names in (*lists, words.COMPANY_LAST) for word in names)
    assert count.most_common(1)[0][1] == 1


def test_a_size_beyond_the_names_is_refused():
    with pytest.raises(ValueError, match="towns: 577 is not between 1 and 576"):
        WorldConfig(towns=577)


def test_two_worlds_of_one_config_say_the_same_and_another_seed_says_otherwise():
    again, other = World(WorldConfig()), World(WorldConfig(seed=1))
    assert again.wiki_pages == WORLD.wiki_pages
    assert again.site_hits == WORLD.site_hits
    assert other.wiki_pages != WORLD.wiki_pages
    assert other.companies != WORLD.companies


def test_the_evaluation_list_is_the_same_everywhere():
    assert tasks_sha256(EVALUATION) == "591282e744c9a3ae6f5859b257c90631fd73ad44d74cdd3f193d946af3f3a4ca"
    assert evaluation_tasks(World(WorldConfig()), 300, seed=5) == EVALUATION


def test_the_fingerprint_changes_with_order_and_answer():
    changed = (replace(EVALUATION[0], answers=("nobody",)), *EVALUATION[1:])
    prints = {tasks_sha256(tasks) for tasks in (EVALUATION, EVALUATION[::-1], changed)}
    assert len(prints) == 3


def test_evaluation_tasks_are_distinct_balanced_and_held_out():
    assert len({task.question for task in EVALUATION}) == len({task.id for task in EVALUATION}) == 300
    assert Counter(task.family for task in EVALUATION) == dict.fromkeys(FAMILIES, 100)
    assert all(is_held_out(WORLD, puzzle_of(task.question)) for task in EVALUATION)


def test_training_never_asks_about_what_is_held_out():
    assert not any(is_held_out(WORLD, puzzle_of(task.question)) for task in TRAINING)
    held_out_names = [name for name in WORLD.people if WORLD.held_out("person", name)]
    held_out_names += [name for name in WORLD.companies if WORLD.held_out("company", name)]
    asked = "\n".join(task.question for task in TRAINING)
    assert not [name for name in held_out_names if f"{name} was" in asked or f"of {name} ?" in asked]
    evaluated = {task.question.split(" ", 2)[2] for task in EVALUATION if task.family == "calc"}
    assert not evaluated & {task.question.split(" ", 2)[2] for task in TRAINING}


def test_a_fifth_is_held_out_and_has_pages_all_the_same():
    people = [name for name in WORLD.people if WORLD.held_out("person", name)]
    companies = [name for name in WORLD.companies if WORLD.held_out("company", name)]
    assert (len(people), len(companies)) == (228, 71)
    assert all(person in WORLD.wiki_pages for person in people)
    assert all(len(WORLD.search_results(company)) == 1 for company in companies)


def test_more_evaluation_tasks_than_there_are_is_an_error():
    with pytest.raises(UserError, match="tasks=900: the tiny world has fewer held-out questions"):
        evaluation_tasks(WORLD, 900, seed=0)


def test_a_training_task_depends_on_seed_purpose_and_index_only():
    assert training_task(World(WorldConfig()), seed=3, purpose="sft", index=17) == TRAINING[17]
    others = [
        training_task(WORLD, seed=4, purpose="sft", index=17),
        training_task(WORLD, seed=3, purpose="rl", index=17),
        TRAINING[18],
    ]
    assert len({TRAINING[17].question, *(task.question for task in others)}) == 4
    assert len({task.id for task in TRAINING}) == 3000


def test_families_and_kinds_are_drawn_evenly():
    kinds = Counter((task.family, puzzle_of(task.question).kind) for task in TRAINING)
    assert set(kinds) == {(family, kind) for family in FAMILIES for kind in KINDS[family]}
    assert all(200 < count < 300 for count in kinds.values())


def test_answers_stand_on_the_pages_that_the_question_leads_to():
    for task in TRAINING[:300]:
        match puzzle_of(task.question):
            case Sum() as puzzle:
                assert task.answers == (str(puzzle.a * puzzle.b - puzzle.c),)
                assert puzzle.value > 0
            case Birthplace(kind, person):
                town = WORLD.birthplace(person)
                assert WORLD.wiki_pages[person] == f"{person} was born in {town} ."
                assert f" {kind} {task.answers[0]} " in WORLD.wiki_pages[town]
            case Current(kind, company):
                [result] = WORLD.search_results(f"{company} {kind}")
                assert f" {kind} {task.answers[0]} " in WORLD.site_pages[result.page]


def test_snippets_are_stale_for_the_configured_share_and_never_name_a_stranger():
    pairs = [(company, kind) for company in WORLD.companies for kind in KINDS[WEB]]
    stale = [pair for pair in pairs if WORLD.snippet_value(*pair) != WORLD.current(*pair)]
    assert len(stale) == 996  # of 1536: 65 %
    assert {WORLD.snippet_value(*pair) for pair in pairs} == set(words.SURNAMES)
    fresh = World(WorldConfig(stale=0.0))
    assert all(fresh.snippet_value(*pair) == fresh.current(*pair) for pair in pairs)


def test_every_word_of_questions_and_pages_is_in_the_lexicon():
    texts = [task.question for task in (*TRAINING, *EVALUATION)]
    texts += [*WORLD.wiki_pages.values(), *WORLD.site_pages.values()]
    texts += [f"{hit['title']} {hit['snippet']}" for hits in WORLD.site_hits.values() for hit in hits]
    said = {word for text in texts for word in text.split() if word.isalpha()}
    assert said <= set(WORLD.lexicon())
    assert list(WORLD.lexicon()) == sorted(set(WORLD.lexicon()))


def test_what_the_world_observes_is_what_the_tools_show():
    company, person = WORLD.companies[3], WORLD.people[0]
    query = f"{company} owner"
    hits = json.dumps({"organic": WORLD.site_hits[query]})
    assert LAYOUTS["plain"].hits(read_hits(hits, 10), 8000) == WORLD.observe(ToolCall("web_search", query))
    assert asyncio.run(TitleLookup(WORLD.wiki_pages)(ToolCall("wiki_search", person))) == WORLD.observe(
        ToolCall("wiki_search", person)
    )
    assert WORLD.observe(ToolCall("wiki_search", "Atlantis")) == asyncio.run(
        TitleLookup({})(ToolCall("wiki_search", "Atlantis"))
    )
    assert WORLD.observe(ToolCall("crawl_page", "p103")) == WORLD.site_pages["p103"]
    assert WORLD.observe(ToolCall("code", "print( 12 * 3 - 14 )")) == "22"


PUZZLES = st.one_of(
    st.builds(Sum, st.sampled_from(KINDS["calc"]), *(st.integers(0, 10**6),) * 3),
    st.builds(Birthplace, st.sampled_from(KINDS[MHQA]), st.sampled_from(WORLD.people)),
    st.builds(Current, st.sampled_from(KINDS[WEB]), st.sampled_from(WORLD.companies)),
)


@given(PUZZLES)
def test_a_question_reads_back_as_its_puzzle(puzzle: Sum | Birthplace | Current):
    assert read_question(puzzle.question) == puzzle


@given(st.text())
def test_other_questions_are_not_mistaken_for_puzzles(text: str):
    assert read_question(f"{text} ?!") is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_evaluation_tasks_are_the_same_with_other_families_beside_it(family: str):
    alone = evaluation_tasks(World(WorldConfig(families=(family,))), 100, seed=5)
    assert alone == tuple(task for task in EVALUATION if task.family == family)


def test_one_profile_may_do_for_every_family():
    multi = World(WorldConfig(profile="multi"))
    for task, own in zip(evaluation_tasks(multi, 30, seed=5), EVALUATION, strict=False):
        assert task == replace(own, profile="multi")
        route = careful_route(multi, task)
        assert profile("multi").transitions_hold(route.chain)
        assert route.chain == careful_route(WORLD, own).chain


@pytest.mark.parametrize(
    "wrong",
    [{"families": ()}, {"families": ("sport",)}, {"profile": "web"}, {"families": ("calc",), "profile": "mhqa"}],
)
def test_families_and_a_profile_that_do_not_fit_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"^(families|profile): "):
        WorldConfig(**wrong)

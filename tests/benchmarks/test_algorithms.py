from benchmarks.algorithms import SEEDED, SEEDS, WAYS, Found, table
from benchmarks.tiny_runs import Kept


def test_the_table_has_a_row_for_each_run_and_says_what_the_recipe_was_changed_by() -> None:
    one = Found(before=0.45, after=0.931, low=0.9, high=0.95, greedy=1.0, seconds=150.0, rewards=[0.5])
    other = Found(before=0.45, after=0.925, low=0.9, high=0.95, greedy=1.0, seconds=150.0, rewards=[0.5])
    rows = table({"ppo": {0: Kept("abc", one), 2: Kept("abc", other)}, "cispo": {}}).splitlines()
    assert rows[2:] == [
        "| ppo | `rl.algorithm=ppo`<br>`rl.learner.value_head.lr=1e-3` | 0 | 0.450 | 0.931 (0.900 to 0.950) | 1.000 |",
        "| ppo | `rl.algorithm=ppo`<br>`rl.learner.value_head.lr=1e-3` | 2 | 0.450 | 0.925 (0.900 to 0.950) | 1.000 |",
        "",
        "Commit of all runs: abc.",
    ]
    mixed = table({"ppo": {0: Kept("abc", one), 2: Kept("def", other)}, "cispo": {0: Kept("abc", one)}}).splitlines()
    assert mixed[5:] == ["", "Commit of ppo 0, cispo 0: abc.", "", "Commit of ppo 2: def."]


def test_the_algorithms_of_three_seeds_are_among_those_that_are_run() -> None:
    assert set(SEEDED) <= set(WAYS)
    assert len(SEEDS) == 3

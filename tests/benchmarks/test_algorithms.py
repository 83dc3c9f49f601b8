from benchmarks.algorithms import SEEDED, SEEDS, WAYS, Found, table


def test_the_table_has_a_row_for_each_run_and_says_what_the_recipe_was_changed_by() -> None:
    one = Found(before=0.45, after=0.931, low=0.9, high=0.95, greedy=1.0, seconds=150.0, rewards=[0.5])
    rows = table({"ppo": {0: one, 2: {**one, "after": 0.925}}, "cispo": {}}).splitlines()
    assert rows[2:] == [
        "| ppo | `rl.algorithm=ppo`<br>`rl.learner.value_head.lr=1e-3` | 0 | 0.450 | 0.931 (0.900 to 0.950) | 1.000 |",
        "| ppo | `rl.algorithm=ppo`<br>`rl.learner.value_head.lr=1e-3` | 2 | 0.450 | 0.925 (0.900 to 0.950) | 1.000 |",
    ]


def test_the_algorithms_of_three_seeds_are_among_those_that_are_run() -> None:
    assert set(SEEDED) <= set(WAYS)
    assert len(SEEDS) == 3

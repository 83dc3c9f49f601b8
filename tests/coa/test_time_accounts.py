from coa.time_accounts import TimeAccount, added, filled, shares, since


def test_the_states_of_an_account_add_up_to_its_time() -> None:
    account = TimeAccount("idle", 10.0)
    account.enter("idle", 11.0)
    account.enter("busy", 12.0)
    account.enter("idle", 15.0)
    assert account.seconds(16.5) == {"idle": 3.5, "busy": 3.0}
    assert account.seconds(20.0) == {"idle": 7.0, "busy": 3.0}


def test_what_was_spent_between_two_moments() -> None:
    assert since({"a": 1.0}, {"a": 3.0, "b": 2.0}) == {"a": 2.0, "b": 2.0}
    assert since({"a": 5.0}, {"a": 3.0}) == {"a": 3.0}, "it began anew"


def test_several_accounts_together_and_their_shares() -> None:
    both = added([{"a": 1.0}, {"a": 2.0, "b": 1.0}])
    assert both == {"a": 3.0, "b": 1.0}
    assert shares(both) == {"a": 0.75, "b": 0.25}
    assert shares({"a": 0.0}) == {}


def test_what_is_missing_to_the_wall_clock_is_named() -> None:
    assert filled({"a": 2.0}, 5.0, "gone") == {"a": 2.0, "gone": 3.0}
    assert filled({"a": 2.0}, 1.999, "gone") == {"a": 2.0, "gone": 0.0}

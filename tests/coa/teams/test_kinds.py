"""Kinds of teams by name, and what a team's settings may say."""

from pathlib import Path

import pytest

from coa.agent.profiles import PROFILES
from coa.errors import UserError
from coa.teams.kinds import KINDS, check_kind, check_team, kind_of, kinds_of, members, register
from coa.teams.refine import RefineRun
from coa.teams.roles import ROLES, Role, tags_of
from coa.teams.store import write_transcripts
from coa.teams.teams import RoleConfig, TeamConfig
from coa.teams.transcript import Graded
from tests.support.registries import lend
from tests.support.teams import TASKS, play_one


def test_each_kind_has_roles_that_exist_and_settings_that_a_team_has() -> None:
    assert list(KINDS)[:5] == ["planner", "debate", "refine", "pyramid", "evolved"]
    for name, kind in KINDS.items():
        assert kind.name == name
        assert all(hasattr(TeamConfig(), setting) for setting in kind.settings)
        for profile in PROFILES.values():
            assert set(members(TeamConfig(rules=name, thinker=True), profile)) <= set(ROLES)


def test_a_kind_brings_its_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Role("judge", frozenset({"double_check"}), "You judge.")
    kind = type("CourtRun", (RefineRun,), {"name": "court", "own_roles": (judge,)})
    lend(monkeypatch, KINDS, "court", kind)
    lend(monkeypatch, ROLES, "judge", judge)
    register(kind)  # again: what is there already may be registered again
    assert kind_of(TeamConfig(rules="court")) is kind
    assert [tag.name for tag in tags_of("judge", PROFILES["web"])] == ["think", "double_check"]
    with pytest.raises(ValueError, match="there is a kind of team 'court' already"):
        register(type("OtherRun", (RefineRun,), {"name": "court"}))


def test_an_unknown_kind_or_role_is_named() -> None:
    with pytest.raises(UserError, match=r"^team\.rules: no kind of team 'choir'; there are planner, debate, refine"):
        check_kind(TeamConfig(rules="choir"))
    with pytest.raises(UserError, match=r"^team\.roles: no role 'wizard'; there are planner, "):
        check_kind(TeamConfig(roles={"wizard": RoleConfig()}))


def test_kinds_are_those_of_the_runs_that_are_learnt_from(tmp_path: Path) -> None:
    for rules in ("refine", "debate"):
        (tmp_path / rules / "teachers").mkdir(parents=True)
        run = play_one(TASKS[0], team=TeamConfig(rules=rules))
        write_transcripts(tmp_path / rules / "teachers" / "transcripts-00000.parquet", [Graded(run, True)])
    refine, debate = str(tmp_path / "refine"), str(tmp_path / "debate" / "teachers")
    team = TeamConfig(learn_from=(refine, debate), rounds=2, debaters=4)
    assert [kind.name for kind in kinds_of(team)] == ["debate", "refine"]
    assert members(team, PROFILES["mhqa"]) == ("debater", "opponent", "generator", "verifier", "refiner")
    check_team(team, {}, {"mhqa"})
    for wrong, words in (
        (TeamConfig(learn_from=(refine,)), r"team\.learn_from: runs of refine alone: expected runs of at least two of"),
        (TeamConfig(learn_from=(str(tmp_path / "none"),)), r"team\.learn_from: no transcripts at .*none"),
        (TeamConfig(learn_from=(refine, debate), rules="debate"), r"team\.rules has no effect with team\.learn_from"),
        (TeamConfig(learn_from=(refine, debate), depth=2), r"team\.depth has no effect with kinds debate, refine"),
    ):
        with pytest.raises(UserError, match=words):
            check_team(wrong, {}, {"mhqa"})


def test_a_setting_that_a_kind_does_not_read_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^team\.rounds has no effect with team\.rules=planner; it is a setting of team"
    ):
        check_team(TeamConfig(rounds=2), {}, {"mhqa"})
    for rules in ("debate", "refine", "pyramid", "evolved"):
        check_team(TeamConfig(rules=rules, rounds=2), {}, {"mhqa"})

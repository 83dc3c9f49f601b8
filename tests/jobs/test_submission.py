"""What `coa submit` refuses before anything is sent."""

from pathlib import Path

import pytest

from coa.errors import UserError
from coa.http.keys import is_secret, secrets_in
from jobs import cli
from jobs.submission import parse, plain_variables

SECRET = "sk-a-secret-of-mine"


def test_a_command_is_read_as_it_will_be(tmp_path: Path) -> None:
    found = parse(["train", "--recipe", "tiny", "seed=4", "--retry-failed"], tmp_path, cli.parse)
    assert found.config is not None
    assert (found.command.name, found.config.seed, found.config.distill.retry_failed) == ("train", 4, True)
    assert parse(["recipe"], tmp_path, cli.parse).config is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "coa submit needs a command"),
        (["submit", "train"], "does not submit itself"),
        (["evaluate", "--benchmarks"], "--benchmarks only prints something"),
        (["train", "--help"], "--help only prints something"),
        (["train", "--recipe", "tiny", "sead=4"], "unknown key sead"),
        (["train", "--recipe", "/elsewhere/mine.yaml"], "/elsewhere/mine.yaml is not in"),
        (["train", "--recipe", "../mine.yaml"], "is not in"),
        (["train", "--recipe", "tiny", f"tools.search.url=http://x/?key={SECRET}"], r"holds the value of \$MY_KEY"),
    ],
)
def test_a_mistake_is_found_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    with pytest.raises(UserError, match=said) as raised:
        parse(words, tmp_path, cli.parse)
    assert SECRET not in str(raised.value)


def test_no_variable_with_the_name_of_a_secret_is_sent() -> None:
    environment = {"WANDB_MODE": "offline", "WANDB_API_KEY": SECRET, "COA_EXTENSIONS": "mine"}
    assert plain_variables(["WANDB_MODE"], environment) == {"WANDB_MODE": "offline", "COA_EXTENSIONS": "mine"}
    assert plain_variables([], {}) == {}
    with pytest.raises(UserError, match=r"\$WANDB_API_KEY looks like a secret"):
        plain_variables(["WANDB_API_KEY"], environment)
    with pytest.raises(UserError, match=r"\$HF_HOME is not set"):
        plain_variables(["HF_HOME"], environment)


def test_secrets_are_known_by_the_names_of_variables() -> None:
    assert all(is_secret(name) for name in ("SERPER_API_KEY", "RAY_AUTH_TOKEN", "db_password", "AWS_SECRET_ACCESS"))
    assert not any(is_secret(name) for name in ("HOME", "WANDB_MODE", "PATH"))
    environment = {"A_KEY": SECRET, "B_KEY": "true", "HOME": SECRET}
    assert secrets_in(f"x={SECRET}", environment) == ["A_KEY"]
    assert secrets_in("x=true", environment) == []


def test_a_cluster_that_does_not_answer_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert cli.main(["submit", "--address", "http://127.0.0.1:9", "recipe"]) == 2
    assert capfd.readouterr().err == (
        "coa: no cluster answers at http://127.0.0.1:9: expected the address of its dashboard, such as "
        "http://head:8265\n"
    )
    assert cli.main(["submit", "--address", "head:8265", "recipe"]) == 2
    assert capfd.readouterr().err.startswith("coa: no cluster answers at head:8265: expected the address of its dash")
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    assert cli.main(["submit", "recipe"]) == 2
    assert "needs --address" in capfd.readouterr().err

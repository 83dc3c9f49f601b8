"""Secrets by their form, and files of secrets by their name. Each value here is made up."""

from pathlib import Path

import pytest

from coa.http.secrets import named_secret, secret_value, secrets_of

FORMS = {
    "postgres://me:hunter22@db.example/x": "Basic Auth Credentials",
    "AWS=AKIA" + "IOSFODNN7EXAMPLE": "AWS Access Key",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY": "AWS secret key",
    "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH": "Hugging Face token",
    "key: sk-ant-" + "api03-abcdefghijklmnopqrstuvwx": "Anthropic key",
    "ghp_" + "012345678901234567890123456789012345": "GitHub Token",
    "-----BEGIN OPENSSH " + "PRIVATE KEY-----": "Private Key",
    "machine api.example login me password s3cr3tpass": "netrc password",
    "https://api.example/x?api_key=0123456789ab": "secret in an address",
    "    client-key-data: LS0t" + "LS1CRUdJTg==": "private key",
}
HARMLESS = (
    "key_env: SERPER_API_KEY",
    "run_dir: runs/demo",
    "max_tokens: 4096",
    "api_key: ${oc.env:KEY}",
    "sha 0a1b2c3d4e",
)


@pytest.mark.parametrize(("text", "kind"), FORMS.items())
def test_a_secret_is_known_by_its_form(text: str, kind: str) -> None:
    assert list(secrets_of(["a: 1", text], assigned=False)) == [(2, kind)]
    assert kind in secret_value(text, {})
    assert list(secrets_of([f"{text}  # pragma: allowlist secret"], assigned=True)) == []


def test_what_is_assigned_to_a_name_of_secrets_is_one_but_in_data() -> None:
    line = 'password = "correct horse"'
    assert [kind for _, kind in secrets_of([line], assigned=True)] == ["Secret Keyword"]
    assert list(secrets_of([line], assigned=False)) == []


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_is_let_pass(text: str) -> None:
    assert list(secrets_of([text], assigned=True)) == []
    assert secret_value(text, {}) == ""


def test_a_random_value_by_itself_is_one_and_a_name_is_not() -> None:
    assert secret_value("3f9c1d7be0a24c55a1f0b7c2d9e84f60a1b2c3d4", {}) == "a secret (a random value)"
    assert secret_value("x=3f9c1d7be0a24c55a1f0b7c2d9e84f60a1b2c3d4", {}) == "a secret (a random value)"
    for name in ("Qwen/Qwen2.5-7B-Instruct", "runs/demo-2026-11-26", "http://10.0.0.7:8000/v1", "a" * 40):
        assert secret_value(name, {}) == "", name
    assert secret_value("x=of-my-own", {"MY_PASS": "of-my-own", "HOME": "x"}) == "the value of $MY_PASS"


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.local", "deep/prod.env", ".netrc", "id_rsa", "credentials.json", "kubeconfig", "secrets.yaml"),
        *(
            ".aws/config",
            "x/.ssh/known_hosts",
            "server.key",
            "token.txt",
            "my_token",
            "terraform.tfstate",
            ".pypirc",
            "Passwords.txt",
        ),
    ],
)
def test_a_file_of_secrets_is_known_by_its_name(name: str) -> None:
    assert named_secret(Path(name))


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "special_tokens_map.json", "mine.yaml", "environment.py", "secrets.py"]
)
def test_other_files_are_not(name: str) -> None:
    assert not named_secret(Path(name))

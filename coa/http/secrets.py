"""Recognizes secrets in text by their form, and files of secrets by their name.

The forms are those of detect-secrets, and a few of services that it lacks. A line that is none of them says so with
`pragma: allowlist secret`, as for that tool.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath

from coa.http.keys import is_secret, secrets_in

FILES = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", ".pgpass"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore"),
    *("*credential*", "*secret*", "*kubeconfig*", "*password*", "service-account*.json", "*.ovpn", "*.tfstate*"),
    *("token", "token.txt", "*.token", "*_token", "*_token.txt", "*-token.txt", "*api_key*", "*apikey*"),
    *("!*.py", "*.asc", "*.gpg"),
    *(".aws/", ".azure/", ".docker/", ".gnupg/", ".kube/", ".ssh/", "gcloud/"),
)
"""Names of files and folders with secrets, as gitignore patterns."""
OURS = {
    "Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30}"),
    "Anthropic key": re.compile(r"\bsk-ant-[\w-]{20}"),
    "OpenAI key": re.compile(r"\bsk-(proj-|svcacct-)?[\w-]{32}"),
    "Google key": re.compile(r"\bAIza[\w-]{35}"),
    "netrc password": re.compile(r"(?i)\bmachine \S{1,256} login \S{1,256} password \S"),
    "secret in an address": re.compile(r"(?i)[?&;](api_?key|access_?token|token|key|secret|password|sig)=[^&\s\"']{8}"),
    "AWS secret key": re.compile(r"(?i)aws_secret\w{0,32} ?[=:] ?[\"']?[A-Za-z0-9/+]{40}\b"),
    "private key": re.compile(r"(?i)(client-key-data|private_key)[\"']? ?[:=] ?[\"']?(LS0t|-----BEGIN)"),
}
"""Forms that detect-secrets lacks, by what has them."""
RANDOM = ("Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector")
"""Detectors that digests and addresses set off."""
ASSIGNED = "KeywordDetector"
"""The detector of `password = "..."`, which prose and data set off."""
PLAIN = re.compile(r"[A-Za-z0-9_\-+]{32,}")
"""A value that may be random, if it has DIGITS and letters."""
DIGITS = 4


def named_secret(path: PurePath) -> bool:
    """Whether the name of a file, or of a folder that it is in, says that it has secrets."""
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(FILES).match_file(str(path).lower())


def secrets_of(lines: Iterable[str], *, assigned: bool) -> Iterator[tuple[int, str]]:
    """The number and the kind of each secret in the lines. assigned: whether a value that is assigned to a name such as
    `password` is one."""
    from detect_secrets.core.scan import scan_line

    with _detectors(() if assigned else (ASSIGNED,)):
        for number, line in enumerate(lines, 1):
            if "pragma: allowlist secret" in line or len(line) > LONGEST:
                continue
            kinds = [name for name, form in OURS.items() if form.search(line)]
            kinds = kinds or [found.type for found in scan_line(line)]
            if kinds:
                yield number, kinds[0]


LONGEST = 20_000
"""Characters of a line beyond which it is data."""


def secret_value(text: str, environment: Mapping[str, str]) -> str:
    """The kind of secret that a value or an argument is, or holds; "" for none."""
    if names := secrets_in(text, environment):
        return f"the value of ${names[0]}"
    name, assigned, value = text.rpartition("=")
    if assigned and is_secret(name.rpartition(".")[2]) and not name.endswith("_env") and _random(value):
        return f"a value of {name}"
    found = next(secrets_of([text], assigned=False), None)
    if found is not None:
        return f"a secret ({found[1]})"
    return "a secret (a random value)" if _random(value) else ""


def _random(value: str) -> bool:
    digits = sum(character.isdigit() for character in value)
    return PLAIN.fullmatch(value) is not None and DIGITS <= digits < len(value)


@contextmanager
def _detectors(without: Iterable[str]) -> Iterator[None]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class as detectors
    from detect_secrets.settings import transient_settings

    left_out = {*RANDOM, *without}
    names = sorted({one.__name__ for one in detectors().values()} - left_out)
    with transient_settings({"plugins_used": [{"name": name} for name in names]}):
        yield

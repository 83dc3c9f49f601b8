"""What `coa submit` sends of a folder."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from coa.errors import UserError
from jobs import cli
from jobs.sent import Parcel, parcel

ROOT = Path(__file__).parents[2]
PLANTED = (
    *(".env", ".env.local", ".netrc", "id_rsa", ".ssh/id_ed25519", "credentials.json", "kubeconfig", "secrets.yaml"),
    *(
        ".aws/credentials",
        ".npmrc",
        ".pypirc",
        ".git-credentials",
        ".htpasswd",
        "server.key",
        "certs/x.pem",
        "store.p12",
    ),
    *("terraform.tfstate", "prod.env", "token.txt", "service-account-1.json", ".docker/config.json"),
)


@dataclass(frozen=True)
class Settings:
    path: Path | None = None
    spec: str = ""
    nested: "Settings | None" = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, with more in it than a job needs."""
    files = {
        "mine.yaml": "tasks: {path: data/tasks.jsonl}\ntools: {file: tools.yaml}\n",
        "tools.yaml": "{search: {corpus: ./corpus}, world: agents}",
        "data/tasks.jsonl": '{"question": "My password = \\"x1y2z3\\" ?"}',
        "corpus/a.txt": "a",
        "corpus/b.log": "b",
        "corpus/.gitignore": "*.log\n!kept.log\n",
        "corpus/kept.log": "k",
        "corpus/deep/c.tmp": "c",
        ".rayignore": "*.tmp\n",
        "agents/__init__.py": "",
        "agents/chess.py": "import json\nfrom . import board\nfrom helper import x\n",
        "agents/board.py": "from agents.pieces import y\n",
        "agents/pieces/__init__.py": "y = 1\n",
        "agents/pieces/knight.py": "",
        "helper.py": "x = 1\n",
        "unused.py": "",
        "notes.md": "",
        "runs/demo/config.yaml": "",
        "models/m/config.json": "",
        **{name: f"planted {name}" for name in PLANTED},
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "corpus" / "out.txt").symlink_to("/etc/hostname")
    return tmp_path


def names(sent: Parcel) -> set[str]:
    return {str(path) for path in sent.files}


def test_what_settings_name_is_sent_and_what_that_names(folder: Path) -> None:
    settings = Settings(spec="of=mine.yaml", nested=Settings(path=Path("runs/demo/config.yaml")))
    settings = (settings, "corpus", "x" * 300, "\0")
    sent = parcel(folder, settings=settings, extensions=(), requirements=None, more=())
    assert names(sent) == {
        *("mine.yaml", "data/tasks.jsonl", "tools.yaml", "corpus/a.txt", "corpus/kept.log", "corpus/.gitignore")
    }
    assert sent.files[Path("tools.yaml")] == "named in mine.yaml"


def test_extensions_are_sent_with_what_they_import(folder: Path) -> None:
    sent = parcel(folder, settings=(), extensions=["agents.chess"], requirements=None, more=())
    modules = ("agents/__init__.py", "agents/chess.py", "agents/board.py", "helper.py")
    assert names(sent) == {*modules, "agents/pieces/__init__.py", "agents/pieces/knight.py"}


def test_the_imports_of_a_packages_modules_are_followed(folder: Path) -> None:
    (folder / "agents" / "__init__.py").write_text("from agents import other\n")
    (folder / "agents" / "other.py").write_text("import unused\n")
    sent = parcel(folder, settings=(), extensions=["agents"], requirements=None, more=())
    assert "unused.py" in names(sent)


def test_what_is_named_within_the_package_is_looked_through(folder: Path) -> None:
    for name, text in (("jobs/cli.py", ""), ("pyproject.toml", ""), ("jobs/mine.yaml", "key: sk-ant-" + "a" * 30)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(UserError, match=r"jobs/mine.yaml \(settings\) would be sent, and line 1 looks like a secret"):
        parcel(folder, settings=["jobs/mine.yaml"], extensions=(), requirements=None, more=())


def test_of_a_whole_folder_no_secret_and_nothing_of_the_clusters_is_sent(folder: Path) -> None:
    sent = parcel(folder, settings=(), extensions=(), requirements=None, more=[Path()])
    assert not names(sent) & {*PLANTED, "corpus/b.log", "corpus/deep/c.tmp", "corpus/out.txt"}
    assert not any(name.startswith(("runs", "models")) for name in names(sent))
    assert {"unused.py", "notes.md", "mine.yaml"} <= names(sent)


@pytest.mark.parametrize("name", PLANTED)
def test_a_secret_that_is_named_is_refused(folder: Path, name: str) -> None:
    for asked in ({"settings": [name], "more": ()}, {"settings": (), "more": [Path(name)]}):
        with pytest.raises(UserError, match="its name is that of a file with secrets"):
            parcel(folder, extensions=(), requirements=None, **asked)


def test_a_file_with_a_secret_in_it_is_refused_by_its_line(folder: Path) -> None:
    (folder / "mine.yaml").write_text("seed: 1\nmodels: {judge: {url: 'https://me:hunter22@host/v1'}}\n")
    with pytest.raises(
        UserError, match=r"mine.yaml \(settings\) would be sent, and line 2 looks like a secret"
    ) as told:
        parcel(folder, settings=["mine.yaml"], extensions=(), requirements=None, more=())
    assert "hunter22" not in str(told.value)


def test_what_is_not_there_or_outside_is_refused(folder: Path) -> None:
    for path, said in ((Path("none"), "no such file"), (Path("../x"), "no such file"), (Path("/etc"), "is not in")):
        with pytest.raises(UserError, match=said):
            parcel(folder, settings=(), extensions=(), requirements=None, more=[path])
    outside = parcel(folder, settings=["/etc/hostname", "..", ".", ""], extensions=["json"], requirements=None, more=())
    assert names(outside) == set()


def test_a_checkout_sends_the_package_as_it_is_in_git() -> None:
    sent = parcel(ROOT, settings=(), extensions=(), requirements=None, more=())
    listed = subprocess.run(
        ["git", "ls-files", "actors", "cluster", "coa", "jobs", "pyproject.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert names(sent) >= set(listed)
    assert not any("__pycache__" in name for name in names(sent))
    assert len(sent.lines()) == 2


def test_a_dry_run_lists_what_would_be_sent(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.yaml").write_text("tasks: {path: data/tasks.jsonl}\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COA_EXTENSIONS", raising=False)
    assert cli.main(["submit", "--dry-run", "--send", "notes.md", "train", "--recipe", "mine.yaml"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[2:] for line in out.splitlines()[1:]] == [
        ["data/tasks.jsonl", "(named", "in", "mine.yaml)"],
        ["mine.yaml", "(settings)"],
        ["notes.md", "(--send)"],
    ]

"""The files that `coa submit` sends: what the command needs of the current folder, and nothing else.

    the package     if the folder is a checkout of this project
    extensions      the modules that COA_EXTENSIONS names, and those of the folder that they import
    settings        the recipe, and the files and folders that its settings and the arguments name, and so on in these
    --send          whatever else

Folders are sent without what `.gitignore` and `.rayignore` name. A file with a secret is refused.
"""

import ast
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from cluster.remote.jobs import OF_THE_CLUSTER
from coa.errors import UserError
from coa.http.secrets import named_secret, secrets_of
from coa.reporting.readable import in_bytes

PACKAGE = ("actors", "cluster", "coa", "jobs")
PROJECT = "pyproject.toml"
NEVER_SENT = (*(f"/{name}" for name in OF_THE_CLUSTER), "/wandb", ".venv", ".git", "__pycache__", ".*_cache")
"""Files of a folder that are not sent, as gitignore patterns: the cluster's own folders, and large files."""
IGNORING = (".gitignore", ".rayignore")
DATA = (".jsonl", ".csv", ".tsv", ".txt", ".md", ".parquet")
"""Endings of files in whose text `password = ...` is no secret."""
SCANNED = 8 * 2**20
"""Bytes of a file that are looked through for secrets."""
LISTED = 20


@dataclass(slots=True)
class Parcel:
    """Files of a folder to send."""

    folder: Path
    files: dict[Path, str] = field(default_factory=dict)
    """Relative paths, each with the reason why it is sent."""

    def add(self, path: Path, why: str) -> bool:
        """Adds a file, or the files of a folder; returns whether it is in the folder and new."""
        inside = _inside(self.folder, path)
        if inside is None:
            return False
        before = dict(self.files)
        for each in [inside] if (self.folder / inside).is_file() else walked(self.folder, inside):
            if self.files.get(each, PACKAGE_SENT) == PACKAGE_SENT:
                self.files[each] = why  # what is named is the user's own, also within the package
        return self.files != before

    def lines(self) -> list[str]:
        """Lines that list what is sent, with sizes."""
        sizes = {path: (self.folder / path).stat().st_size for path in self.files}
        package = [path for path, why in self.files.items() if why == PACKAGE_SENT]
        others = sorted(set(self.files) - set(package))
        if not sizes:
            return ["no files are sent"]
        lines = [f"{in_bytes(sum(sizes.values()))} in {len(sizes)} file{'s' * (len(sizes) > 1)}"]
        if package:
            lines.append(f"  {in_bytes(sum(map(sizes.__getitem__, package))):>9}  {PACKAGE_SENT}, {len(package)} files")
        lines += [f"  {in_bytes(sizes[path]):>9}  {path} ({self.files[path]})" for path in others[:LISTED]]
        if len(others) > LISTED:
            rest = others[LISTED:]
            lines.append(f"  {in_bytes(sum(map(sizes.__getitem__, rest))):>9}  {len(rest)} more")
        return lines

    def check(self) -> None:
        """Raises UserError if one of the files has a secret."""
        for path, why in self.files.items():
            if why == PACKAGE_SENT:
                continue
            if named_secret(path):
                raise UserError(f"{path} ({why}) would be sent, and its name is that of a file with secrets")
            with (self.folder / path).open("rb") as file:
                text = file.read(SCANNED)
            lines = text.decode("utf-8", "replace").splitlines() if b"\0" not in text else []
            if found := next(secrets_of(lines, assigned=path.suffix not in DATA), None):
                raise UserError(
                    f"{path} ({why}) would be sent, and line {found[0]} looks like a secret: {found[1]}. Set it on the "
                    "cluster's nodes; if it is none, add `# pragma: allowlist secret` to the line"
                )

    def copy(self, folder: Path) -> None:
        for path in self.files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / path, folder / path)


PACKAGE_SENT = "the package"


def parcel(
    folder: Path, *, settings: Any, extensions: Sequence[str], requirements: Path | None, more: Iterable[Path]
) -> Parcel:
    """Collects the files of the folder that a command needs. settings: all that may name files: nested dataclasses,
    mappings and lists of texts and paths. Raises UserError for a file to send that is not there or that has a
    secret."""
    found = Parcel(folder)
    if (folder / "jobs" / "cli.py").is_file() and (folder / PROJECT).is_file():
        for path in (*PACKAGE, PROJECT):
            found.add(folder / path, PACKAGE_SENT)
    seen: set[Path] = set()
    for module in extensions:
        _add_module(found, module, seen)
    if requirements is not None:
        found.add(folder / requirements, "--requirements")
    _add_named(found, settings, "settings")
    for path in more:
        if not (folder / path).exists():
            raise UserError(f"--send {path}: there is no such file or folder")
        if not found.add(folder / path, "--send") and _inside(folder, folder / path) is None:
            raise UserError(f"--send {path} is not in {folder}")
    found.check()
    return found


def _inside(folder: Path, path: Path) -> Path | None:
    """The path relative to the folder; None for one that is outside of it, absolute or left to the cluster."""
    try:
        inside = Path(os.path.normpath(path)).relative_to(folder)
    except ValueError:
        return None
    return None if inside.parts and inside.parts[0] in OF_THE_CLUSTER else inside


def walked(folder: Path, within: Path) -> Iterator[Path]:
    """The files in a folder, without those that are ignored, have secrets by their name, or are links out of it."""
    from pathspec import GitIgnoreSpec

    rules: list[tuple[Path, Any]] = [(Path(), GitIgnoreSpec.from_lines(NEVER_SENT))]
    for at in (*reversed(within.parents), within):
        rules += _rules(folder, at)
    real = folder.resolve()

    def visit(at: Path, rules: list[tuple[Path, Any]]) -> Iterator[Path]:
        for entry in sorted(os.scandir(folder / at), key=lambda entry: entry.name):
            path = at / entry.name
            name = f"{path}/" if entry.is_dir() else str(path)
            if named_secret(Path(name)) or _ignored(name, rules) or not Path(entry).resolve().is_relative_to(real):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from visit(path, [*rules, *_rules(folder, path)])
            elif entry.is_file():
                yield path

    if (folder / within).is_dir():
        yield from visit(within, rules)


def _rules(folder: Path, at: Path) -> list[tuple[Path, Any]]:
    from pathspec import GitIgnoreSpec

    files = (folder / at / name for name in IGNORING)
    return [
        (at, GitIgnoreSpec.from_lines(file.read_text("utf-8", "replace").splitlines()))
        for file in files
        if file.is_file()
    ]


def _ignored(name: str, rules: Iterable[tuple[Path, Any]]) -> bool:
    """Whether the last rule that knows the path ignores it."""
    ignored = False
    for at, spec in rules:
        relative = name if at == Path() else name.removeprefix(f"{at}/")
        found = spec.check_file(relative).include
        ignored = ignored if found is None else found
    return ignored


def _add_module(found: Parcel, module: str, seen: set[Path]) -> None:
    """Adds a module of the folder, and those that it imports. seen: the files that were read."""
    base = found.folder.joinpath(*module.split("."))
    packages = [found.folder.joinpath(*module.split(".")[:n], "__init__.py") for n in range(1, module.count(".") + 1)]
    for file in (*packages, base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file() and file not in seen:
            seen.add(file)
            found.add(base if file == base / "__init__.py" else file, f"extension {module}")
            _add_imports(found, file, module, seen)


def _add_imports(found: Parcel, file: Path, module: str, seen: set[Path]) -> None:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except SyntaxError as error:
        raise UserError(f"{file.relative_to(found.folder)}: {error}") from error
    for node in nodes:
        match node:
            case ast.Import(names=names):
                imported = [alias.name for alias in names]
            case ast.ImportFrom(module=base, names=names, level=level):
                parts = package.split(".") if package else []
                above = parts[: len(parts) - level + 1] if level else []
                whole = ".".join([*above, *([base] if base else [])])
                imported = [whole, *(f"{whole}.{alias.name}" for alias in names)]
            case _:
                continue
        for name in imported:
            if name.partition(".")[0] not in PACKAGE and name.strip("."):
                _add_module(found, name, seen)


def _add_named(found: Parcel, value: Any, why: str) -> None:
    """Adds the files that a value names; of recipes and other files in YAML or JSON, also those that they name. A
    folder is named by a path: a word such as `train` may mean anything."""
    for text in _texts(value):
        for name in map(str.strip, (str(text), *str(text).split("="), *str(text).split(":"), *str(text).split(","))):
            path = found.folder / os.path.expanduser(name)
            if os.path.isdir(path):
                is_path = "/" in name or isinstance(text, Path)
                if not is_path or path.resolve() == found.folder.resolve():
                    continue
            elif not os.path.isfile(path):
                continue
            if found.add(path, why) and path.suffix in (".yaml", ".yml", ".json") and path.is_file():
                _add_named(found, _read(path), f"named in {path.name}")


def _texts(value: Any) -> Iterator[str | Path]:
    match value:
        case str() | Path():
            yield value
        case Mapping():
            for key, each in value.items():
                yield from _texts(key)
                yield from _texts(each)
        case list() | tuple() | set() | frozenset():
            for each in value:
                yield from _texts(each)
        case _ if is_dataclass(value):
            for one in fields(value):
                yield from _texts(getattr(value, one.name))
        case _:
            pass


def _read(path: Path) -> Any:
    import yaml

    try:
        text = path.read_text("utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return None

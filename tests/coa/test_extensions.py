"""Extensions that can't be loaded: one line that names them."""

import importlib.metadata
from pathlib import Path

import pytest

from coa import extensions
from coa.errors import UserError


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import coa.gone", "No module named 'coa.gone'"),
        ("raise ValueError('there is a tool x already')", "there is a tool x already"),
        ("1 +", "SyntaxError: invalid syntax (mine_0.py, line 1)"),
        ("{}['a']", "KeyError: 'a'"),
    ],
)
def test_what_an_extension_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / "mine_0.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(extensions.VARIABLE, "mine_0")
    with pytest.raises(UserError) as raised:
        extensions.load_extensions()
    assert str(raised.value) == f"COA_EXTENSIONS names 'mine_0': {said}"


def test_an_entry_point_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", "coa.gone", extensions.GROUP)
    monkeypatch.setattr(extensions, "installed", lambda: [entry])
    with pytest.raises(UserError, match=r"^the entry point 'mine' of coa\.extensions: No module named 'coa\.gone'"):
        extensions.load_extensions()


def test_what_is_installed_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(extensions, "entry_points", lambda group: looked.append(group) or [])
    extensions.installed.cache_clear()
    extensions.load_extensions()
    extensions.load_extensions()
    extensions.installed.cache_clear()
    assert looked == [extensions.GROUP]

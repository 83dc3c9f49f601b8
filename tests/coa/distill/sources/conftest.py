from pathlib import Path

import pytest

from tests.support.imported_runs import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)

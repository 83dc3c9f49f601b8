import asyncio
from pathlib import Path

import pytest

from actors.serving.plain import PlainModel
from tests.support.programs import chat_model, served


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def model(folder: Path) -> PlainModel:
    return asyncio.run(served(folder))

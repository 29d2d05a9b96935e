"""A model so small that its fleets are quick."""

import json
from pathlib import Path

import pytest

from tests.laws.tiny import TINY


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)

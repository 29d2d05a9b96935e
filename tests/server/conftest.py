"""What tests of servers share."""

import json
from pathlib import Path

import pytest

from tests.laws.tiny import TINY


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a small model."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TINY))
    return path

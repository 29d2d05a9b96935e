"""Traces for the tests: written by them, and the public extracts beside the repository."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXTRACTS = Path(__file__).parents[3] / "shared" / "data" / "traces"


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Path]:
    """Write text or bytes to a file and return its path."""

    def write(content: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(scope="session")
def extracts() -> Path:
    if not EXTRACTS.is_dir():
        pytest.skip(f"the extracts of public traces are not at {EXTRACTS}")
    return EXTRACTS


@pytest.fixture(scope="session")
def known(extracts: Path) -> dict[str, Any]:
    """What others measured in those extracts."""
    statistics: dict[str, Any] = json.loads((extracts / "stats.json").read_text())
    return statistics

"""Files of measurements: those that tests write, and the public tables if they are there."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TABLES = Path(__file__).parents[3] / "shared" / "data" / "kernels"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text to a file and return its path."""

    def written(text: str, name: str = "kernels_gemm.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    """Write columns, or rows, to a Parquet file and return its path."""

    def written(content: Mapping[str, Any] | Sequence[Mapping[str, Any]], name: str) -> Path:
        made = pa.table(content) if isinstance(content, Mapping) else pa.Table.from_pylist(list(content))
        pq.write_table(made, tmp_path / name)
        return tmp_path / name

    return written


@pytest.fixture(scope="session")
def tables() -> Path:
    if not TABLES.is_dir():
        pytest.skip(f"the public tables are not at {TABLES}")
    return TABLES

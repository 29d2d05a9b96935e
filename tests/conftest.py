"""Settings of all tests: one thread, one profile of properties; and a mark on the slow ones."""

import gc
import os
from pathlib import Path

import pytest

from ksim.foundation import process
from tests.properties import EXPLORING, load_profile
from tests.slow import SLOW

ROOT = Path(__file__).parent

# For processes that tests start, too.  Numerical libraries read theirs when they are loaded.  Their threads wait in
# busy loops: where processes share cores, that takes four times the CPU seconds.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Workers of pytest-xdist have one; output that is captured is as wide as that of a pipe.
os.environ.pop("COLUMNS", None)
load_profile()
if not EXPLORING:  # thousands of runs leave gigabytes behind
    # A collection looks through all that a session has loaded, and finds next to nothing.
    gc.set_threshold(50_000, 20, 100)
    process._MANY = 20_000_000  # nor do those that runs ask for


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules before `-m` selects among all."""
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Nor do those at the end, of which pytest makes some, and Python another."""
    gc.freeze()

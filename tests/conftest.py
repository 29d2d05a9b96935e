"""Settings of all tests: one thread, one profile of properties; and a mark on the slow ones."""

import gc
import os
import sys
from pathlib import Path

import pytest

from tests.properties import load_profile
from tests.slow import SLOW

ROOT = Path(__file__).parent

# For processes that tests start, too.  Numerical libraries read theirs when they are loaded.  Their threads wait in
# busy loops: where processes share cores, that takes four times the CPU seconds.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Workers of pytest-xdist have one; output that is captured is as wide as that of a pipe.
os.environ.pop("COLUMNS", None)
# So that bytecode is kept, whatever the shell says: each worker would compile all tests again, and each process that
# tests start all of ksim.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
load_profile()
# Python, and runs, would look for garbage among all that a session has loaded: `pytest_runtest_logfinish` does instead.
gc.disable()
#: After tests that left this many objects more than there were, those in cycles are freed.
MANY = 1_000_000


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules before `-m` selects among all."""
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Free what tests have left; what stays, modules and all they keep, is not looked through again."""
    if gc.get_count()[0] > MANY:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Nothing is collected at the end: pytest does so several times, and Python once more."""
    gc.freeze()

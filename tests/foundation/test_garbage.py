"""The garbage collector is as it was, whatever happens meanwhile, and what a pause leaves behind is found at last."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from ksim.foundation import process

ROOT = Path(process.__file__).parents[2]
CYCLES = """
import weakref
from ksim.foundation import process
class Circle:
    def __init__(self):
        self.itself = self
process._MANY = 1000
with process.paused():
    circle = Circle()
    left, others = weakref.ref(circle), [[] for _ in range(2000)]
    del circle
assert left() is not None
with process.paused():
    assert left() is None
assert len(others) == 2000
"""
FROZEN = """
import gc
from ksim.foundation import process
gc.freeze()
frozen = gc.get_freeze_count()
with process.paused():
    pass
assert gc.get_freeze_count() >= frozen > 0
"""
MADE = """
import gc
from ksim.foundation import process
found = []
gc.callbacks.append(lambda phase, about: found.append(phase))
with process.paused():
    kept = [[] for _ in range(100_000)]
    before = len(found)
assert len(found) == before
assert not gc.get_freeze_count()
"""


@pytest.fixture(autouse=True)
def _collecting():
    gc.enable()
    yield
    gc.disable()


def test_nothing_is_collected_meanwhile_and_all_is_as_before():
    assert gc.isenabled()
    with process.paused():
        assert not gc.isenabled()
        with process.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_in_a_pause_leaves_the_collector_on():
    with pytest.raises(ZeroDivisionError), process.paused():
        raise ZeroDivisionError
    assert gc.isenabled()


@pytest.mark.parametrize("code", [CYCLES, FROZEN, MADE], ids=["cycles", "frozen", "made"])
def test_cycles_are_found_before_a_later_pause_and_what_was_made_or_frozen_is_not_scanned(code):
    """In a process of its own: to look through all that a session of tests has loaded takes seconds."""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

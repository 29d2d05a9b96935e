"""The garbage collector is as it was, whatever happens meanwhile, and what a pause leaves behind is found at last."""

import gc
import subprocess
import sys
from contextlib import contextmanager
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


@contextmanager
def collections():
    """The generations that are looked through meanwhile."""
    found = []

    def note(phase, about):
        if phase == "start":
            found.append(about["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


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


def test_objects_made_in_a_pause_are_not_scanned_at_its_end():
    with collections() as found, process.paused():
        kept = [[] for _ in range(100_000)]
        before = len(found)
    after, kept = found[before:], len(kept)
    assert not after
    assert not gc.get_freeze_count()


@pytest.mark.parametrize("code", [CYCLES, FROZEN], ids=["cycles", "frozen"])
def test_cycles_are_found_before_a_later_pause_and_what_others_froze_stays_frozen(code):
    """In a process of its own: to look through all that a session of tests has loaded takes seconds."""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

"""Speed by counts that are the same on every machine: docs/evidence/speed.md#the-gate."""

import pytest

from benchmarks import gate
from ksim.engine import observer
from ksim.results import streaming

WORKLOADS = gate.workloads()
#: How many more lines four times the requests may take for each token, and a step of eight times the sequences.
FLAT, ABREAST = 1.05, 1.1
#: How much more memory twice the requests may take where they are streamed, once there are enough of them.
BOUNDED = 1.05


def test_every_workload_has_a_budget():
    assert gate.budgets().keys() == WORKLOADS.keys(), "write them anew: python -m benchmarks.gate --renew"


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_keeps_to_its_budget(name):
    budget, found = gate.budgets()[name], WORKLOADS[name].count()
    assert found <= budget["lines"] * gate.TOLERANCE, (
        f"{name} grew by {found / budget['lines'] - 1:.0%}, to {found:.1f} lines of Python for each of"
        f" {budget['per']} from {budget['lines']:.1f}; if it is worth that: python -m benchmarks.gate --renew")


def test_more_requests_take_no_more_lines_each():
    few, many = gate.steady().count(), gate.steady().larger(4).count()
    assert many <= few * FLAT, (
        f"an output token of four times the requests takes {many / few - 1:.0%} more lines: {many:.1f}, not {few:.1f}")


def test_a_step_takes_hardly_more_lines_for_more_sequences():
    few, many = gate.batch(16), gate.batch(128)
    assert many <= few * ABREAST, (
        f"a step of 128 sequences takes {many / few - 1:.0%} more lines than one of 16: {many:.1f}, not {few:.1f}")


def test_more_requests_hold_no_more_memory(monkeypatch):
    for module, name in ((observer, "ENOUGH"), (streaming, "_STEPS")):
        monkeypatch.setattr(module, name, 64)  # else it takes thousands of steps until any are written
    few, many = (gate.steady().larger(times).peak() for times in (2, 4))
    assert many <= few * BOUNDED, (
        f"twice the requests, streamed, hold {many / few - 1:.0%} more: {many / 1e6:.1f} MB, not {few / 1e6:.1f}")

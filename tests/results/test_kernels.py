import numpy as np
import pyarrow.compute as pc
import pytest
from attrs import evolve
from hypothesis import given

from ksim.flow.costs import ClockScaling
from ksim.flow.events import Stepped
from ksim.flow.log import Log
from ksim.flow.steps import BOUNDS, PricedBlock, StepCost
from ksim.results.history import History
from ksim.results.kernels import KernelUsage, families, kernel_table
from ksim.results.metrics import summarise
from tests.properties import examples

from . import by_hand, fabricate
from .strategies import logs


def table_of(history: History):
    return kernel_table(history, KernelUsage.of(history.steps))


def test_kernels_of_the_small_log():
    rows = {row["label"]: row for row in table_of(History(by_hand.small())).to_pylist()}
    assert rows["qkv"] == pytest.approx({
        "label": "qkv", "family": "gemm", "launches": 6, "seconds": 0.6, "hidden_seconds": 0.0, "gpu_seconds": 1.2,
        "run_share": 0.6 / 4.5, "busy_share": 0.4, "compute_share": 1.0, "memory_share": 0.0, "launch_share": 0.0,
        "communication_share": 0.0, "mean_waves": 1.5, "mean_idle_sms": 0.5, "flops": 600.0, "bytes": 24.0,
        "joules": 60.0, "static_joules": 120.0, "flops_share": 0.5, "bandwidth_share": 0.2, "eta": 2.5,
        "low_seconds": 0.48, "high_seconds": 0.72, "extrapolated_share": 0.0, "shapes": 1, "heaviest_shape": "8x8",
        "heaviest_launch": "128x128", "source": "sweep",
    })
    assert rows["attention"]["launches"] == 6
    assert rows["attention"]["seconds"] == pytest.approx(0.9)
    assert rows["attention"]["joules"] == pytest.approx(120.0)
    assert rows["host"]["seconds"] == pytest.approx(1.5)
    assert rows["idle"]["seconds"] == pytest.approx(1.5)
    assert rows["host"]["busy_share"] is None
    assert (rows["host"]["static_joules"], rows["idle"]["static_joules"]) == pytest.approx((300.0, 300.0))


def test_joules_of_the_small_log_asleep():
    """GPUs wait for the CPU for half a second before each step, and sleep for all of the first, and half of the others;
    there is nothing to do up to 1.0 and from 4.0."""
    rows = {row["label"]: row for row in table_of(History(by_hand.sleepy())).to_pylist()}
    assert rows["host"]["static_joules"] == pytest.approx(0.5 * 200 + 1.0 * 80)
    assert rows["idle"]["static_joules"] == pytest.approx(0.5 * 200 + 1.0 * 80)


def test_a_kernel_hidden_beside_another_takes_no_time_and_all_of_its_energy():
    rows = {row["label"]: row for row in table_of(History(by_hand.overlapped())).to_pylist()}
    assert [rows["sum"][name] for name in ("launches", "seconds", "hidden_seconds", "joules")] == pytest.approx(
        [4, 0.2, 0.2, 8.0])
    assert [rows["qkv"][name] for name in ("launches", "seconds", "hidden_seconds", "joules")] == pytest.approx(
        [4, 0.8, 0.0, 40.0])
    assert rows["sum"]["gpu_seconds"] == pytest.approx(2 * (0.2 + 0.2))
    assert rows["qkv"]["busy_share"] + rows["sum"]["busy_share"] == pytest.approx(1)
    assert rows["qkv"]["flops_share"] == pytest.approx(50 / 0.2 / 1000)


def test_most_time_comes_first():
    seconds = table_of(History(fabricate.log()))["seconds"].to_pylist()
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("log", [fabricate.log(), fabricate.log(count=30, rate=90, engines=2, ranks=2, stages=2),
                                 fabricate.pipelined()])
def test_counting_equals_unfolding_every_step(log):
    ranks = {built.engine: built.ranks for built in log.engines}
    expected: dict[str, np.ndarray] = {}
    for step in log.of(Stepped):
        for lane in step.step_costs:
            for span in lane:
                all_ranks = ranks[step.engine] * np.array([span.seconds, span.flops, span.bytes, span.joules])
                row = np.array([1, span.seconds, *all_ranks])
                expected[span.label] = expected.get(span.label, 0) + row
    names = ("launches", "seconds", "gpu_seconds", "flops", "bytes", "joules")
    found = {row["label"]: [row[name] for name in names] for row in table_of(History(log)).to_pylist()}
    assert found.keys() - expected.keys() == {"host", "idle"}
    for label, row in expected.items():
        assert found[label] == pytest.approx(row.tolist())


@examples(20)
@given(logs())
def test_all_time_is_accounted_for(log):
    history = History(log)
    table = table_of(history)
    stages = sum(built.stages for built in history.engines)
    assert pc.sum(table["seconds"]).as_py() == pytest.approx(stages * history.duration)
    energy = summarise(history)["energy_joules"]
    assert sum(row.joules + row.static for row in families(table)) == pytest.approx(energy)
    assert all(row.static >= 0 for row in families(table))
    if history.duration:
        assert pc.sum(table["run_share"]).as_py() == pytest.approx(1.0)
    if len(history.steps):
        assert pc.sum(table["busy_share"]).as_py() == pytest.approx(1.0)
    for row in table.to_pylist():
        if row["busy_share"] is not None:
            assert sum(row[f"{bound}_share"] for bound in BOUNDS) == pytest.approx(1.0)
            assert 0 <= row["flops_share"] <= 1.0 and 0 <= row["bandwidth_share"] <= 1.0


def test_steps_split_by_family_add_up_to_the_steps():
    log = fabricate.log(count=30, ranks=2, stages=2)
    history = History(log)
    names, seconds = KernelUsage.of(history.steps).seconds_by(lambda kind: kind.family)
    assert set(names) == {"gemm", "attention", "elementwise", "all-reduce"}
    expected = [sum(lane.seconds for lane in step.step_costs) for step in log.of(Stepped)]
    assert seconds.sum(axis=1) == pytest.approx(expected)


def test_joules_split_by_family_add_up_to_those_of_the_steps():
    history = History(fabricate.log(count=30, ranks=2, stages=2))
    names, joules = KernelUsage.of(history.steps).joules_by(lambda kind: kind.family)
    assert set(names) == {"gemm", "attention", "elementwise", "all-reduce"}
    assert joules.sum(axis=1) == pytest.approx(history.steps.joules)


def test_joules_follow_the_clock_of_their_step():
    """GEMMs take half of the 4 J that are the SMs' in the second of three steps."""
    timeline = StepCost.of([PricedBlock.of((by_hand.GEMM.replaced(sm_action_joules=4.0), by_hand.ATTENTION), 2)])
    log = by_hand.small()
    paced = [evolve(event, step_costs=(timeline,), scalings=(ClockScaling(1.0, 0.5 if event.index == 1 else 1.0),))
             if isinstance(event, Stepped) else event for event in log.events]
    history = History(Log(log.engines, paced))
    names, joules = KernelUsage.of(history.steps).joules_by(lambda kind: kind.family)
    assert joules[:, names.index("gemm")] == pytest.approx([20.0, 12.0, 20.0])
    assert joules.sum(axis=1) == pytest.approx(history.steps.joules)
    rows = {row["label"]: row for row in table_of(history).to_pylist()}
    assert rows["qkv"]["joules"] == pytest.approx(52.0)


def test_shares_of_the_peaks_follow_the_clock_of_their_step():
    """One step of three takes twice as long."""
    log = by_hand.small()
    paced = [evolve(event, scalings=(ClockScaling(2.0 if event.index == 1 else 1.0, 1.0),))
             if isinstance(event, Stepped) else event for event in log.events]
    rows, usual = ({row["label"]: row for row in table_of(History(each)).to_pylist()}
                   for each in (Log(log.engines, paced), log))
    for name in ("flops_share", "bandwidth_share"):
        assert rows["qkv"][name] == pytest.approx(usual["qkv"][name] * 3 / 4)


def test_a_run_without_steps_was_idle():
    rows = table_of(History(Log([by_hand.ENGINE]))).to_pylist()
    assert [(row["label"], row["seconds"]) for row in rows] == [("host", 0.0), ("idle", 0.0)]

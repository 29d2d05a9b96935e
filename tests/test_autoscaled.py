"""Public runs of fleets that were scaled, beside their simulation."""

import pytest
from attrs import evolve

from benchmarks import autoscaled, cold_starts
from benchmarks.autoscaled import FleetRun, Outcome, compared, findings, load, orders, ready, table
from ksim.scenario.scenario import Scenario


def built(*life):
    """An engine with a *life*, of which nothing else is looked at."""
    return type("Built", (), {"life": life})()


@pytest.mark.parametrize(("lives", "end", "mean", "most"), [
    ([[(0.0, "ready")]], 10.0, 1.0, 1), ([[(0.0, "gone"), (2.0, "starting"), (6.0, "ready")]], 10.0, 0.4, 1),
    ([[(0.0, "ready")], [(0.0, "gone"), (5.0, "ready"), (7.0, "draining"), (8.0, "gone")]], 10.0, 1.2, 2),
    ([[(0.0, "ready")], [(0.0, "gone"), (12.0, "ready")]], 10.0, 1.0, 1)])
def test_replicas_count_while_they_are_ready(lives, end, mean, most):
    assert ready([built(*life) for life in lives], end) == (pytest.approx(mean), most)


def test_cells_say_what_is_beyond_the_goal():
    assert compared(2.0, 4.0, 20.0) == "4, 2, **-50 %**" and compared(4.4, 4.0, 20.0) == "4, 4.4, +10 %"
    assert compared(3.0, float("nan")) == "-" and compared(0.0, 0.0) == "0, 0"
    assert compared(7086.0, 6110.0) == "6,110, 7,090, +16 %"


def test_orders_are_by_replicas():
    first, second = (FleetRun(name, "a load", Outcome(mean, 1), {}) for name, mean in (("WVA", 1.0), ("KEDA", 2.0)))
    found = {first: Outcome(3.0, 3), second: Outcome(2.5, 3)}
    assert [*orders({FleetRun("alone", "b", Outcome(1.0, 1), {}): Outcome(1.0, 1)})] == []
    assert [*orders(found)] == [("a load", "WVA < KEDA", "KEDA < WVA")]


def test_all_scenarios_can_be_read():
    for run in autoscaled.RUNS:
        assert Scenario.of(run.table).pools["decode"].autoscaler is not None


def test_start_ups_are_compared(tmp_path):
    """The planner sees passes, and asks for more than it had at the start."""
    trace = tmp_path / "trace.csv"
    lines = [f"{0.05 * number},4000,20" for number in range(400)]
    trace.write_text("\n".join(["arrival,prompt,output", *lines]))
    sheet = cold_starts.findings((5.0,), trace, 20.0).sheets[0]
    startup, met, events, *_ = sheet.rows[0]
    assert startup == "5" and 0 <= float(met) <= 100 and int(events) >= 0 and len(sheet.rows[0]) == len(sheet.columns)


def test_a_run_is_compared():
    """Requests that wait at the gateway for too long are the errors of a run, and clients hang up."""
    scaler = autoscaled.keda(2, None, inference_extension_flow_control_queue_size=1)
    small = table("llama-3.2-1b", scaler, 5, load([(40, 2)], (100, 0), (20, 20)), {"max_model_len": 4096})
    measured = Outcome(1.0, 1, 0.1, 10.0, 0)
    run = FleetRun("KEDA", "a load", measured, small)
    tables = findings([run, evolve(run, name="cut", end=1.5), evolve(run, name="hurried", timeout=0.06)]).sheets
    rows = {name: cells for name, *cells in tables[0].rows}
    assert rows["a load: KEDA"][:2] == ["1, 1, +0 %", "1, 1, +0 %"] and rows["a load: KEDA"][4] == "0, 0"
    assert rows["a load: cut"][0] == "1, 1, +0 %" and rows["a load: hurried"][4] != "0, 0"
    assert tables[1].rows == [("a load", "KEDA < cut < hurried", "KEDA < cut < hurried")]

"""The numbers of requests by workload, by model and by tenant, and the targets of each workload."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.cli.diff import _whole_runs
from ksim.flow.events import Arrived
from ksim.flow.log import Log
from ksim.results.groups import RequestGroups
from ksim.results.history import History
from ksim.results.metrics import good
from ksim.results.numbers import LatencyTargets
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream
from ksim.views.page.reading import SavedRun
from ksim.views.page.run import run_page
from ksim.views.run_directory import Whole
from ksim.views.tables import as_text
from tests.properties import examples
from tests.results.strategies import logs

MODELS = ("llama-3.2-1b", "qwen2.5-0.5b")
LENGTHS = {"prompt": {"kind": "uniform", "low": 50, "high": 900}, "output": {"kind": "uniform", "low": 1, "high": 40}}


def table(**more):
    load = {"arrivals": {"rate": 60.0}, "count": 25, **LENGTHS}
    mix = {"chat": {"tenant": "app", "slo": {"ttft": "12 ms"}, "synthetic": load},
           "code": {"tenant": "app", "model": MODELS[1], "slo": {"tpot": "3 ms"}, "synthetic": load},
           "rest": {"synthetic": load}}
    return {"model": MODELS[0], "gpu": "h200", "serve": {"max_model_len": 2048}, "slo": {"e2el": "80 ms"},
            "pools": {"a": {"role": "both"}, "b": {"role": "both", "model": MODELS[1]}},
            "workload": {"mix": mix}, **more}


@pytest.fixture(scope="module")
def run():
    return simulate(Scenario.of(table()))


def test_rows_add_up_to_the_run(run):
    summary = run.summary
    assert {*summary["workloads"]} == {"chat", "code", "rest"} and {*summary["models"]} == {*MODELS}
    assert {*summary["tenants"]} == {"app"}
    for key in ("completed", "failed", "total_input_tokens", "total_output_tokens", "request_goodput"):
        for rows in (summary["workloads"], summary["models"]):
            assert sum(row[key] for row in rows.values()) == pytest.approx(summary[key])
    assert summary["tenants"]["app"]["completed"] == 50


def test_each_request_is_judged_by_the_targets_of_its_workload(run):
    rows, summary = run.requests.to_pylist(), run.summary
    kept = {"chat": [row["ttft_s"] <= 12e-3 for row in rows if row["workload"] == "chat"],
            "code": [(row["tpot_s"] or 0) <= 3e-3 for row in rows if row["workload"] == "code"],
            "rest": [row["e2e_s"] <= 80e-3 for row in rows if row["workload"] == "rest"]}
    for name, flags in kept.items():
        assert summary["workloads"][name]["slo_attainment"] == pytest.approx(np.mean(flags))
    assert summary["slo_attainment"] == pytest.approx(np.mean([flag for flags in kept.values() for flag in flags]))
    assert all(0 < np.mean(flags) < 1 for flags in kept.values()), "targets that some miss tell most"
    targets = {name: {key: value for key, value in row.items() if key.startswith("slo_") and key.endswith("_ms")}
               for name, row in summary["workloads"].items()}
    assert targets == {"chat": {"slo_ttft_ms": 12.0}, "code": {"slo_tpot_ms": 3.0}, "rest": {"slo_e2el_ms": 80.0}}


def test_a_workload_without_targets_has_no_attainment():
    made = Scenario.of(table(slo={}))
    summary = simulate(made).summary
    assert summary["workloads"]["rest"]["slo_attainment"] is None
    assert None not in (summary["slo_attainment"], summary["models"][MODELS[0]]["slo_attainment"])
    bare = made.with_values({"workload.mix.code.slo": {}, "slo": {"ttft": "1 ms"}})
    summary = simulate(bare).summary
    assert summary["models"][MODELS[1]]["slo_attainment"] is summary["workloads"]["code"]["slo_attainment"] is None
    assert summary["workloads"]["rest"]["slo_attainment"] == 0


def test_the_report_the_comparison_and_the_page_have_the_rows(run, tmp_path):
    run.save(tmp_path / "run")
    saved = Whole.read(tmp_path / "run")
    shown = [as_text(run.report()), "".join(as_text(part) for part in _whole_runs(saved, saved)),
             run_page(SavedRun.read(tmp_path / "run")).html()]
    for text in shown:
        assert all(name in text for name in ("chat", "code", "rest", *MODELS, "app"))
        assert "share within targets" in text
    page = SavedRun.read(tmp_path / "run")
    late = dict(zip(page.requests["id"].tolist(), page.missed.tolist(), strict=True))
    kept = {row["id"]: row["e2e_s"] <= 80e-3 for row in run.requests.to_pylist() if row["workload"] == "rest"}
    assert {number: not late[number] for number in kept} == kept


def test_a_run_of_one_workload_has_none_of_it(tmp_path):
    made = Scenario.of({**table(), "pools": {}, "workload": {"synthetic": {
        "arrivals": {"rate": 60.0}, "count": 9, "tenants": {"a": 1.0}, **LENGTHS}}})
    run = simulate(made)
    assert not {"workloads", "models", "tenants"} & run.summary.keys()
    assert not {"workload", "model"} & {*run.requests.column_names}
    assert not {"workloads", "models", "tenants"} & stream(made, tmp_path / "run").summary.keys()


def test_tenants_of_a_gateway_keep_its_numbers():
    counts = simulate(Scenario.of(table(flow_control="queue_limit"))).summary["tenants"]["app"]
    assert counts["requests"] == counts["attempts"] == 50 and counts["mean_ttft_ms"] > 0


@given(logs(), some.lists(some.sampled_from(["", "a", "b"]), min_size=1, max_size=9),
       some.lists(some.floats(1e-3, 5.0), min_size=3, max_size=3))
@examples(40)
def test_parts_of_a_run_add_up_and_targets_are_of_their_workload(log, names, limits):
    """Whatever the run: what the rows of two halves have is what those of the whole have."""
    named = Log(log.engines)
    named.mixed = True
    for event in log.events:
        named.add(evolve(event, request=evolve(event.request, workload=names[event.request.id % len(names)]))
                  if isinstance(event, Arrived) else event)
    history = History(named)
    targets = LatencyTargets(ttft=limits[0], workloads={"a": LatencyTargets(e2el=limits[1], tpot=limits[2])})
    within, called = good(history, targets), history.requests.names("workload")
    assert (within[called != "a"] == good(history, LatencyTargets(ttft=limits[0]))[called != "a"]).all()
    assert (within[called == "a"] == good(history, targets.workloads["a"])[called == "a"]).all()
    whole, halves = RequestGroups(targets), RequestGroups(targets)
    everything = np.ones(len(history.requests), bool)
    whole.add(history, everything)
    for half in (np.arange(len(everything)) % 2 == 0, np.arange(len(everything)) % 2 == 1):
        halves.add(history, half)
    one, other = whole.summary(history.duration), halves.summary(history.duration)
    assert one.keys() == other.keys() and {*one.get("workloads", {})} == {*called.tolist()} - {""}
    for name, row in one.get("workloads", {}).items():
        assert other["workloads"][name] == pytest.approx(row, nan_ok=True)

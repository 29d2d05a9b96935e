"""What routers see of engines: when it was true, and that it never depends on how the engines are played."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.report.result import Result
from tests.laws.ahead import both, serves, workloads
from tests.laws.happenings import facts
from tests.laws.looking import NOTED
from tests.laws.tiny import TINY
from tests.properties import examples

LOOKING, COMPARING = "tests.laws.looking:Looking", "tests.laws.looking:Comparing"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return path


#: Delayed or lost, or as they are.
settings = st.fixed_dictionaries({
    "scrape_interval": st.sampled_from(["0 s", "1 ms", "7 ms", "50 ms"]),
    "delay": st.sampled_from(["0 s", "0 s", "0.3 ms", "20 ms"]), "loss": st.sampled_from([0, 0, 0.3])})


def noted(result: Result) -> list:
    """What the routers of the latest run noted."""
    found = [*NOTED]
    NOTED.clear()
    return found


@given(serve=serves, workload=workloads, signals=settings, seed=st.integers(0, 1000))
@examples(18)
def test_what_is_seen_does_not_depend_on_how_engines_are_played(model, serve, workload, signals, seed):
    serve = {**serve, "data_parallel_size": 3, "prefix_cache": "vllm"}
    scenario = {"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                "serve": serve, "signals": signals, "nodes": 1, "router": LOOKING}
    NOTED.clear()
    skipped, stepped = both(scenario)
    seen = noted(stepped)
    half = len(seen) // 2
    assert sorted(map(repr, seen[:half])) == sorted(map(repr, seen[half:]))
    assert [row for row in seen[:half] if len(row) == 2] == [row for row in seen[half:] if len(row) == 2]
    assert facts(skipped.log) == facts(stepped.log)


@given(serve=serves, workload=workloads, seed=st.integers(0, 1000))
@examples(12)
def test_signals_without_delay_show_what_is_true(model, serve, workload, seed):
    scenario = {"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                "serve": {**serve, "data_parallel_size": 3}, "signals": {"scrape_interval": 0}, "nodes": 1,
                "router": COMPARING}
    NOTED.clear()
    both(scenario)
    for row in NOTED:
        if len(row) == 2 and isinstance(row[0], tuple):
            assert row[0] == row[1]

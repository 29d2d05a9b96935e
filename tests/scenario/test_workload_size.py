"""How long a workload is, without running it."""

import gzip

import pytest

from ksim.foundation.errors import DataError
from ksim.scenario.model_card import WorkloadSize
from ksim.scenario.scenario import Scenario


def scenario(workload):
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "workload": workload})


def replay(path, **more):
    return scenario({"replay": {"path": str(path), **more}})


def trace(path, rows, packed=False):
    text = "arrival,prompt,output\n" + "".join(f"{row}.0,100,{1 + row % 10}\n" for row in range(rows))
    (gzip.open if packed else open)(path, "wt").write(text)
    return path


def test_made_up_requests_are_counted_and_their_outputs_sampled():
    found = WorkloadSize.of(scenario({"synthetic": {"count": 70_000, "arrivals": {"process": "burst"},
                                           "prompt": {"kind": "fixed", "value": 5},
                                           "output": {"kind": "uniform", "low": 100, "high": 300}}}))
    assert found.requests == 70_000 and found.tokens == pytest.approx(200 * 70_000, rel=0.05)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("rows", "more"), [
    (1, {}), (999, {}), (1000, {}), (1001, {}), (5000, {}), (5000, {"limit": 30}), (5000, {"limit": 4000}),
    (5000, {"rate": 3.0, "spread": True}), (5000, {"start": "100 s", "end": "200 s"}), (5000, {"end": "2 s"}),
])
def test_the_requests_of_a_trace_are_counted(rows, more, packed, tmp_path):
    chosen = replay(trace(tmp_path / "t.csv", rows, packed), **more)
    requests = list(chosen.workload.requests(0))
    found = WorkloadSize.of(chosen)
    assert (found.requests, found.tokens) == (len(requests), sum(request.output for request in requests))


def test_the_span_is_that_of_recorded_times(tmp_path):
    path = trace(tmp_path / "t.csv", 50)
    assert WorkloadSize.of(replay(path)).span == 49
    assert WorkloadSize.of(replay(path, time_scale=2.0, limit=11)).span == 20
    assert WorkloadSize.of(replay(path, rate=3.0)).span == 0


def test_measuring_an_unreadable_trace_raises_its_error(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,1,x\n")
    with pytest.raises(DataError, match=r"t.csv:2: output is 'x'"):
        WorkloadSize.of(replay(tmp_path / "t.csv"))


@pytest.mark.parametrize(("found", "is_long"), [
    (WorkloadSize(50_000, 10_000_000), False), (WorkloadSize(50_001, 1), True), (WorkloadSize(1, 10_000_001), True)])
def test_many_requests_or_tokens_make_a_run_long(found, is_long):
    assert found.is_long is is_long

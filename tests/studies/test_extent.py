"""How long a workload is, without running it."""

import gzip
from itertools import islice

import pytest

from ksim.studies import extent as module
from ksim.studies.extent import Extent, extent
from ksim.studies.scenario import Scenario


def scenario(workload):
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "workload": workload})


def replay(path, **more):
    return scenario({"replay": {"path": str(path), **more}})


def trace(path, rows, packed=False):
    text = "arrival,prompt,output\n" + "".join(f"{row}.0,100,{1 + row % 10}\n" for row in range(rows))
    (gzip.open if packed else open)(path, "wt").write(text)
    return path


def test_made_up_requests_are_counted_and_their_outputs_sampled():
    found = extent(scenario({"synthetic": {"count": 70_000, "arrivals": {"process": "burst"},
                                           "prompt": {"kind": "fixed", "value": 5},
                                           "output": {"kind": "uniform", "low": 100, "high": 300}}}))
    assert found.requests == 70_000 and found.tokens == pytest.approx(200 * 70_000, rel=0.05)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("rows", "more"), [
    (1, {}), (999, {}), (1000, {}), (1001, {}), (5000, {}), (5000, {"limit": 30}), (5000, {"limit": 4000}),
    (5000, {"rate": 3.0, "spread": True}), (5000, {"start": 100, "end": 200}), (5000, {"end": 2}),
])
def test_the_rows_of_a_trace_are_counted_by_its_lines(rows, more, packed, tmp_path):
    chosen = replay(trace(tmp_path / "t.csv", rows, packed), **more)
    requests = list(chosen.workload.requests(0))
    found = extent(chosen)
    assert found.requests == pytest.approx(len(requests), rel=0.002)
    assert found.tokens == pytest.approx(sum(request.output for request in requests), rel=0.002)


def test_a_long_trace_is_not_read_as_rows(tmp_path, monkeypatch):
    taken = []

    def counted(rows, most):
        for row in islice(rows, most):
            taken.append(row)
            yield row

    monkeypatch.setattr(module, "islice", counted)
    assert extent(replay(trace(tmp_path / "t.csv", 5000))).requests == pytest.approx(5000, abs=5)
    assert len(taken) == module.SAMPLE


@pytest.mark.parametrize("text", ["", "arrival,prompt,output\n", "arrival,prompt,output\n0,1,x\n", "a,b\n1,2\n"])
def test_of_a_trace_that_cannot_be_read_nothing_is_known(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    assert extent(replay(tmp_path / "t.csv")) == extent(replay(tmp_path / "none.csv")) == Extent(0, 0)


@pytest.mark.parametrize(("found", "is_long"), [
    (Extent(50_000, 10_000_000), False), (Extent(50_001, 1), True), (Extent(1, 10_000_001), True)])
def test_many_requests_or_tokens_make_a_run_long(found, is_long):
    assert found.is_long is is_long

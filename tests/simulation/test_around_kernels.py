"""What host, launches and clocks make of whole runs."""

from typing import Any

import numpy as np
import pytest

from ksim.flow.costs import ClockScaling
from ksim.flow.events import Stepped
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import host_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import play
from ksim.views.result import Result
from tests.scenario.tables import TABLE
from tests.specs.hosts import as_toml, host


def serve(*requests: Request, model: str = "llama-3.1-8b", host: str = "default", **settings: Any) -> Result:
    table = {**TABLE, "model": model, "gpu": "h200", "host": host, "serve": {"max_model_len": 16384, **settings}}
    return play(Deployment.of(Scenario.of(table)), requests)


def one(prompt: int, output: int, number: int = 0, arrival: float = 0.0, **more: Any) -> Request:
    return Request(number, arrival, prompt, output, **more)


def tpot(result: Result) -> float:
    return float(np.median(result.history.requests.tpot))


@pytest.fixture
def free(tmp_path) -> str:
    """A host that costs nothing."""
    path = tmp_path / "free.toml"
    path.write_text(as_toml(host()))
    return str(path)


def test_a_small_model_is_bound_by_its_host_even_with_graphs(free):
    """A step of a billion parameters takes the GPU 1.2 ms; a turn of the engine's loop takes 1.6."""
    costs = host_of("default")
    turn = costs.core.making(1, 0, workers=1) + costs.worker.preparing(1) + costs.worker.replay + costs.core.taking(1)
    assert tpot(serve(one(100, 50), model="llama-3.2-1b")) == pytest.approx(turn, rel=0.02)
    assert tpot(serve(one(100, 50), model="llama-3.2-1b", host=free)) < 0.8 * turn


def test_a_large_model_hides_its_host_if_it_schedules_ahead(free):
    ahead, behind = (tpot(serve(one(100, 50), async_scheduling=ahead)) for ahead in (True, False))
    assert ahead == pytest.approx(tpot(serve(one(100, 50), host=free)), rel=0.03)
    assert behind > ahead + 1e-3


def test_without_graphs_the_cpu_launches_slower_than_the_gpu_runs():
    """32 layers of ten kernels and more, 36 us each, for 5 ms of GPU time."""
    assert tpot(serve(one(100, 50))) < 6e-3
    assert tpot(serve(one(100, 50), enforce_eager=True)) == pytest.approx(13e-3, rel=0.05)


def test_a_prompt_beyond_the_largest_graph_keeps_decodes_waiting_for_its_launches():
    """Of 600 tokens, launched kernel by kernel: 14 ms; of 500, in pieces: 7."""
    pieces, kernels = (serve(one(100, 60), one(new, 1, 1, arrival=0.1)) for new in (500, 600))
    waits = [max(run.history.requests.gaps) for run in (pieces, kernels)]
    assert waits[1] - waits[0] > 1e-3
    # Even prompts that are cheap on the GPU are not cheap to launch.
    steps = {step.batch.tokens: step for step in kernels.log.of(Stepped)}
    assert steps[601].step_costs[0].launch == "compiled code" and steps[601].step_costs[0].launch_seconds > 12e-3


def test_a_lone_prompt_runs_cool_and_a_saturated_server_does_not():
    lone = serve(one(1000, 1))
    assert [step.scalings for step in lone.log.of(Stepped)] == [(ClockScaling(),)]
    burst = serve(*[one(8000, 1, number) for number in range(8)])
    scalings = [step.scalings[0].time for step in burst.log.of(Stepped)]
    assert 1.05 < scalings[-2] < 1.25
    # What is clocked takes longer; what waits for memory does not.
    slow = next(step for step in burst.log.of(Stepped) if step.scalings[0].time > 1.05)
    cost = slow.step_costs[0]
    assert slow.end - slow.start == pytest.approx(cost.seconds_at(slow.scalings[0]))
    assert 0.5 * cost.seconds < cost.compute_bound < cost.seconds


def test_cached_tokens_are_not_free():
    """A hundred new tokens after 8,000 cached ones: every block is looked up, and attention reads them."""
    names = [("shared", i) for i in range(500)]
    warm = one(8001, 1, 0, chunks=names)
    hit = one(8100, 1, 1, arrival=2.0, chunks=[*names, *[("own", i) for i in range(10)]])
    alone = serve(one(100, 1)).history.requests.ttft[0]
    result = serve(warm, hit).history.requests
    assert result.cached[1] == 8000
    assert alone + 2e-3 < result.ttft[1] < 0.3 * result.ttft[0]


def test_requests_sent_together_do_not_start_together():
    """The engine wakes up with the first; the others come while it does, or wait for the next step."""
    result = serve(*[one(100, 2, number) for number in range(60)])
    admitted = sorted(set(result.history.requests.admitted.tolist()))
    assert len(admitted) == 2
    steps = list(result.log.of(Stepped))
    assert 2 <= len(steps[0].batch.chunks) <= 15

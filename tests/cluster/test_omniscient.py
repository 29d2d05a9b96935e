"""What the omniscient router foresees comes true, if nobody comes after."""

import json

import pytest

from ksim import Scenario, simulate
from ksim.cluster.forecast import forecast, models_of
from ksim.flow.batch import Batch
from ksim.flow.request import Request
from ksim.scheduling.job import Job
from tests.cluster.idle import built, idle_engines
from tests.laws.tiny import TINY

#: Arrival in ms, prompt, output; all but the first go to an engine that is busy.
ROWS = [(0, 900, 60), (1, 3000, 10), (2, 200, 80), (3, 2500, 30), (40, 1200, 20)]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def result(model, rows, router, folder, **serve):
    path = folder / "trace.csv"
    lines = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(f"{at / 1e3},{prompt},{output}"
                                                                  for at, prompt, output in rows)]
    path.write_text("\n".join(lines) + "\n")
    return simulate(Scenario.of({
        "model": str(model), "gpu": "h100", "router": router, "workload": {"replay": {"path": str(path)}},
        "serve": {"data_parallel_size": 2, "max_num_batched_tokens": 1024, **serve}}))


@pytest.fixture
def seen(monkeypatch):
    """What is foreseen, by request and engine."""
    found = {}

    def noted(engine, request, *rest):
        found[request.id, engine.number] = forecast(engine, request, *rest)
        return found[request.id, engine.number]

    monkeypatch.setattr("ksim.cluster.routers.omniscient.forecast", noted)
    return found


def assert_the_last_one_is_foreseen(seen, requests):
    foreseen = seen[len(requests.arrival) - 1, int(requests.engine[-1])]
    assert foreseen.first - requests.arrival[-1] == pytest.approx(requests.ttft[-1], rel=0.15, abs=1e-3)
    assert foreseen.last - requests.arrival[-1] == pytest.approx(requests.e2e[-1], rel=0.1, abs=1e-3)


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("count", range(1, len(ROWS) + 1))
def test_the_last_request_gets_its_tokens_as_foreseen(model, tmp_path, seen, count, async_scheduling):
    assert_the_last_one_is_foreseen(seen, result(
        model, ROWS[:count], "omniscient", tmp_path, async_scheduling=async_scheduling).history.requests)


@pytest.mark.parametrize("count", [1, 2])
def test_an_end_at_max_model_len_is_foreseen(model, tmp_path, seen, count):
    """The second request has a sequence slot once the first has come so far."""
    assert_the_last_one_is_foreseen(seen, result(
        model, [(0, 900, 400), (40, 900, 300)][:count], "omniscient", tmp_path, data_parallel_size=1, max_num_seqs=1,
        max_model_len=930).history.requests)


@pytest.mark.parametrize("before", [1, 2.75])
@pytest.mark.parametrize("async_scheduling", [True, False])
def test_a_request_begins_when_another_has_its_last_token(model, tmp_path, seen, async_scheduling, before):
    """So many ms *before* that, its blocks are free, or held for the token in flight; a third request decodes on."""
    rows, serve = [(0, 100, 400), (0, 900, 30)], {
        "data_parallel_size": 1, "num_gpu_blocks_override": 100, "max_model_len": 1024,
        "async_scheduling": async_scheduling}
    end = 1e3 * float(result(model, rows, "omniscient", tmp_path, **serve).history.requests.e2e[1])
    assert_the_last_one_is_foreseen(seen, result(
        model, [*rows, (round(end - before, 3), 900, 20)], "omniscient", tmp_path, **serve).history.requests)


def test_an_engine_that_waits_for_kv_goes_on_no_earlier_than_it_is_asked():
    """Its last turn began at 0 s; what waits there is before a later request, too."""
    engine = built({"router": "omniscient"}).engines[0]
    engine.scheduler.add(Job.of(Request(0, 0.0, prompt=900, output=60), 0, engine.scheduler.cache.block_tokens))
    models = models_of([engine])
    first, later = (forecast(engine, Request(1, now, prompt=900, output=20), models[engine.number], {}, now)
                    for now in (0.0, 5.0))
    assert (later.first - 5, later.last - 5, later.delays) == pytest.approx((first.first, first.last, first.delays))


def test_it_sees_what_is_to_come(model, tmp_path):
    """Both engines have one request; the one with little left gets the third, whichever was sent more tokens."""
    rows = [(0, 2000, 20), (0, 500, 400), (60, 100, 300)]
    requests = result(model, rows, "omniscient", tmp_path).history.requests
    assert requests.engine[0] != requests.engine[1]
    assert requests.engine[2] == requests.engine[0]


def test_step_models_are_near_the_timers():
    engine = idle_engines()[0]
    (model,) = {id(model): model for model in models_of(idle_engines()).values()}.values()
    for tokens, before, decodes in ((700, 0, 0), (1500, 3000, 13), (0, 0, 50), (33, 500, 200)):
        chunks = [(tokens, before)] if tokens else []
        batch = Batch.of(*chunks, *[(1, 800)] * decodes)
        assert model.seconds(tokens, before, decodes, 800 * decodes)[0] == pytest.approx(
            engine.timers[0].summarize(batch).seconds, rel=0.1)
    assert model.prefill(30000, 0) > model.prefill(9000, 0) > 0


@pytest.mark.parametrize("more", [{"detail": "rank", "ranks": {"slow": [{"gpu": 0}]}}, {"serve": {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                           "acceptance": {"name": "geometric", "rate": 0.7}}}}])
def test_all_engines_can_be_foreseen(model, more):
    """Of requests that come at once, the second knows of the first, whatever the engines are made of."""
    serve = {"data_parallel_size": 2, **more.get("serve", {})}
    routing = simulate(Scenario.of({
        "model": str(model), "gpu": "h100", "router": "omniscient", "workload": {"synthetic": {
            "count": 2, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 900},
            "output": {"kind": "fixed", "value": 8}}}, **more, "serve": serve})).routing.to_pylist()
    assert [row["engine"] for row in routing] == [0, 1]
    assert routing[1]["score"][0] < routing[1]["score"][1]


@pytest.mark.parametrize("count", range(2, len(ROWS) + 1))
def test_what_a_request_costs_others_is_what_they_lose(model, tmp_path, seen, count):
    with_it = result(model, ROWS[:count], "omniscient", tmp_path).history.requests
    foreseen = seen[count - 1, int(with_it.engine[-1])].delays
    without = result(model, ROWS[:count - 1], "omniscient", tmp_path).history.requests
    lost = float((with_it.e2e[:-1] - without.e2e).sum())
    assert foreseen == pytest.approx(lost, rel=0.3, abs=4e-3)

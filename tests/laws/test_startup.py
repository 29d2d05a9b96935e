"""What every start-up keeps to: a start is the sum of its parts, and having more there already is never slower."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scenario.startup import engine_load, startup_of
from ksim.specs.startup import EngineLoad, Startup, seconds
from tests.scenario.tables import TABLE

STARTUPS = {name: startup_of(name) for name in catalog.entries("startup")}
#: Paths from which a process reads its weights.
STORAGES = ("network", "disk", "page_cache", "peer")

engines = st.builds(
    EngineLoad, weights=st.floats(1e8, 1e12), layers=st.integers(1, 128), vocabulary=st.integers(1, 300_000),
    gpus=st.sampled_from((1, 2, 8)), experts=st.booleans(), compiled=st.booleans(), graphs=st.integers(0, 150),
    read=st.floats(0, 0.1), deep_gemm=st.booleans())
startups = st.builds(
    lambda startup, **settings: evolve(startup, download=False, **settings), st.sampled_from([*STARTUPS.values()]),
    mode=st.sampled_from(("process", "snapshot", "sleep_1", "sleep_2", "measured")), weights=st.sampled_from(STORAGES),
    image=st.sampled_from(("on_node", "pull", "stream")), compile_cache=st.sampled_from(("warm", "cold")))


def named(startup: Startup, engine: EngineLoad) -> dict[str, float]:
    return {part.name: part.seconds for part in startup.parts(engine)}


@given(startups, engines)
def test_a_start_is_the_sum_of_its_parts_and_bytes_take_their_time_on_their_path(startup, engine):
    parts = startup.parts(engine)
    assert len({part.name for part in parts}) == len(parts)
    assert seconds(parts) == pytest.approx(sum(part.seconds for part in parts)) and all(
        part.seconds >= 0 for part in parts)
    for part in parts:
        assert part.path or not part.bytes
        if part.path:
            rate = startup.paths.of(part.path, engine.gpus)
            assert part.seconds == pytest.approx(part.bytes / rate)


@given(startups, engines, st.floats(1, 10))
def test_more_bytes_layers_or_graphs_are_never_faster(startup, engine, more):
    for larger in (evolve(engine, weights=engine.weights * more, read=engine.read * more),
                   evolve(engine, layers=engine.layers + int(more)), evolve(engine, graphs=engine.graphs + int(more))):
        assert seconds(startup.parts(larger)) >= seconds(startup.parts(engine)) * (1 - 1e-12)


@given(startups, engines)
def test_what_is_there_already_is_never_slower(startup, engine):
    def takes(**settings):
        return seconds(evolve(startup, **settings).parts(engine))

    assert takes(compile_cache="warm") <= takes(compile_cache="cold")
    assert takes(weights="page_cache") <= takes(weights="disk")
    assert takes(image="on_node") <= min(takes(image="pull"), takes(image="stream"))
    eager = evolve(engine, compiled=False, graphs=0)
    assert seconds(startup.parts(eager)) <= takes()


@given(startups, engines)
def test_an_engine_that_wakes_from_level_1_reads_no_weights_from_storage(startup, engine):
    woken = evolve(startup, mode="sleep_1").parts(engine)
    assert [(part.path, part.bytes) for part in woken if part.path] == [("host", engine.weights)]
    again = evolve(startup, mode="sleep_2").parts(engine)
    assert [(part.path, part.bytes) for part in again if part.path] == [(startup.weights, engine.weights)]


@given(startups, engines, engines)
def test_switching_models_is_to_put_one_to_sleep_and_to_wake_the_other(startup, engine, before):
    assert seconds(startup.switch(engine, before)) == pytest.approx(
        seconds(startup.sleep(before)) + seconds(startup.parts(engine)))
    assert bool(startup.sleep(before)) == (startup.mode not in ("sleep_2", "snapshot"))


@given(startups, engines)
def test_a_start_that_was_measured_takes_as_long_for_any_engine(startup, engine):
    assert seconds(evolve(startup, mode="measured", ready="98 s").parts(engine)) == 98.0


@pytest.mark.parametrize("name", STARTUPS)
def test_every_file_says_where_its_figures_are_from(name):
    assert len(catalog.load("startup", name)["source"]) > 40


@pytest.mark.parametrize(("options", "problem"), [
    ({"mode": "hibernate"}, "mode"), ({"node": 90}, "unit"), ({"nodes": "90 s"}, "unknown key"),
    ({"paths": {"disk": "2 GB"}}, "B/s"), ({"paths": {"disk": "0 B/s"}}, "disk"), ({"state_layer": 2}, "state_layer"),
    ({"weights": "peer", "download": True}, "download"), ({"rest": "-1 s"}, "rest"),
])
def test_bad_settings_are_refused_by_name(options, problem):
    with pytest.raises(ConfigError, match=problem):
        startup_of(Choice("default", options))
    with pytest.raises(KsimError, match="no startup named 'nope'"):
        startup_of("nope")


def loaded(**serve) -> EngineLoad:
    return engine_load(Deployment.of(Scenario.of({**TABLE, "model": "llama-3.1-8b", "gpu": "h100",
                                                  "engine": "vllm-0.22", "serve": serve})))


def test_an_engine_loads_what_its_settings_say():
    usual = loaded()
    assert (usual.weights, usual.layers, usual.vocabulary) == (pytest.approx(16.06e9, rel=1e-3), 32, 128256)
    assert (usual.graphs, usual.compiled) == (102, True)  # 51 sizes, full and piecewise
    eager = loaded(enforce_eager=True)
    assert (eager.graphs, eager.compiled) == (0, False)
    assert loaded(cudagraph_capture_sizes=[1, 2, 4]).graphs == 6
    assert loaded(tensor_parallel_size=2).read == pytest.approx(usual.read / 2, rel=0.01)
    assert (loaded(pipeline_parallel_size=2).layers, loaded(pipeline_parallel_size=2).gpus) == (16, 2)
    assert loaded(quantization="fp8").weights < 0.6 * usual.weights
    assert loaded(quantization="fp8_block").deep_gemm and not usual.deep_gemm


def test_parts_that_an_engine_does_not_have_take_no_time():
    startup = startup_of("default")
    assert {"dynamo", "compile", "capture"} <= named(startup, loaded()).keys()
    assert not {"dynamo", "compile", "capture"} & named(startup, loaded(enforce_eager=True)).keys()
    assert named(startup, loaded(quantization="fp8_block"))["deepgemm_warmup"] > 0


def test_qwen3_32b_from_a_snapshot_starts_in_18_seconds():
    """llm-d's guide: 278 s cold and 18 s from a snapshot on GKE, to which these figures were fitted."""
    engine = engine_load(Deployment.of(Scenario.of({**TABLE, "model": "qwen3-32b", "gpu": "h100",
                                                    "engine": "vllm-0.22", "serve": {}})))
    assert seconds(startup_of("gke").parts(engine)) == pytest.approx(278, rel=0.05)
    snapshot = startup_of(Choice("gke", {"mode": "snapshot", "image": "on_node"}))
    assert seconds(snapshot.parts(engine)) == pytest.approx(18, rel=0.02)

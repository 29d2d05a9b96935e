"""What routers see of engines: when it was true, and that it never depends on how the engines are played."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.cluster.cluster import RemoteReplica
from ksim.cluster.signals import view_class
from ksim.cluster.signals.kv_index import KvIndex
from ksim.engine.observer import RESOLUTION, Observer
from ksim.engine.undated_turns import UndatedTurn
from ksim.flow.events import Admitted, Chosen, Emitted, Preempted, Stepped
from ksim.foundation.errors import ConfigError
from ksim.kv.cache.block_cache import TellingTrie
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views.result import Result
from tests.laws.ahead import both, serves, workloads
from tests.laws.happenings import facts
from tests.laws.looking import NOTED
from tests.laws.tiny import TINY, uniform
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


#: Requests one after the other, so that what is seen changes all the time.
STEADY = {"synthetic": {"arrivals": {"process": "poisson", "rate": 500}, "prompt": uniform(1, 150),
                        "output": uniform(1, 10), "count": 12, "max_tokens": 250}}
#: At 3 at a time, one engine sends a batch and takes in an empty turn before a scrape.
ADMITTED_BETWEEN = {"synthetic": {"arrivals": {"process": "burst"}, "prompt": uniform(1, 150),
                                  "output": uniform(1, 10), "count": 7, "max_tokens": 250}, "max_concurrency": 3}


def noted(result: Result) -> list:
    """What the routers of the latest run noted."""
    found = [*NOTED]
    NOTED.clear()
    return found


@given(serve=serves, workload=workloads, signals=settings, seed=st.integers(0, 1000))
@examples(12)
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


@pytest.mark.parametrize("signals", [{"scrape_interval": 0}, {"scrape_interval": "5 ms", "delay": "3 ms", "loss": 0.2}])
@pytest.mark.parametrize("ahead", [True, False])
def test_what_is_seen_of_engines_with_long_queues_does_not_depend_on_it_either(model, ahead, signals, monkeypatch):
    """They take many turns before the times of these are known."""
    undated, tell = [], UndatedTurn.tell
    monkeypatch.setattr(UndatedTurn, "tell", lambda turn, *dates: (undated.append(turn), tell(turn, *dates)))
    scenario = {"model": str(model), "gpu": "h200", "oracle": "roofline", "nodes": 1, "signals": signals,
                "router": LOOKING if "delay" in signals else "tests.laws.looking:Unsure",
                "serve": {"data_parallel_size": 2, "max_num_seqs": 4, "async_scheduling": ahead, "max_model_len": 256,
                          "num_gpu_blocks_override": 60},
                "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 2000}, "prompt": uniform(1, 60),
                                           "output": uniform(5, 20), "count": 80}}}
    NOTED.clear()
    skipped, stepped = both(scenario)
    seen = noted(stepped)
    assert seen[:len(seen) // 2] == seen[len(seen) // 2:] and undated
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


def running(log, engine: int, moment: float) -> set[int]:
    """How many jobs of *engine* ran after the last output that it had taken in by *moment*, as the log has it.

    Or at an admission since: what an empty turn gives back is taken in, too, and no log has it.
    """
    steps = {(step.engine, step.index): step.taken for step in log.of(Stepped)}
    taken = max((time for (number, _), time in steps.items() if number == engine and time <= moment), default=0.0)
    ends: dict[int, float] = {}
    for run in log.of(Emitted):
        if run.engine == engine:
            ends[run.request_id] = max(ends.get(run.request_id, 0.0), steps[engine, run.last])
    over = sum(end <= taken for end in ends.values())
    comes, goes = ([event.time for event in log.of(kind) if event.engine == engine] for kind in (Admitted, Preempted))
    return {sum(time < latest for time in comes) - sum(time < latest for time in goes) - over
            for latest in (taken, moment, *(time for time in comes if taken <= time <= moment))}


@given(workload=workloads, interval=st.sampled_from([0.001, 0.007, 0.05]), delay=st.sampled_from([0.0, 0.003, 0.02]),
       ahead=st.booleans(), seed=st.integers(0, 1000))
@example(workload=STEADY, interval=0.001, delay=0.003, ahead=True, seed=1)
@example(workload=ADMITTED_BETWEEN, interval=0.001, delay=0.003, ahead=True, seed=1000)
@examples(12)
def test_metrics_were_true_at_the_last_scrape_that_has_arrived(model, workload, interval, delay, ahead, seed):
    result = simulate(Scenario.of({
        "model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload, "nodes": 1,
        "serve": {"data_parallel_size": 2, "max_num_seqs": 4, "async_scheduling": ahead, "max_model_len": 256,
                  "num_gpu_blocks_override": 500},
        "signals": {"scrape_interval": f"{interval} s", "delay": f"{delay} s"}, "router": LOOKING}))
    for row in result.routing.to_pylist():
        for place, engine in enumerate(row["engines"]):
            scraped, latest = row["scraped_s"][place], row["time_s"] - delay + RESOLUTION
            if latest < RESOLUTION:
                assert scraped is None and row["running"][place] == 0
                continue
            assert scraped <= latest < scraped + interval + 2 * RESOLUTION
            assert row["running"][place] in running(result.log, engine, scraped + RESOLUTION)


@given(workload=workloads, delay=st.sampled_from([0.0005, 0.004, 0.02]), blocks=st.sampled_from([20, 40]),
       ahead=st.booleans(), eviction=st.sampled_from([None, "lfu"]), seed=st.integers(0, 1000))
@examples(12)
def test_an_index_has_what_the_cache_had_a_delay_ago(model, workload, delay, blocks, ahead, eviction, seed):
    """Whatever enters and leaves a cache, an index by events that come late has what was in it then."""
    contents: dict[int, list] = {}
    made, flush, look = TellingTrie.__init__, Observer.flush, KvIndex.look
    tries: dict[int, Any] = {}
    indexed: list = []

    def keep(trie, *args, **named):
        made(trie, *args, **named)
        tries[id(trie.tells)] = trie

    def note(observer, now):
        flush(observer, now)
        held = {key for node in tries[id(observer.tells)] if (key := node.key) >= 0}
        contents.setdefault(observer.number, []).append((now, held))

    def compare(index, now):
        look(index, now)
        for place, observer in enumerate(index.observers):
            held = {key for key, holders in index._holders.items() if holders >> place & 1}
            indexed.append((now, observer.number, held))

    serve = {"data_parallel_size": 2, "max_num_seqs": 4, "async_scheduling": ahead, "max_model_len": 256,
             "num_gpu_blocks_override": blocks, **({"eviction": eviction} if eviction else {})}
    scenario = {"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                "serve": serve, "signals": {"delay": f"{delay} s"}, "nodes": 1, "router": LOOKING}
    with pytest.MonkeyPatch.context() as patch:
        for kind, name, wrapped in ((TellingTrie, "__init__", keep), (Observer, "flush", note),
                                    (KvIndex, "look", compare)):
            patch.setattr(kind, name, wrapped)
        simulate(Scenario.of(scenario))
    for now, number, held in indexed:
        before = [keys for time, keys in contents.get(number, []) if time <= now - delay + RESOLUTION]
        assert held == (before[-1] if before else set())


def test_lost_scrapes_leave_what_was_seen_before_and_lost_events_are_never_heard(model):
    workload = {"synthetic": {"arrivals": {"process": "poisson", "rate": 200}, "prompt": uniform(50, 150),
                              "output": uniform(5, 15), "count": 40, "prefixes": {"groups": 2, "tokens": 40}}}
    base = {"model": str(model), "gpu": "h200", "oracle": "roofline", "workload": workload, "nodes": 1,
            "serve": {"data_parallel_size": 2, "num_gpu_blocks_override": 500, "max_model_len": 256}, "router": LOOKING}
    heard, lossy = (simulate(Scenario.of({**base, "signals": {"scrape_interval": "10 ms", "loss": loss}})).routing
                    for loss in (0.001, 0.7))
    ages = [[row["time_s"] - scraped for row in table.to_pylist() for scraped in row["scraped_s"] if scraped]
            for table in (heard, lossy)]
    assert max(ages[0]) < 0.0101 < max(ages[1])
    hits = [sum(max(row["prefix_hit_tokens"]) for row in table.to_pylist()) for table in (heard, lossy)]
    assert hits[1] < hits[0]


def test_what_a_router_saw_is_logged_where_it_looks_and_has_a_choice(model):
    base = {"model": str(model), "gpu": "h200", "oracle": "roofline", "nodes": 1, "workload": {"synthetic": {
        "arrivals": {"process": "burst"}, "prompt": uniform(5, 9), "output": uniform(1, 2), "count": 3}}}
    for engines, router, seen in ((2, "least_outstanding", True), (2, "round_robin", False), (1, LOOKING, False)):
        result = simulate(Scenario.of({**base, "serve": {"data_parallel_size": engines}, "router": router}))
        assert (result.routing is not None) == bool([*result.log.of(Chosen)]) == seen
        assert not seen or {"waiting", "score", "prefix_hit_tokens"}.isdisjoint(result.routing.column_names)


def test_a_view_can_be_shown_whatever_it_hides():
    shown = view_class(()).of(RemoteReplica(1))
    assert repr(shown).startswith("View(number=1")
    with pytest.raises(ConfigError, match="reads waiting of engine 1"):
        _ = shown.waiting

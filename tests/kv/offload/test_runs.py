"""What holds for every run whose engines offload."""

import json
from itertools import pairwise
from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ksim.flow.events import Copied, Event, Failed, LinkUsed, Prefilled, Released, Stepped, Transferred
from ksim.flow.log import Log
from ksim.results.attribution import Breakdown, groups
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream
from ksim.views import perfetto
from tests.kv.offload.runs import BLOCK, MULTI_TIER, SESSIONS, SPLIT, offloading, requests, scenario, turns
from tests.kv.transfer.fleets import run
from tests.laws.happenings import facts, happenings
from tests.laws.tiny import uniform
from tests.properties import examples

#: How much later, in seconds, what comes first may seem: times are sums of others, in two orders.
ROUNDING = 1e-12


@given(data=st.data())
@examples(12)
def test_going_ahead_never_changes_anything(model, data):
    table = data.draw(offloading(model))
    skipped, stepped = run(table).log, run(table, skips=False).log
    assert sorted(map(repr, facts(skipped))) == sorted(map(repr, facts(stepped)))
    assert [number for event in told(skipped) for number in numbers(event)] == pytest.approx(
        [number for event in told(stepped) for number in numbers(event)], rel=1e-9)


def test_reads_for_a_lone_request_begin_alike_with_and_without_going_ahead(model):
    """Its engine has no batch when it finds what the disks have."""
    table = scenario(model, 2, requests(2, 20, uniform(20, 150), uniform(1, 10), sessions=SESSIONS), 0,
                     options=MULTI_TIER, max_num_batched_tokens=32, enable_prefix_caching=False, async_scheduling=False)
    skipped, stepped = ([number for event in told(run(table, skips).log) for number in numbers(event)]
                        for skips in (True, False))
    assert skipped == pytest.approx(stepped, rel=1e-9)


def test_a_synchronous_engine_goes_on_after_all_its_steps_were_logged(model):
    """With no batch in flight, none is left in the recorder."""
    table = scenario(model, 2, requests(20, 500, uniform(1, 40), uniform(20, 90)), 2, options={
        "cpu_bytes_to_use": 16384}, max_num_seqs=2, max_num_batched_tokens=32, num_gpu_blocks_override=20,
        async_scheduling=False, enable_prefix_caching=True)
    skipped, stepped = (run(table, skips).log for skips in (True, False))
    assert sorted(map(repr, facts(skipped))) == sorted(map(repr, facts(stepped)))


def test_what_another_engine_writes_while_a_batch_runs_is_not_written_again(model):
    """Both engines store the same chunk, which only one of them writes to the disks."""
    load = requests(2, 5000, uniform(20, 150), uniform(20, 90), sessions=SESSIONS,
                    prefixes={"groups": 2, "tokens": 40})
    table = scenario(model, 2, load, 0, {"all": {"role": "both", "replicas": 2}}, MULTI_TIER, max_num_seqs=2,
                     max_num_batched_tokens=32, num_gpu_blocks_override=20, async_scheduling=False,
                     enable_prefix_caching=True)
    skipped, stepped = ([(copy.engine, copy.target, copy.time) for copy in run(table, skips).log.of(Copied)]
                        for skips in (True, False))
    assert [copy[:2] for copy in skipped] == [copy[:2] for copy in stepped] == [
        (0, "cpu"), (1, "cpu"), (0, "disk")]


def test_where_outputs_are_stored_steps_repeat_only_until_a_chunk_is_full(model):
    table = scenario(model, workload=requests(count=3, output=uniform(70, 90)), num_gpu_blocks_override=500,
                     options={"offload_prompt_only": False})
    skipped, stepped = run(table).log, run(table, skips=False).log
    assert [numbers(copy) for copy in skipped.of(Copied)] == [
        pytest.approx(numbers(copy), rel=1e-9) for copy in stepped.of(Copied)]


def told(log: Log) -> list[Event]:
    more = [event for kind in (Transferred, Prefilled, Released, Failed, Copied) for event in log.of(kind)]
    return sorted([*happenings(log), *more], key=lambda event: (
        type(event).__name__, getattr(event, "engine", 0), getattr(event, "request_id", 0),
        getattr(event, "source", ""), event.time))


def numbers(event: Event) -> list[Any]:
    return [value for value in (getattr(event, field.name) for field in fields(type(event)))
            if isinstance(value, int | float)]


@given(data=st.data())
@examples(12)
def test_bytes_that_are_loaded_are_those_of_the_blocks_hit(model, data):
    result = run(data.draw(offloading(model)))
    requests, copies = result.requests, result.log.columns(Copied)
    loads = (copies["target"] == "gpu") & ~copies["again"].astype(bool)
    tokens = sum(sum(requests[name].to_pylist()) for name in requests.column_names
                 if name in ("cpu_tokens", "disk_tokens", "storage_tokens"))
    assert tokens == copies["tokens"][loads].sum() == result.summary.get("external_prefix_cache_hits", 0)
    assert copies["bytes"] == pytest.approx(copies["tokens"] * BLOCK / 16)
    assert (copies["disk"] + copies["storage"] <= copies["tokens"]).all()
    assert (copies["asked"] <= copies["began"] + ROUNDING).all()
    assert (copies["began"] <= copies["time"] + ROUNDING).all()


@pytest.mark.parametrize(("n", "options", "policy"), [
    (1, {}, "fcfs"), (3, {}, "fcfs"), (1, MULTI_TIER, "fcfs"), (3, MULTI_TIER, "fcfs"), (3, {}, "shortest_remaining")])
def test_no_more_tokens_are_found_than_are_looked_up(model, n, options, policy):
    """Other sequences of a request load the same again, and so does a preempted one."""
    load = requests(40, 400, uniform(100, 200), uniform(10, 30), n=n, prefixes={"groups": 3, "tokens": 128})
    result = run(scenario(model, 400, load, options=options, num_gpu_blocks_override=48,
                          scheduling_policy=policy))
    rows, copies = result.requests.to_pylist(), result.log.columns(Copied)
    assert (any(copies["sequence"]) or n == 1) and any(row["cpu_tokens"] for row in rows)
    for row in rows:
        found = [row[name] for name in row if name in ("cached_tokens", "cpu_tokens", "disk_tokens")]
        assert sum(found) <= row["prompt_tokens"]
    assert result.summary["external_prefix_cache_hits"] <= result.summary["external_prefix_cache_queries"]


@given(data=st.data())
@examples(12)
def test_copies_of_one_direction_are_serial_and_no_link_carries_more_than_it_can(model, data):
    log = run(data.draw(offloading(model))).log
    copies = list(log.of(Copied))
    for way in {(copy.engine, copy.source, copy.target) for copy in copies if "gpu" in (copy.source, copy.target)}:
        mine = sorted((copy.began, copy.time) for copy in copies if (copy.engine, copy.source, copy.target) == way)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(mine))
    capacities = {link.link: link.capacity for link in log.links}
    assert all(used.rate <= capacities[used.link] * (1 + 1e-9) for used in log.of(LinkUsed))


@pytest.mark.parametrize("way", [(2, {}), (200, {"store_threshold": 9})])
def test_a_tier_that_nothing_comes_back_from_changes_no_schedule(model, way):
    """It has room for less than any prompt, or waits for what nobody asks for so often."""
    table = scenario(model, way[0], requests(12, 100, uniform(60, 150)), options=way[1])
    plain = scenario(model, 1, requests(12, 100, uniform(60, 150)))
    del plain["serve"]["kv_transfer_config"]
    batches = [[(step.batch.sequences, step.batch.tokens) for step in run(made).log.of(Stepped)]
               for made in (table, plain)]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("options", [{}, {"blocks_per_chunk": 2}, MULTI_TIER])
def test_with_room_for_all_no_block_of_a_prompt_is_computed_twice(model, options):
    """Turns of conversations that come one after the other, of which the GPU keeps next to nothing."""
    load = requests(30, 2, uniform(20, 60), uniform(17, 30), sessions=turns(2, 3, "9 s"))
    result = run(scenario(model, 4000, load, num_gpu_blocks_override=17, max_num_seqs=1,
                          options=options))
    rows = result.requests.to_pylist()
    size = 16 * options.get("blocks_per_chunk", 1)
    seen = 0
    for row in rows:
        before = [other for other in rows if other["session"] == row["session"] and other["id"] < row["id"]]
        if before:
            known = before[-1]["prompt_tokens"]  # blocks with output in them may be another's
            found = row["cached_tokens"] + row["cpu_tokens"] + row.get("disk_tokens", 0)
            assert found >= known // size * size
            seen += 1
    assert seen and result.summary["cpu_hit_rate"] > 0


def test_a_tier_behind_a_small_host_memory_keeps_what_that_loses(model):
    load = requests(40, 20, uniform(60, 120), uniform(1, 5), sessions=turns(2, 4, "2 s"))
    small, tiered = (run(scenario(model, 24, load, options=options)) for options in ({}, MULTI_TIER))
    assert tiered.summary["disk_hit_rate"] > 0 and "disk_hit_rate" not in small.summary
    assert tiered.summary["external_prefix_cache_hits"] > small.summary["external_prefix_cache_hits"]
    reads = [copy for copy in tiered.log.of(Copied) if copy.source == "disk"]
    assert sum(copy.bytes for copy in reads) == tiered.summary["disk_read_bytes"]
    written = [copy for copy in tiered.log.of(Copied) if copy.target == "disk"]
    assert sum(copy.tokens for copy in written) >= max(copy.tokens for copy in reads)


def test_pools_that_split_requests_offload_beside_their_transfers(model):
    load = requests(30, 50, uniform(60, 120), uniform(1, 5), sessions=turns(2, 4, "1 s"))
    result = run(scenario(model, 400, load, pools=SPLIT))
    assert result.summary["completed"] == 30
    engines = {copy.engine for copy in result.log.of(Copied) if copy.target == "gpu"}
    assert 0 in engines and any(result.log.of(Transferred))


def test_a_trace_shows_every_copy_and_a_breakdown_the_time_to_load(model, tmp_path):
    load = requests(20, 20, uniform(60, 120), uniform(1, 5), sessions=turns(2, 4, "2 s"))
    result = run(scenario(model, 24, load, options=MULTI_TIER))
    result.save(tmp_path / "run", plots=False, trace=False)
    trace = json.loads(b"".join(bytes(piece) for piece in perfetto.trace(result.history)))["traceEvents"]
    (process,) = (event["pid"] for event in trace if event["ph"] == "M" and event["args"].get("name") == "KV copies")
    shown = [event for event in trace if event["ph"] == "X" and event["pid"] == process]
    assert len(shown) == len(list(result.log.of(Copied)))
    table = result.attribution.to_pydict()
    assert sum(table["to_first.kv_load"]) > 0 and not sum(table["after.kv_load"])
    shown = groups(Breakdown.read(tmp_path / "run").names)
    assert {"queue: KV load", "queue: rest"} <= {*shown} and "queue" not in shown
    waits = [sum(parts) for parts in zip(table["to_first.kv_load"], table["to_first.queue"], strict=True)]
    assert waits == pytest.approx(result.requests["queue_s"].to_pylist())


def test_a_run_that_writes_as_it_goes_says_the_same_of_tiers(model, tmp_path):
    load = requests(20, 20, uniform(60, 120), uniform(1, 5), sessions=turns(2, 4, "2 s"))
    made = Scenario.of(scenario(model, 24, load, options=MULTI_TIER))
    whole = simulate(made)
    stream(made, tmp_path / "run")
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    for key, value in whole.summary.items():
        if "hit" in key or "kv_offload" in key or key.startswith("disk"):
            assert written[key] == pytest.approx(value), key
    rows = parquet.read_table(tmp_path / "run" / "requests.parquet")
    assert sorted(rows["disk_tokens"].to_pylist()) == sorted(whole.requests["disk_tokens"].to_pylist())

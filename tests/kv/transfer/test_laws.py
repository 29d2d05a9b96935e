"""What holds for every fleet that splits requests, whatever its connector."""

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    Event,
    Failed,
    Finished,
    LinkUsed,
    Preempted,
    Prefilled,
    Rejected,
    Released,
    Routed,
    Transferred,
)
from ksim.flow.log import Log
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.kv.cache.vllm import VllmCache
from ksim.kv.transfer.transfer import KvTransfer
from tests.kv.transfer.fleets import CONNECTORS, requests, run, scenario, split
from tests.laws.happenings import facts, happenings
from tests.properties import examples

#: How a request may end, and what happens to a split one.
ENDS: tuple[Any, ...] = (Finished, Failed, Rejected)
SPLIT: tuple[Any, ...] = (Prefilled, Transferred, Released, Admitted, Finished)


@given(data=st.data())
@examples(25)
def test_going_ahead_never_changes_anything(model, data):
    table = data.draw(split(model))
    skipped, stepped = run(table).log, run(table, skips=False).log
    assert sorted(map(repr, facts(skipped))) == sorted(map(repr, facts(stepped)))
    assert [number for event in told(skipped) for number in numbers(event)] == pytest.approx(
        [number for event in told(stepped) for number in numbers(event)], rel=1e-9)


def told(log: Log) -> list[Event]:
    """What happened, engine by engine: two of them may do something at one moment, in either order."""
    more = [event for kind in (Transferred, Prefilled, Released, Failed) for event in log.of(kind)]
    return sorted([*happenings(log), *more], key=lambda event: (
        type(event).__name__, getattr(event, "engine", 0), getattr(event, "request_id", 0), event.time))


def numbers(event: Event) -> list[float]:
    """The numbers of an event, times among them."""
    return [value for value in (getattr(event, field.name) for field in fields(type(event)))
            if isinstance(value, int | float)]


@given(data=st.data())
@examples(25)
def test_each_request_ends_once_with_all_its_tokens(model, data):
    log = run(data.draw(split(model))).log
    ended = Counter(event.request_id for kind in ENDS for event in log.of(kind))
    requests = {event.request.id: event.request for event in log.of(Arrived)}
    assert ended == dict.fromkeys(requests, 1)
    tokens: Counter[int] = Counter()
    for run_ in log.of(Emitted):
        tokens[run_.request_id] += (run_.last - run_.first) // run_.every + 1
    assert tokens == {event.request_id: requests[event.request_id].output for event in log.of(Finished)}


@given(data=st.data())
@examples(25)
def test_what_moves_is_what_the_decode_engine_lacked(model, data):
    """All bytes that leave GPUs come to others, and they are the whole blocks that the cache did not have."""
    table = data.draw(split(model))
    log = run(table).log
    arrived = {event.request.id: event.request for event in log.of(Arrived)}
    per_token = 2 * 4 * 16 * 2 * 2  # layers, heads, their size, keys and values, bytes
    total, size = 0.0, 1 if table["serve"]["prefix_cache"] == "sglang" else 16
    for moved in log.of(Transferred):
        prompt = arrived[moved.request_id].prompt
        lacked = -(-prompt // size) * size - (prompt - moved.tokens)
        assert moved.bytes == pytest.approx(lacked * per_token)
        total += moved.bytes
    for way in ("NVLink out", "NVLink in"):
        assert _carried(log, way) == pytest.approx(total, rel=1e-6, abs=1.0)


def _carried(log: Log, way: str) -> float:
    """The bytes that passed links of one kind."""
    used = defaultdict(list)
    for event in log.of(LinkUsed):
        used[event.link].append((event.time, event.rate))
    links = [link.link for link in log.links if link.name.endswith(way)]
    return sum(rate * (end - begin) for link in links for (begin, rate), (end, _) in pairwise(used[link]))


@given(data=st.data())
@examples(25)
def test_blocks_that_bytes_move_between_are_held(model, data):
    blocks_are_held(data.draw(split(model)))


@pytest.mark.parametrize("serve", [{"long_prefill_token_threshold": 16}, {"scheduler_reserve_full_isl": False}],
                         ids=["several prompts at once", "no full reservation"])
def test_blocks_of_a_prompt_whose_chunks_are_sent_are_held(model, serve):
    """The prefill engine has too few for all prompts that it could begin."""
    pools = {"prefill": {"role": "prefill", "serve": {"num_gpu_blocks_override": 20, **serve}},
             "decode": {"role": "decode", "serve": {"num_gpu_blocks_override": 500}}}
    workload = requests(12, 5000, prompt={"kind": "fixed", "value": 150}, output={"kind": "fixed", "value": 5})
    log = blocks_are_held(scenario(model, "sglang", pools=pools, workload=workload, enable_prefix_caching=False))
    assert len([*log.of(Finished)]) == 12 and not any(event.engine == 0 for event in log.of(Preempted))


def blocks_are_held(table: dict[str, Any]) -> Log:
    """Run a scenario; no block may be free while bytes come from it, or go to it."""
    held: list[KvTransfer] = []
    moving: dict[Any, KvTransfer] = {}
    land, begin = KvTransfer._flow_ended, KvTransfer._send

    def check(transfer: KvTransfer) -> None:
        for job in (transfer.job, transfer.load and transfer.load.job):
            assert job is not None and job.block_table.num_slots >= transfer.tokens

    def beginning(transfer: KvTransfer, tokens: int) -> None:
        check(transfer)
        moving.update({transfer.job.block_table: transfer, transfer.load.job.block_table: transfer})
        begin(transfer, tokens)

    def watched(free: Callable[..., None]) -> Callable[..., None]:
        def freeing(cache: Any, table: Any, tokens: int = 0) -> None:
            assert table not in moving or moving[table].ended
            free(cache, table, tokens)

        return freeing

    def landing(transfer: KvTransfer) -> None:
        check(transfer)
        held.append(transfer)
        land(transfer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KvTransfer, "_send", beginning)
        patch.setattr(KvTransfer, "_flow_ended", landing)
        for cache in (VllmCache, BlockCache, SglangCache):
            patch.setattr(cache, "free", watched(cache.free))
        log = run(table).log
    assert len({*held}) >= len([*log.of(Transferred)])
    return log


@pytest.mark.parametrize("connector", CONNECTORS)
def test_the_events_of_a_split_request_come_in_their_order(model, connector):
    log = run(scenario(model, connector, num_gpu_blocks_override=500)).log
    for routed in log.of(Routed):
        one = {kind: [event for event in log.of(kind) if event.request_id == routed.request_id]
               for kind in SPLIT}
        (prefilled,), (moved,), (released,), (finished,) = (
            one[kind] for kind in (Prefilled, Transferred, Released, Finished))
        at_p, at_d = one[Admitted]
        assert (at_p.engine, at_d.engine) == (routed.prefill_engine, routed.engine) == (moved.source, moved.target)
        assert routed.time < at_p.time < prefilled.time and moved.time <= at_d.time < finished.time
        assert moved.allocated <= moved.began <= moved.time - moved.alone * (1 - 1e-9)
        assert moved.time <= released.time and not released.lease


@pytest.mark.parametrize("threshold", [0, 1])
def test_blocks_that_the_decode_engine_never_needs_are_free_once_the_prompt_is_computed(model, threshold):
    """With Mooncake both engines have a request at once; one that wants log-probabilities of the prompt computes it.

    The decode engine may be late to say so, with a threshold, when an engine that goes ahead has computed the prompt.
    """
    table = scenario(model, "mooncake", workload=requests(8, 100, prompt_logprobs=2), seed=2,
                     num_gpu_blocks_override=500, long_prefill_token_threshold=threshold)
    stepped, skipped = ([*run(table, skips).log.of(Released)] for skips in (False, True))
    assert len(stepped) == 8 and not any(event.lease for event in stepped)
    assert [(event.request_id, pytest.approx(event.time)) for event in skipped] == [
        (event.request_id, event.time) for event in stepped]


@given(connector=st.sampled_from(CONNECTORS), share=st.floats(1e-6, 1), factor=st.floats(0.01, 1),
       seed=st.integers(0, 1000))
@examples(20)
def test_with_less_bandwidth_nothing_of_a_request_comes_sooner(model, connector, share, factor, seed):
    ends = []
    for reached in (share, share * factor):
        table = scenario(model, connector, options={"share": reached}, seed=seed,
                         workload={"synthetic": {"arrivals": {"process": "burst"}, "count": 1, "max_tokens": 250,
                                                 "prompt": {"kind": "uniform", "low": 1, "high": 150},
                                                 "output": {"kind": "uniform", "low": 1, "high": 30}}})
        log = run(table).log
        ends.append(([event.time for event in log.of(Transferred)], [event.time for event in log.of(Finished)]))
    (moved, finished), (later, last) = ends
    assert moved[0] <= later[0] * (1 + 1e-12) and finished[0] <= last[0] * (1 + 1e-12)

"""KV events: what vLLM's consumers decode, and what is in the cache after them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.server.kv_event_publisher import KvEvents, Publisher
from ksim.server.kv_events import Batch, CacheEvents, KvEventsConfig, TokenIds, endpoint_of, subscribe_to_cache
from tests.properties import examples
from tests.server.fake import FakeLive


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(EventBatch)
#: A prompt of chunks with one of a few names each.
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def fake(model: Path | str, router: str = "round_robin", **serve: Any) -> FakeLive:
    return FakeLive({"model": str(model), "gpu": "h100", "oracle": "roofline", "serve": {
        "max_model_len": 256, "num_gpu_blocks_override": 200} | serve,
        "router": router, "workload": {"synthetic": {
            "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 1},
            "output": {"kind": "fixed", "value": 1}}}}, tells=True)


def decoded(events: CacheEvents, batches: list[Batch]) -> list[BlockStored | BlockRemoved]:
    """All events of *batches*, encoded and decoded as vLLM does both."""
    encoded = [msgspec.msgpack.encode((time, [*events.events(told)], 0)) for time, told, _ in batches]
    return [event for batch in encoded for event in DECODER.decode(batch).events]


def replayed(events: list[BlockStored | BlockRemoved]) -> dict[int, tuple[int | None, list[int]]]:
    """The hashes of the blocks that are there after *events*, with the hash before and their tokens."""
    present = dict[int, tuple[int | None, list[int]]]()
    for event in events:
        if isinstance(event, BlockRemoved):
            for removed in event.block_hashes:
                del present[removed]
            continue
        size, parent = event.block_size, event.parent_block_hash
        assert len(event.token_ids) == size * len(event.block_hashes)
        for place, stored in enumerate(event.block_hashes):
            present[stored] = parent, event.token_ids[place * size:(place + 1) * size]
            parent = stored
    return present


def cached(tree: Any) -> dict[tuple[Any, ...], int]:
    """The paths of the blocks in the cache that other requests may find, with their keys."""
    paths, nodes = dict[tuple[Any, ...], int](), [((), tree.root)]
    while nodes:
        path, node = nodes.pop()
        nodes += [((*path, name), child) for name, child in node.children.items() if child.key >= 0]
        if path and node.blocks:
            paths[path] = node.key
    return paths


@given(chains=st.lists(prompts, min_size=1, max_size=12), blocks=st.sampled_from([9, 14, 200]),
       adapters=st.booleans(), router=st.sampled_from(["round_robin", "least_outstanding"]))
@examples(40)
def test_what_was_stored_and_not_removed_is_what_is_cached(tiny: Path, chains: list[list[int]], blocks: int,
                                                           adapters: bool, router: str) -> None:
    lora = {"enable_lora": True, "lora_modules": [{"name": "cats", "rank": 8}]} if adapters else {}
    played = fake(tiny, router, num_gpu_blocks_override=blocks, data_parallel_size=2, **lora)
    names = TokenIds(16)
    for name in range(3):
        names.remember(name, [name] * 16)
    engines, batches = played.live.engines, [list[Batch](), list[Batch]()]
    for engine, heard in zip(engines, batches, strict=True):
        subscribe_to_cache(engine, heard.append)
    played.play(Request(0, place * 0.004, len(chain) * 16 + 3, 9, chain,
                        adapter="cats" if adapters and place % 2 else "") for place, chain in enumerate(chains))
    for engine, heard in zip(engines, batches, strict=True):
        events = CacheEvents(engine.scheduler.cache.keys, names)  # type: ignore[attr-defined]
        told = decoded(events, heard)
        left, there = replayed(told), cached(engine.scheduler.cache.tree)  # type: ignore[attr-defined]
        assert left.keys() == {events.hash(key) for key in there.values()}
        for path, key in there.items():
            last = path[-1][1] if isinstance(path[-1], tuple) else path[-1]
            parent, tokens = left[events.hash(key)]
            assert tokens == [last] * 16
            assert path[:-1] not in there or parent == events.hash(there[path[:-1]])
        assert {event.lora_name for event in told if isinstance(event, BlockStored)} <= {None, "cats"}


def test_a_subscriber_gets_the_batches_and_asks_for_those_it_missed(tiny: Path) -> None:
    asyncio.run(_subscribe(fake(tiny, data_parallel_size=2)))


async def _subscribe(played: FakeLive) -> None:
    config = KvEventsConfig.of('{"enable_kv_cache_events": true, "endpoint": "tcp://*:0", "topic": "kv@me",'
                               ' "replay_endpoint": "tcp://*:0", "buffer_steps": 3}')
    events = KvEvents.of(config, played.live.engines, 16)
    events.serve()
    first = events.publishers[0]
    subscriber = zmq.asyncio.Context.instance().socket(zmq.SUB)
    subscriber.connect(first.endpoint.replace("0.0.0.0", "127.0.0.1"))
    subscriber.subscribe("kv@")
    while not await subscriber.poll(10):  # until it has joined
        first.publish([])
    sent = first._next
    played.play(Request(0, place * 1.0, 40, 5, [place, place]) for place in range(4))
    got = {}
    while not got or max(got) < first._next - 1:
        topic, number, payload = await subscriber.recv_multipart()
        got[int.from_bytes(number, "big")] = DECODER.decode(payload)
        assert topic == b"kv@me"
    stored = [event for number, batch in got.items() if number >= sent for event in batch.events]
    assert [event.block_hashes for event in stored] == [stored[0].block_hashes, stored[1].block_hashes]
    assert {batch.data_parallel_rank for batch in got.values()} == {0}
    assert await _replay(first, first._next - 2) == [first._next - 2, first._next - 1, -1]
    assert await _replay(first, 0) == [*range(first._next - 3, first._next), -1]
    subscriber.close(linger=0)
    events.close()


async def _replay(publisher: Publisher, first: int) -> list[int]:
    """The numbers of the batches that come if one asks for those from *first* on."""
    client = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    assert publisher.replay_endpoint
    client.connect(publisher.replay_endpoint.replace("0.0.0.0", "127.0.0.1"))
    await client.send_multipart((b"", b"not a number of 8 bytes", b"at all"))  # is ignored
    await client.send_multipart((b"", first.to_bytes(8, "big")))
    numbers = list[int]()
    while not numbers or numbers[-1] != -1:
        empty, _, number, _ = await client.recv_multipart()
        assert empty == b""
        numbers.append(int.from_bytes(number, "big", signed=True))
    client.close(linger=0)
    return numbers


@pytest.mark.parametrize(("text", "problem"), [
    ("{", "is no JSON"), ("3", "expected a JSON object"), ('{"endpiont": "x"}', "endpoint"),
    ('{"publisher": "kafka"}', "publisher"), ('{"buffer_steps": -1}', "buffer_steps"),
    ('{"enable_kv_cache_events": "yes"}', "enable_kv_cache_events")])
def test_settings_are_vllms_and_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refusal:
        KvEventsConfig.of(text)
    assert "--kv-events-config" in str(refusal.value)


def test_nothing_is_published_unless_it_is_asked_for() -> None:
    assert not KvEventsConfig.of("{}").publishes
    assert KvEventsConfig.of('{"enable_kv_cache_events": true}').publishes
    assert not KvEventsConfig.of('{"enable_kv_cache_events": true, "publisher": "null"}').publishes


def test_addresses_of_other_engines_are_those_of_vllms_data_ranks() -> None:
    assert endpoint_of("tcp://*:5557", 2) == "tcp://*:5559"
    assert endpoint_of("tcp://*:0", 2) == "tcp://*:0"
    assert endpoint_of("inproc://cache", 1) == "inproc://cache_dp1"
    with pytest.raises(ConfigError, match="no port"):
        endpoint_of("tcp://here", 1)


@pytest.mark.parametrize("endpoint", ["tcp://*:99999", "tcp://nowhere", "carrier://pigeon", "tcp://1.2.3.4.5:x"])
def test_an_address_that_cannot_be_used_is_named(tiny: Path, endpoint: str) -> None:
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=endpoint)
    with pytest.raises(ConfigError, match="the address"):
        KvEvents.of(config, fake(tiny).live.engines, 16)


def test_a_cache_that_cannot_tell_is_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="KV events"):
        fake(tiny, prefix_cache="sglang")


def test_blocks_of_other_sizes_have_the_tokens_of_their_chunks() -> None:
    ids = TokenIds(4)
    ids.remember(7, [1, 2, 3, 4])
    ids.remember(8, [5, 6, 7, 8])
    whole, half = Request(0, 0.0, 8, 1, [7, 8], 4), Request(0, 0.0, 8, 1, [7, 8], 4)
    assert [ids.of(name, 8) for name in whole.content(8)] == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert [ids.of(name, 2) for name in half.content(2)] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert ids.of(9, 16) == ids.of(9, 16) and len(ids.of(9, 16)) == 16

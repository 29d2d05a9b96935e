"""The cache curve is exact: against caches that are simulated block by block, and against published rates."""

import csv
from collections import OrderedDict
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ksim.flow.request import Request
from ksim.kv.cache.vllm import VllmCache
from ksim.workload.replay import Replay
from ksim.workload.statistics import POLICIES, CacheCurve, Hits, Reuse, Sums, measure
from tests.properties import examples

SHARED = Path(__file__).parents[3] / "shared" / "data"
TRACES = {"conversation": "mooncake conversation_trace, the 6,000 rows under traces/",
          "synthetic": "mooncake synthetic_trace, the 2,000 rows under traces/"}
SIZE = 4
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared, with Mooncake's traces, is not there")


def request(number, names, prompt=None, output=1, **more):
    return Request(number, 0.0, prompt or max(1, len(names) * SIZE), output, tuple(names), SIZE, **more)


def curve(requests, size=SIZE):
    return CacheCurve.of(Reuse.of(requests, size))


@some.composite
def traces(draw):
    """Prompts that share prefixes, end within a block, have names for some of the output, or lack some names."""
    made = []
    for number in range(draw(some.integers(1, 9))):
        names = draw(some.text("ab", max_size=5))
        least = max(1, (len(names) - 1) * SIZE)
        prompt = draw(some.integers(max(1, least - 2 * SIZE), (len(names) + 1) * SIZE))
        made.append(request(number, names, prompt, output=2 * SIZE, adapter=draw(some.sampled_from(["", "", "x"]))))
    return made


def blocks_of(one):
    """All blocks of a request, by all that is in them and before them, and how many of them are in its prompt."""
    named = [(one.adapter, *one.chunks[: place + 1]) for place in range(len(one.chunks))]
    inside = max(one.prompt // SIZE, min(len(named), -(-one.prompt // SIZE)))
    return named + [(one.id, place) for place in range(len(named), inside)], inside


def tokens_of(one, blocks):
    return min(blocks * SIZE, one.prompt)


def plain_lru(trace, size, tails_first=False):
    """Count leading blocks that are in a cache of *size* blocks; then use each, least recent ones leaving."""
    cache, hits, tokens = OrderedDict(), 0, 0
    for one in trace:
        blocks, inside = blocks_of(one)
        hit = next((place for place, block in enumerate(blocks[:inside]) if block not in cache), inside)
        hits, tokens = hits + hit, tokens + tokens_of(one, hit)
        for block in reversed(blocks) if tails_first else blocks:
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > size:
                cache.popitem(last=False)
    return Hits(hits, tokens)


def best(trace, size):
    """The most blocks that any cache of *size* blocks can hit: all that it may keep after each request is tried."""
    states = {frozenset[object](): 0}
    for one in trace:
        blocks, inside = blocks_of(one)
        after = dict[frozenset[object], int]()
        for held, hits in states.items():
            hit = next((place for place, block in enumerate(blocks[:inside]) if block not in held), inside)
            choice = held | {*blocks}
            for kept in combinations(choice, min(size, len(choice))):
                after[frozenset(kept)] = max(after.get(frozenset(kept), 0), hits + hit)
        states = after
    return max(states.values())


@examples(300)
@given(traces(), some.integers(1, 30))
def test_both_lru_curves_are_those_of_simulated_caches(trace, size):
    measured = curve(trace)
    assert measured.hits("lru", size) == plain_lru(trace, size)
    assert measured.hits("lru_tails_first", size) == plain_lru(trace, size, tails_first=True)


@examples(60)
@given(some.lists(some.text("ab", min_size=1, max_size=3), min_size=1, max_size=6), some.integers(1, 3))
def test_no_cache_hits_more_than_the_ideal_one(prompts, size):
    trace = [request(number, names) for number, names in enumerate(prompts)]
    assert curve(trace).hits("ideal", size).blocks == best(trace, size)


@examples(200)
@given(traces(), some.integers(1, 20))
def test_a_larger_cache_hits_as_much_and_the_ideal_one_most(trace, size):
    measured = curve(trace)
    small, large = ({policy: measured.hits(policy, of) for policy in POLICIES} for of in (size, size + 1))
    assert all(small[policy].blocks <= large[policy].blocks for policy in POLICIES)
    assert small["lru"].blocks <= small["lru_tails_first"].blocks <= small["ideal"].blocks
    everything = [measured.hits(policy, measured.largest()) for policy in POLICIES]
    assert everything == [measured.hits(policy, 10**9) for policy in POLICIES] == everything[:1] * 3


@examples(100)
@given(traces())
def test_without_limit_it_hits_what_the_statistics_say_is_shared(trace):
    hits, sharing = curve(trace).hits("lru", 10**9), measure(trace).sharing
    if not any(one.adapter for one in trace):
        assert hits == Hits(sharing.hit_chunks, sharing.hit_tokens)


@examples(100)
@given(some.lists(some.text("ab", min_size=1, max_size=6), min_size=1, max_size=12), some.integers(6, 20),
       some.sampled_from([SIZE, SIZE // 2]))
def test_tails_first_is_the_order_of_vllms_cache(prompts, size, block):
    cache, hits = VllmCache(size * SIZE // block, block), 0
    trace = [request(number, names) for number, names in enumerate(prompts)]
    for one in trace:
        table = cache.block_table(one)
        hit = cache.find_prefix(table, one.prompt + 1)
        cache.attach_prefix(table, hit)
        assert cache.allocate(table, one.prompt)
        cache.publish(table, one.prompt)
        cache.free(table, one.prompt)
        hits += hit.tokens
    assert curve(trace, block).hits("lru_tails_first", cache.capacity).tokens == hits


@examples(100)
@given(some.lists(some.tuples(some.integers(0, 9), some.booleans()), max_size=20))
def test_sums_are_those_of_the_numbers(changes):
    sums, numbers = Sums(), list[int]()
    for number, grow in changes:
        if grow or not numbers:
            sums.append(number)
            numbers.append(number)
        else:
            sums.add(number % len(numbers), -number)
            numbers[number % len(numbers)] -= number
    assert [sums.first(count) for count in range(len(numbers) + 1)] == [
        sum(numbers[:count]) for count in range(len(numbers) + 1)]


class TestTiers:
    def test_exclusive_tiers_are_one_cache_of_all_their_blocks_and_inclusive_ones_of_the_largest(self):
        trace = [request(number, names) for number, names in enumerate(["aaa", "bbb", "ccc", "aaa", "bbb", "ccc"])]
        measured = curve(trace)
        gpu, cpu, disk = measured.tiers({"gpu": 3, "cpu": 6, "disk": 5})
        assert (gpu.exclusive["lru"].blocks, gpu.inclusive["lru"].blocks, gpu.exclusive["ideal"].blocks) == (0, 0, 3)
        assert (cpu.exclusive["lru"].blocks, cpu.inclusive["lru"].blocks) == (9, 0)
        assert (disk.exclusive["lru"].blocks, disk.inclusive["lru"].blocks) == (0, 0)

    def test_what_tiers_add_is_what_they_have_together(self):
        trace = [request(number, "ab" * (number % 5 + 1)) for number in range(30)]
        measured = curve(trace)
        rows = measured.tiers({"gpu": 2, "cpu": 4})
        for policy in POLICIES:
            assert sum(row.exclusive[policy].blocks for row in rows) == measured.hits(policy, 6).blocks
            assert sum(row.inclusive[policy].blocks for row in rows) == measured.hits(policy, 4).blocks


def test_round_sizes_end_where_more_is_of_no_use():
    assert curve([request(0, "abcdefg"), request(1, "abcdefg")]).sizes() == [1, 2, 5, 10]
    assert curve([request(0, "ab")]).sizes() == [1]


def published(name):
    path = SHARED / "cluster" / "cache_hit_rates.csv"
    with path.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["trace"] == TRACES[name]]


@needs_shared
@pytest.mark.parametrize("name", TRACES)
def test_mooncakes_traces_hit_as_published_to_all_digits_by_curve_and_by_cache(name):
    trace = list(Replay(path=SHARED / "traces" / "mooncake_fast25" / f"{name}_trace.jsonl").requests(0))
    reuse = Reuse.of(trace, 512)
    measured, rows = CacheCurve.of(reuse), published(name)
    assert len(rows) == 9 and reuse.distinct == int(rows[0]["unique_blocks"])
    by_curve = [measured.hits("lru", _size(row)) for row in rows]
    assert by_curve == cached(trace, [_size(row) for row in rows])
    for row, hits in zip(rows, by_curve, strict=True):
        blocks, tokens = measured.rates(hits)
        assert (f"{blocks:.5f}", f"{tokens:.5f}") == (row["hit_rate_blocks"], row["hit_rate_tokens"])


def _size(row):
    return 10**9 if row["capacity_blocks"] == "inf" else int(row["capacity_blocks"])


def cached(trace, sizes):
    """The hits of plain caches of these sizes, in which the ids of the trace are the blocks."""
    return [_cached(trace, size) for size in sizes]


def _cached(trace, size):
    cache, hits, tokens = OrderedDict[object, None](), 0, 0
    for one in trace:
        hit = next((place for place, block in enumerate(one.chunks) if block not in cache), len(one.chunks))
        hits, tokens = hits + hit, tokens + min(hit * 512, one.prompt)
        for block in one.chunks:
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
                if len(cache) > size:
                    cache.popitem(last=False)
    return Hits(hits, tokens)

"""The KV cache alone: microseconds of a request's whole way through it, on private prompts and on conversations."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count, islice

import numpy as np

from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside
from ksim.flow.request import Request
from ksim.foundation import process
from ksim.kv.cache import BlockTable, Cache
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.kv.cache.vllm import VllmCache

BLOCK, BUDGET, CHUNK = 16, 8192, 512
BLOCKS = 65536
#: Of vLLM's two, the first is the default, and the other is for evictions that are not vLLM's own.
CACHES: dict[str, Callable[[], Cache]] = {
    "vllm, in runs": lambda: VllmCache(BLOCKS, BLOCK), "vllm, block by block": lambda: BlockCache(BLOCKS, BLOCK),
    "sglang": lambda: SglangCache(BLOCKS * BLOCK),
}
#: What a request may take in the cache that is the default.
GOALS = {load: Goal(f"KV cache, vllm: {load}", limit, "us/request")
         for load, limit in (("private", 10.0), ("conversations", 60.0))}


def findings() -> Findings:
    """Each cache under each load."""
    found, yardstick = beside(lambda: {name: {load: min(microseconds(load, make()) for _ in range(3)) for load in LOADS}
                                       for name, make in CACHES.items()})
    rows = [(name, *(f"{figures[load]:.1f}" for load in LOADS)) for name, figures in found.items()]
    title = (f"The KV cache alone, us of CPU for one request from admission to end, {BLOCKS} blocks: best of 3;"
             f" {yardstick:.2f} us for an event of SimPy")
    ours = found[next(iter(CACHES))]
    return Findings([Sheet(title, ("cache", *LOADS), rows)],
                    [goal.judged(ours[load], yardstick) for load, goal in GOALS.items()])


def microseconds(load: str, cache: Cache, requests: int = 2000, running: int = 64) -> float:
    """CPU time of one request of *load* in *cache*, beside *running* others, after as many have filled it."""
    stream, held = LOADS[load](), deque[tuple[BlockTable, int]]()
    _serve(cache, islice(stream, requests), held, running)
    measured = list(islice(stream, requests))
    with process.paused():
        begin = time.process_time()
        _serve(cache, measured, held, running)
        return (time.process_time() - begin) / requests * 1e6


def _serve(cache: Cache, requests: Iterator[Request] | list[Request], held: deque[tuple[BlockTable, int]],
           running: int) -> None:
    """Let each request in, and the one that came *running* before it out."""
    for request in requests:
        if len(held) >= running:
            cache.free(*held.popleft())
        table = cache.block_table(request)
        _prefill(cache, table, request.prompt)
        held.append((table, _decode(cache, table, request)))


def _prefill(cache: Cache, table: BlockTable, prompt: int) -> None:
    """Compute *prompt* tokens: short ones in three chunks, as in a batch with others."""
    chunk = min(BUDGET, -(-prompt // 3))
    hit = cache.find_prefix(table, prompt)
    end = min(prompt, hit.tokens + chunk)
    if not (cache.can_allocate(hit, prompt) and cache.can_allocate(hit, end)):
        raise AssertionError("the cache is too small for what runs at once")
    cache.attach_prefix(table, hit)
    cache.allocate(table, end)
    cache.publish(table, end)
    while end < prompt:
        end = min(prompt, end + chunk)
        cache.allocate(table, end)
        cache.publish(table, end)


def _decode(cache: Cache, table: BlockTable, request: Request) -> int:
    """Grow block by block up to the last token; return how many are computed."""
    end = request.prompt + request.output - 1
    private = cache.is_private(table)
    for tokens in range(-(-request.prompt // BLOCK) * BLOCK + 1, end + 1, BLOCK):
        cache.allocate(table, tokens)
        if not private:
            cache.publish(table, tokens - 1)
    return end


def _private() -> Iterator[Request]:
    """1,150 tokens in and 212 out, and nothing is shared."""
    for number in count():
        yield Request(number, 0.0, 1150, 212)


def _conversations() -> Iterator[Request]:
    """Turns of 40 conversations at a time, each with all that came before it: 12,000 tokens in chunks of 512 or so."""
    rng, names = np.random.default_rng(0), count()
    sessions: list[list[int]] = [[] for _ in range(40)]
    for number in count():
        place = int(rng.integers(len(sessions)))
        if len(sessions[place]) > 40:
            sessions[place] = []
        chunks = sessions[place]
        chunks.extend(islice(names, int(rng.integers(1, 10))))
        prompt = len(chunks) * CHUNK - int(rng.integers(0, CHUNK))
        yield Request(number, 0.0, prompt, int(rng.integers(50, 600)), tuple(chunks), CHUNK)
        if prompt % CHUNK:
            chunks.pop()  # the next turn goes on in the middle of it


LOADS = {"private": _private, "conversations": _conversations}

"""The scheduler alone: microseconds of one schedule and update, on the loads that vLLM's own was measured on."""

import time
from collections.abc import Iterator
from itertools import count

import numpy as np

from benchmarks.findings import Findings, Sheet
from benchmarks.yardstick import beside
from ksim.flow.request import Request
from ksim.foundation import process
from ksim.kv.cache.vllm import VllmCache
from ksim.scheduling.job import Job, Limits
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.scheduler import Scheduler

#: Microseconds a step of vLLM 0.33.0's scheduler (schedule and update, no model) on the machine of the yardstick's
#: standard: load, running requests, synchronous.
VLLM = {("decode", 64): 522.0, ("decode", 256): 1993.0, ("mixed", 64): 585.0, ("mixed", 256): 2239.0}
#: Loads with others behind those that run, or another number of blocks: waiting requests and blocks.
OTHERS = ((10, 32768), (10_000, 32768), (1_000_000, 32768), (0, 8192), (0, 1 << 20))
BLOCK = 16


def findings() -> Findings:
    """The scheduler alone, beside vLLM's own."""
    rows, yardstick = beside(lambda: [*_beside_vllm(), *_others()])
    title = f"The scheduler alone, us of CPU a step: best of 3; {yardstick:.2f} us for an event of SimPy"
    return Findings([Sheet(title, ("load", "running", "waiting", "KV blocks", "ksim", "vLLM 0.33", "ratio"), rows)])


def _beside_vllm() -> Iterator[tuple[str, ...]]:
    for (load, running), theirs in VLLM.items():
        ours = min(microseconds(load, running) for _ in range(3))
        yield load, str(running), "0", "32768", f"{ours:.1f}", f"{theirs:.0f}", f"{theirs / ours:.1f}"


def _others() -> Iterator[tuple[str, ...]]:
    for waiting, blocks in OTHERS:
        ours = min(microseconds("decode", 64, 300, waiting, blocks) for _ in range(3))
        yield "decode", "64", str(waiting), str(blocks), f"{ours:.1f}", "", ""


def microseconds(load: str, running: int, steps: int = 600, waiting: int = 0, blocks: int = 32768) -> float:
    """CPU time of one step of *load* with *running* requests, in microseconds, and *waiting* more behind them."""
    limits = Limits(max_num_batched_tokens=8192, max_num_seqs=running if waiting else 1024, max_model_len=8192)
    cache = VllmCache(blocks - 1, BLOCK)
    scheduler = Scheduler(limits, Fcfs(), cache)
    jobs = _jobs(_decoding(steps) if load == "decode" else _mixed(), cache)
    for _ in range(running + waiting):
        scheduler.add(next(jobs))
    number = _settle(scheduler, running)
    with process.paused():
        begin = time.process_time()
        for index in range(number, number + steps):
            for _ in scheduler.update(scheduler.schedule(0.0), index):
                scheduler.add(next(jobs))
        return (time.process_time() - begin) / steps * 1e6


def _settle(scheduler: Scheduler, running: int) -> int:
    """Step until all that can run has had its prompt computed; return how many steps that took."""
    for index in count():
        scheduler.update(scheduler.schedule(0.0), index)
        if len(scheduler.running) >= running and all(job.decoding for job in scheduler.running):
            return index + 1
    raise AssertionError("count() never ends")


def _jobs(requests: Iterator[Request], cache: VllmCache) -> Iterator[Job]:
    for request in requests:
        yield Job.of(request, request.id, BLOCK, block_table=cache.block_table(request))


def _decoding(steps: int) -> Iterator[Request]:
    """Prompts of 512 tokens that all decode throughout."""
    for number in count():
        yield Request(number, 0.0, 512, 2 * steps + 1000)


def _mixed() -> Iterator[Request]:
    """Prompts of 512 tokens, half of them one of 8, and 64 to 192 output tokens; a finished one is replaced at once."""
    rng = np.random.default_rng(0)
    prefixes = [tuple(("prefix", group, i) for i in range(32)) for group in range(8)]
    for number in count():
        shared = prefixes[int(rng.integers(8))] if rng.random() < 0.5 else ()
        yield Request(number, 0.0, 512, int(rng.integers(64, 193)), shared, BLOCK)

"""Random workloads: arrivals, aborts, and limits under which blocks and tokens are short."""

from collections.abc import Iterator
from typing import Any

from attrs import frozen
from hypothesis import strategies as st

from ksim.kv.cache.block_cache import BlockCache
from ksim.testing.loop import Loop, loop


@frozen
class Arrival:
    """A request of the `family`, all of whose prompts begin alike, and whose outputs are alike too."""

    turn: int
    prompt: int
    output: int
    overrun: int  # tokens that the scheduler expects beyond the last, where a stop token ends the output
    priority: int
    family: int
    reads_cache: bool

    def chunks(self, block_tokens: int) -> list[tuple[int, int]]:
        return [(self.family, place) for place in range((self.prompt + self.output) // block_tokens + 1)]


@frozen
class Workload:
    settings: dict[str, Any]  # for `loop`
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, int, bool], ...]  # turn, request, and whether it comes while a batch is in flight

    @property
    def longest(self) -> int:
        return max(min(a.prompt + a.output, self.settings["max_model_len"]) for a in self.arrivals)

    def play(self, policy: Any, cache: Any = BlockCache) -> Iterator[Loop]:
        """Play it with *policy*, and pause after every schedule and every update."""
        engine = loop(policy=policy, cache=cache, **self.settings)
        coming = sorted(self.arrivals, key=lambda arrival: arrival.turn)
        while coming or engine.scheduler.running or engine.scheduler.waiting:
            while coming and coming[0].turn <= engine.turns:
                _arrive(engine, coming.pop(0))
            self._abort(engine, in_flight=False)
            engine.schedule()
            yield engine
            self._abort(engine, in_flight=True)
            engine.update()
            yield engine

    def _abort(self, engine: Loop, *, in_flight: bool) -> None:
        for turn, number, when in self.aborts:
            if turn == engine.turns and when == in_flight and number < len(engine.jobs):
                engine.scheduler.abort(engine.jobs[number])


def _arrive(engine: Loop, arrival: Arrival) -> None:
    engine.add(arrival.prompt, arrival.output, chunks=arrival.chunks(engine.cache.block_tokens),
               limit=arrival.output + arrival.overrun, priority=arrival.priority, reads_cache=arrival.reads_cache)


@st.composite
def workloads(draw: st.DrawFn, *, aborts: bool = True, pipelines: bool = False) -> Workload:
    """Any workload that a real engine would accept: each request fits the cache when it is alone."""
    arrival = st.builds(
        Arrival, turn=st.integers(0, 30), prompt=st.integers(1, 40), output=st.integers(1, 25),
        overrun=st.sampled_from([0, 0, 1, 5]), priority=st.integers(0, 2), family=st.integers(0, 3),
        reads_cache=st.sampled_from([True, True, True, False]))
    arrivals = tuple(draw(st.lists(arrival, min_size=1, max_size=12)))
    max_model_len = draw(st.sampled_from([1000, 1000, max(a.prompt for a in arrivals) + 3]))
    block_tokens = draw(st.sampled_from([1, 2, 4, 7, 16]))
    longest = max(min(a.prompt + a.output, max_model_len) for a in arrivals)
    settings = {
        "max_model_len": max_model_len,
        "max_num_seqs": draw(st.sampled_from([1, 2, 4, 100])),
        "max_num_batched_tokens": draw(st.sampled_from([3, 5, 16, 50, 1000])),  # fewer than sequence slots, too
        "block_tokens": block_tokens,
        "blocks": -(-(longest + 1) // block_tokens) + draw(st.integers(0, 20)),
        "prefix_caching": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 4, 10])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "pipeline_parallel_size": draw(st.sampled_from([1, 1, 2, 3])) if pipelines else 1,
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 3])) if pipelines else 1,
    }
    drops = st.tuples(st.integers(0, 50), st.integers(0, len(arrivals) - 1), st.booleans())
    return Workload(settings, arrivals, tuple(draw(st.lists(drops, max_size=3 if aborts else 0))))

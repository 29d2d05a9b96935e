"""A run as arrays: the log, read once for all results."""

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np
from attrs import define

from ksim.flow.events import (
    Admitted,
    Arrived,
    Copied,
    Decoded,
    Emitted,
    EngineBuilt,
    Event,
    Failed,
    Finished,
    Held,
    LinkBuilt,
    LinkUsed,
    Preempted,
    Prefilled,
    Received,
    Refused,
    Rejected,
    Released,
    Routed,
    Transferred,
)
from ksim.flow.log import Columns, Log
from ksim.results.requests import Requests
from ksim.results.splits import Splits
from ksim.results.steps import Bools, Floats, Ints, Steps, each, floats, sums
from ksim.results.tiers import loaded_tokens, tiers_of

KINDS = (Arrived, Rejected, Routed, Received, Admitted, Preempted, Emitted, Finished, Prefilled, Transferred, Released,
         Failed, Decoded, Held, Refused, Copied)


@define(eq=False, slots=False)
class History:
    """The steps and requests of a run, and what follows from both; times in seconds from the start of the run."""

    log: Log

    @cached_property
    def engines(self) -> list[EngineBuilt]:
        return sorted(self.log.engines, key=attrgetter("engine"))

    @cached_property
    def events(self) -> dict[type[Event], Columns]:
        """The events of each kind except steps as columns, in order of time."""
        return {kind: self.log.columns(kind) for kind in KINDS}

    @cached_property
    def steps(self) -> Steps:
        return Steps(self.engines, self.log.step_blocks, self.log.before)

    @cached_property
    def requests(self) -> Requests:
        return Requests(self.events, self.steps)

    @cached_property
    def loaded(self) -> dict[str, Ints]:
        """The tokens of each request that were loaded from each tier; none in a run without tiers."""
        if not self.tiers:
            return {}
        admitted = self.requests.rows(self.events[Admitted]["request_id"])
        tokens = loaded_tokens(self.events, self.copied_rows, admitted, len(self.requests))
        return {tier: tokens[tier] for tier in self.tiers}

    @cached_property
    def copied_rows(self) -> Ints:
        """The row of the request of each copy."""
        return self.requests.rows(self.events[Copied]["request_id"])

    @cached_property
    def splits(self) -> Splits:
        """The requests that one engine prefills and another decodes."""
        return Splits(self.requests)

    @cached_property
    def pools(self) -> list[str]:
        """The names of the pools in the order of their engines; none in a run without pools."""
        return pools_of(self.engines)

    @cached_property
    def fleet(self) -> bool:
        """Whether the run has pools, or requests that are prefilled on one engine and decoded on another."""
        return bool(self.pools) or len(self.splits) > 0

    @cached_property
    def pool(self) -> Ints:
        """The place in `pools` of each engine's pool."""
        return each(self.engines, lambda built: self.pools.index(built.pool)) if self.pools else np.zeros(
            len(self.engines), np.int64)

    @property
    def links(self) -> list[LinkBuilt]:
        """The links of the fleet; none for a run without pools or tiers."""
        return self.log.links if self.fleet or self.tiers else []

    @cached_property
    def tiers(self) -> list[str]:
        """Where the KV of any engine is kept beyond its GPUs."""
        return tiers_of(self.engines)

    @cached_property
    def link_use(self) -> Columns:
        """When flows began to use how many bytes/s of which link."""
        return self.log.columns(LinkUsed)

    @cached_property
    def duration(self) -> float:
        """Seconds from the start of the run to its last event.

        Blocks that a prefill engine holds until their lease ends do not make it longer, nor does KV that is stored.
        """
        times = [float(columns["time"].max(initial=0.0)) for kind, columns in self.events.items()
                 if kind is not Released and kind is not Copied]
        return max(*times, float(self.steps.time.max(initial=0.0)))

    @cached_property
    def gpus(self) -> int:
        return sum(built.ranks * built.stages for built in self.engines)

    @cached_property
    def static_watts(self) -> float:
        """Static power of all GPUs while they are awake."""
        return float(sum(built.static_watts * built.ranks * built.stages for built in self.engines))

    @cached_property
    def naps(self) -> Floats:
        """Seconds before each step in which the GPUs of its engine slept."""
        steps = self.steps
        return np.maximum(0.0, steps.start - steps.ahead - steps.per_engine("sleep_after"))

    @cached_property
    def last_naps(self) -> Floats:
        """Seconds at the end of the run in which the GPUs of each engine slept."""
        ended = [float(self.steps.ended[self.steps.rows(place)].max(initial=0.0)) for place in range(len(self.engines))]
        return np.maximum(0.0, self.duration - np.array(ended) - floats(self.engines, "sleep_after"))

    @cached_property
    def static_joules(self) -> float:
        """Static energy of all GPUs, asleep or awake."""
        asleep = sums(self.steps.engine, self.naps, len(self.engines)) + self.last_naps
        return static_joules(self.engines, asleep, self.duration)

    @cached_property
    def host_gaps(self) -> Floats:
        """Seconds before each step in which the engine had work and its GPUs waited for the CPU.

        They wait from the end of the engine's earlier steps, or from the arrival of its oldest unfinished request,
        whichever is later.
        """
        gaps, steps, waiting_since = np.zeros(len(self.steps)), self.steps, self._oldest_work()
        for place in range(len(self.engines)):
            rows = steps.rows(place)
            oldest = np.minimum.accumulate(waiting_since[rows][::-1])[::-1]
            gaps[rows] = np.maximum(0.0, steps.start[rows] - np.maximum(steps.ahead[rows], oldest))
        return gaps

    @cached_property
    def host_waits(self) -> Floats:
        """Seconds before and in each step in which its GPUs waited for the CPU."""
        return self.host_gaps + self.steps.launch_waits

    def _oldest_work(self) -> Floats:
        """For each step: the arrival of the oldest request whose last token comes from this step; inf without one."""
        requests, oldest = self.requests, np.full(len(self.steps), np.inf)
        ended, plain = requests.ended, (requests.engine >= 0) & (requests.prefill_engine < 0)
        self._note(oldest, plain, requests.engine, requests.reached, np.where(ended, requests.last_step, -2))
        if len(splits := self.splits):
            ended = ended[splits.row]
            last = np.where(ended | (splits.last_prefill >= 0), splits.last_prefill, -2)
            self._note(oldest, ~np.isnan(splits.routed), splits.source, splits.routed, last)
            since = np.fmin(splits.loaded, splits.admitted)
            last = np.where(ended, requests.last_step[splits.row], -2)
            self._note(oldest, ~np.isnan(since), splits.target, since, last)
        return oldest

    def _note(self, oldest: Floats, known: Bools, engine: Ints, since: Floats, last: Ints) -> None:
        """Note the work that engines have had *since* then, up to their step in the row *last*; -2 for all steps."""
        first = self.steps.first
        ends = np.where(last == -2, first[engine + 1] - 1, last)
        known = known & (ends >= first[engine]) & (ends < first[engine + 1])
        np.minimum.at(oldest, ends[known], since[known])

    @cached_property
    def idle_after(self) -> Floats:
        """Seconds after each step in which its engine had no work, up to its next step or the end of the run."""
        idle, steps = np.zeros(len(self.steps)), self.steps
        for place in range(len(self.engines)):
            rows = steps.rows(place)
            following = np.concatenate([(steps.start - self.host_gaps)[rows][1:], [self.duration]])
            idle[rows] = np.maximum(0.0, following - steps.ended[rows])
        return idle

    @cached_property
    def busy_gpu_seconds(self) -> float:
        return float(self.steps.gpu_seconds.sum())


def pools_of(engines: Sequence[EngineBuilt]) -> list[str]:
    """The names of the pools of *engines*, in their order; none where engines have no pools."""
    return [name for name in dict.fromkeys(built.pool for built in engines) if name]


def static_joules(engines: Sequence[EngineBuilt], asleep: Floats, duration: float) -> float:
    """Static energy of the GPUs of *engines* in *duration* seconds, of which they were *asleep* for so many."""
    gpus = each(engines, lambda engine: engine.ranks * engine.stages)
    saved = floats(engines, "static_watts") - floats(engines, "sleep_watts")
    slept = np.where(asleep > 0, asleep * saved, 0.0) * gpus
    return float(floats(engines, "static_watts") @ gpus) * duration - float(slept.sum())

"""A run as arrays: the log, read once for all results."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import attrgetter

import numpy as np
from attrs import define

from ksim.flow.events import (
    TIERS,
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
from ksim.results.steps import Bools, Floats, Ints, Steps, each, floats, ints, sums


@define(eq=False, slots=False)
class Splits:
    """Split requests: columns with one row for each; nan where something did not happen.

    `row` is the request's row in `Requests`.  `source` and `target` are the places of the engines that prefill and
    decode it.
    """

    requests: Requests

    def __attrs_post_init__(self) -> None:
        self.row: Ints = np.flatnonzero(self.requests.prefill_engine >= 0)
        self.source: Ints = self.requests.prefill_engine[self.row]
        self.target: Ints = self.requests.engine[self.row]
        self._place = np.full(len(self.requests), -1)
        self._place[self.row] = np.arange(len(self.row))

    def __len__(self) -> int:
        return len(self.row)

    def _first(self, kind: type[Event], name: str = "time", at: Ints | None = None) -> Floats:
        """The value of the first event of one *kind* of each row, on the engines *at* these places."""
        events, column = self.requests.events[kind], np.full(len(self), np.nan)
        if len(self):
            index = self._place[self.requests.rows(events["request_id"])]
            which = np.flatnonzero(index >= 0)
            if at is not None:
                which = which[self.requests.steps.places(events["engine"][which]) == at[index[which]]]
            column[index[which[::-1]]] = events[name][which[::-1]]
        return column

    @cached_property
    def routed(self) -> Floats:
        return self._first(Routed)

    @cached_property
    def queued(self) -> Floats:
        """When the decode engine had the request; when the prefill engine's answer came, without a front end."""
        received = self._first(Received, at=self.target)
        for otherwise in (self.answered, self.admitted):
            received = np.where(np.isnan(received), otherwise, received)
        return received

    @cached_property
    def prefilling(self) -> Floats:
        """When the prefill engine first admitted the request."""
        return self._first(Admitted, at=self.source)

    @cached_property
    def answered(self) -> Floats:
        """When the router had the prefill engine's answer."""
        return self._first(Prefilled)

    @cached_property
    def awaited(self) -> Bools:
        """Whether the decode engine got the request after that answer, and not at once."""
        return self.queued >= self.answered

    @cached_property
    def sent(self) -> Floats:
        """When the router sent the request to the decode engine."""
        return np.where(self.awaited, self.answered, self.routed)

    @cached_property
    def last_prefill(self) -> Ints:
        """The row of the step that computed the last prompt token on the prefill engine; -1 for none."""
        step = self._first(Prefilled, "step")
        known = ~np.isnan(step)
        rows = np.full(len(self), -1)
        numbers = ints(self.requests.steps.engines, "engine")
        rows[known] = self.requests.steps.row(numbers[self.source[known]], step[known].astype(np.int64))
        return rows

    @cached_property
    def prefilled(self) -> Floats:
        """When the GPUs had computed the last prompt token."""
        ended = np.append(self.requests.steps.ended, np.nan)
        return ended[self.last_prefill]

    @cached_property
    def allocated(self) -> Floats:
        """When the decode engine had blocks for all of the prompt's KV."""
        return self._first(Transferred, "allocated")

    @cached_property
    def began(self) -> Floats:
        """When the first byte of KV left the prefill engine."""
        return self._first(Transferred, "began")

    @cached_property
    def loaded(self) -> Floats:
        """When the last byte had arrived."""
        return self._first(Transferred)

    @cached_property
    def alone(self) -> Floats:
        """The seconds that the transfer would take on links of its own."""
        return self._first(Transferred, "alone")

    @cached_property
    def bytes(self) -> Floats:
        return self._first(Transferred, "bytes")

    @cached_property
    def tokens(self) -> Floats:
        """The tokens whose KV moved."""
        return self._first(Transferred, "tokens")

    @cached_property
    def admitted(self) -> Floats:
        """When the decode engine first admitted the request."""
        return self._first(Admitted, at=self.target)

    @cached_property
    def cached(self) -> Floats:
        """The tokens that the decode engine need not compute then."""
        return self._first(Admitted, "cached", at=self.target)

    @cached_property
    def released(self) -> Floats:
        """When the prefill engine let go of the blocks."""
        return self._first(Released)

    @cached_property
    def expired(self) -> Bools:
        """Whether it did so because the lease had ended."""
        return self._first(Released, "lease") > 0

    @cached_property
    def held_blocks(self) -> Ints:
        """The blocks of the prompt on the prefill engine."""
        sizes = ints(self.requests.steps.engines, "block_tokens")[self.source]
        return -(-self.requests.prompt[self.row] // np.maximum(sizes, 1))

    @cached_property
    def handed(self) -> Bools:
        """Whether the first token is the prefill engine's."""
        runs = self.requests.runs
        found = np.zeros(len(self.requests), dtype=bool)
        found[runs.row[runs.handed]] = True
        return found[self.row]

    @cached_property
    def waiting_for_room(self) -> tuple[Floats, Floats]:
        """From when to when each request waited for blocks of the decode engine, its KV being there to be loaded."""
        begin = np.maximum(self.queued, np.where(self.awaited, self.answered, self.prefilled))
        begin[self._alone] = np.nan
        until = np.fmin(np.fmin(self.allocated, self.admitted), self.requests.failed[self.row])
        return begin, np.maximum(begin, until)

    @cached_property
    def between(self) -> tuple[Floats, Floats]:
        """From when to when each request ran on neither engine; nan for those that ended on the first one."""
        return np.where(self._alone, np.nan, self.prefilled), self.admitted

    @cached_property
    def _alone(self) -> Bools:
        """Requests that the prefill engine completed."""
        return self.requests.completed[self.row] & np.isnan(self.admitted)


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
        """The tokens of each request that were loaded from each tier at its first admission, whose lookup hit rates
        are about; none in a run without tiers.
        """
        if not self.tiers:
            return {}
        copies, admissions, count = self.events[Copied], self.events[Admitted], len(self.requests)
        leading = np.zeros(count, np.int64)  # the sequence that was admitted first
        leading[self.requests.rows(admissions["request_id"])[::-1]] = admissions["sequence"][::-1]
        rows = self.copied_rows
        first = (copies["target"] == "gpu") & ~copies["again"].astype(bool) & (copies["sequence"] == leading[rows])
        behind = {tier: sums(rows, np.where(first, copies[tier], 0), count) for tier in TIERS[1:]}
        whole = sums(rows, np.where(first, copies["tokens"], 0), count)
        tokens = {TIERS[0]: whole - sum(behind.values(), np.zeros(count)), **behind}
        return {tier: tokens[tier].astype(np.int64) for tier in self.tiers}

    @cached_property
    def loading(self) -> Floats:
        """Seconds of each request in its queue in which its KV was on its way up to the GPU, copy after copy."""
        copies, requests = self.events[Copied], self.requests
        upwards = (copies["target"] == "gpu") | ((copies["target"] == "cpu") & (copies["source"] != "gpu"))
        rows = self.copied_rows[upwards]
        begin = np.fmax(copies["asked"][upwards], requests.received[rows])
        end = np.fmin(copies["time"][upwards], requests.admitted[rows])
        return np.minimum(requests.queue, sums(rows, np.nan_to_num(np.maximum(end - begin, 0.0)), len(requests)))

    @cached_property
    def copied_rows(self) -> Ints:
        """The row of the request of each copy."""
        return self.requests.rows(self.events[Copied]["request_id"])

    @property
    def has_adapters(self) -> bool:
        """Whether any engine has slots for LoRA adapters."""
        return any(built.max_loras for built in self.log.engines)

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
        ended = [float(self.steps.ended[self.steps.rows(index)].max(initial=0.0)) for index in range(len(self.engines))]
        return np.maximum(0.0, self.duration - np.array(ended) - floats(self.engines, "sleep_after"))

    @cached_property
    def static_joules(self) -> float:
        """Static energy of all GPUs, asleep or awake."""
        asleep = sums(self.steps.engine, self.naps, len(self.engines)) + self.last_naps
        return static_joules(self.engines, allocated_gpu_seconds(self.engines, self.duration), asleep)

    @cached_property
    def host_gaps(self) -> Floats:
        """Seconds before each step in which the engine had work and its GPUs waited for the CPU.

        They wait from the end of the engine's earlier steps, or from the arrival of its oldest unfinished request,
        whichever is later.
        """
        gaps, steps, waiting_since = np.zeros(len(self.steps)), self.steps, self._oldest_work()
        for index in range(len(self.engines)):
            rows = steps.rows(index)
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
        for index in range(len(self.engines)):
            rows = steps.rows(index)
            following = np.concatenate([(steps.start - self.host_gaps)[rows][1:], [self.duration]])
            idle[rows] = np.maximum(0.0, following - steps.ended[rows])
        return idle

    @cached_property
    def busy_gpu_seconds(self) -> float:
        return float(self.steps.gpu_seconds.sum())


def pools_of(engines: Sequence[EngineBuilt]) -> list[str]:
    """The names of the pools of *engines*, in their order; none where engines have no pools."""
    return [name for name in dict.fromkeys(built.pool for built in engines) if name]


def is_scaled(engines: Sequence[EngineBuilt]) -> bool:
    """Whether replicas may come and go."""
    return any(built.life for built in engines)


def allocated_intervals(built: EngineBuilt, duration: float) -> Iterator[tuple[float, float]]:
    """From when until when an engine has GPUs in a run of *duration*."""
    for (since, state), (until, _) in pairwise((*(built.life or ((0.0, ""),)), (duration, "gone"))):
        if state != "gone" and since < min(until, duration):
            yield since, min(until, duration)


def absent(engines: Sequence[EngineBuilt], duration: float) -> Floats:
    """The seconds of a run of *duration* in which each of *engines* has no GPUs."""
    there = [sum(until - since for since, until in allocated_intervals(built, duration)) for built in engines]
    return np.array([duration - seconds if built.life else 0.0 for built, seconds in zip(engines, there, strict=True)])


def allocated_gpu_seconds(engines: Sequence[EngineBuilt], duration: float) -> Floats:
    """The GPU seconds of each of all *engines* in a run of *duration*: its own, and where nodes come and go, a share of
    those of its nodes that nobody has, by its own on the node."""
    own = each(engines, _gpus) * (duration - absent(engines, duration))
    found = own.copy()
    for places, since, until, gpus in unused_gpus(engines, duration):
        shares = own[places] / [len(engines[place].nodes) for place in places]
        found[places] += float(gpus @ (until - since)) * shares / max(shares.sum(), 1e-300)
    return found


def unused_gpus(engines: Sequence[EngineBuilt], duration: float
               ) -> Iterator[tuple[list[int], Floats, Floats, Floats]]:
    """The GPUs that nobody has of each node of *engines* that comes and goes, in a run of *duration*.

    Yields the places of the engines on it, and columns of (changes,): from when until when there are so many more.
    """
    on = dict[int, list[int]]()
    for place, built in enumerate(engines):
        for node in built.nodes:
            on.setdefault(node, []).append(place)
    for places in on.values():
        first = engines[places[0]]
        taken = [(since, until, -_on_a_node(engines[place])) for place in places
                 for since, until in allocated_intervals(engines[place], duration)]
        there = [(since, until, float(first.node_gpus)) for since, until in _joined(
            (since, min(until + first.node_idle, duration)) for since, until, _ in taken)]
        since, until, gpus = np.array([*there, *taken]).reshape(-1, 3).T
        yield places, since, until, gpus


def static_joules(engines: Sequence[EngineBuilt], held: Floats, asleep: Floats) -> float:
    """Static energy of the GPUs of *engines*, each of which *held* so many GPU seconds, and was *asleep* for so many
    seconds of the run."""
    saved = floats(engines, "static_watts") - floats(engines, "sleep_watts")
    slept = np.where(asleep > 0, asleep * saved, 0.0) * each(engines, _gpus)
    return float(floats(engines, "static_watts") @ held) - float(slept.sum())


def _gpus(built: EngineBuilt) -> int:
    return built.ranks * built.stages


def _on_a_node(built: EngineBuilt) -> float:
    """The GPUs of an engine on each of its nodes."""
    return _gpus(built) / len(built.nodes)


def _joined(stays: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """*stays* in order, those as one that meet."""
    joined = list[tuple[float, float]]()
    for since, until in sorted(stays):
        if joined and since <= joined[-1][1]:
            first, last = joined.pop()
            joined.append((first, max(until, last)))
        else:
            joined.append((since, until))
    return joined


def tiers_of(engines: Iterable[EngineBuilt]) -> list[str]:
    """The tiers below the GPU that any of *engines* has."""
    there = {tier for built in engines for tier in built.tiers}
    return [tier for tier in TIERS if tier in there]

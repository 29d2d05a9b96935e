"""Where each request's time went: seconds of every phase, which add up to its TTFT and to the rest of its E2EL.

docs/explain.md defines the phases.  `Breakdown` has those of a saved run.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define, evolve, frozen
from pyarrow import ArrowException

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import parquet_table
from ksim.results import activity
from ksim.results.activity import Activity, PromptChunks, Shares, Stretches
from ksim.results.arrow import table
from ksim.results.history import History, Splits
from ksim.results.steps import Bools, Floats, Ints, sums

#: The parts of a request's time: up to its first token, and from there to its last.
TO_FIRST, AFTER = "to_first", "after"

INTAKE, QUEUE, OTHERS_PREFILL, OTHERS_DECODE = "intake", "queue", "others_prefill", "others_decode"
LOADING = "kv_load"
PREEMPTED, RECOMPUTATION = "preempted", "recomputation"
SCHEDULE, LAUNCH, LOADS = "schedule", "launch", "adapter_loads"
UPDATE, DELIVERY = "update", "delivery"
HOP, ROOM, TRANSFER, CONTENTION, NEXT_STEP = "hop", "room", "transfer", "contention", "next_step"
#: The phases that only split requests have, and the group in which each is shown.
HANDOVER = {HOP: "hop", ROOM: "wait for room", TRANSFER: "KV transfer", CONTENTION: "KV contention",
            NEXT_STEP: "next step"}
#: What follows the last prompt token: the prefill engine's host takes in and delivers its answer, and then those.
AFTER_PREFILL = (UPDATE, DELIVERY, *HANDOVER)
HELD, BACK_OFF = "held", "back_off"
COMMUNICATION = "communication"
#: Prefixes of the names of kernel families.
PREFILL, DECODE = "prefill.", "decode."

#: Phases that not all runs have, with their groups.
_OPTIONAL = (*HANDOVER, LOADS, LOADING, HELD, BACK_OFF)
#: Groups in which phases are shown; those of a hand-over, of adapters, tiers or a gateway only where runs have them.
#: With tiers, the time in the queue is in two groups, for its KV loads and for the rest.
GROUPS: dict[str, tuple[str, ...]] = {
    "client's back-off": (BACK_OFF,),
    "held at the gateway": (HELD,),
    "client and intake": (INTAKE,),
    "queue": (QUEUE,),
    "queue: KV load": (LOADING,),
    "queue: rest": (QUEUE,),
    "own prefill": (PREFILL,),
    "others' prefill": (OTHERS_PREFILL,),
    "others' decodes": (OTHERS_DECODE,),
    **{group: (phase,) for phase, group in HANDOVER.items()},
    "decode": (DECODE,),
    "preemption": (PREEMPTED, RECOMPUTATION),
    "host": (SCHEDULE, LAUNCH, UPDATE),
    "adapter loads": (LOADS,),
    "communication": (COMMUNICATION,),
    "delivery": (DELIVERY,),
}


def phases(families: Sequence[str], fleet: bool = False, adapters: bool = False, gateway: bool = False,
           tiers: bool = False) -> list[str]:
    """All phases in the order of a request's life, with kernels of these *families*.

    In a *fleet*, requests may be handed over from one engine to another; with *adapters*, workers load these, and with
    *tiers* KV; a *gateway* may hold requests or refuse them.
    """
    return [*((BACK_OFF, HELD) if gateway else ()), INTAKE, QUEUE, *((LOADING,) if tiers else ()),
            *(PREFILL + family for family in families), OTHERS_PREFILL, OTHERS_DECODE,
            *(HANDOVER if fleet else ()),
            *(DECODE + family for family in families), PREEMPTED, RECOMPUTATION, SCHEDULE, LAUNCH, UPDATE,
            *((LOADS,) if adapters else ()), COMMUNICATION, DELIVERY]


def groups(names: Sequence[str]) -> list[str]:
    """The groups of phases with these *names*: all groups, but optional ones only if there are any."""
    without = "queue" if LOADING in names else "queue: rest"
    return [group for group, (first, *_) in GROUPS.items()
            if group != without and (first not in _OPTIONAL or first in names)]


def members(group: str, names: Sequence[str]) -> list[str]:
    """The *names* that belong to *group*."""
    own = GROUPS[group]
    return [name for name in names if any(name.startswith(of) if of.endswith(".") else name == of for of in own)]


def by_group(seconds: Floats, names: Sequence[str]) -> Floats:
    """The seconds of each group of phases: the last dimension goes from *names* to groups."""
    return np.stack([seconds[..., [names.index(name) for name in members(group, names)]].sum(axis=-1)
                     for group in groups(names)], axis=-1)


#: Largest rounding error of sums over all steps of a run, in seconds or as a share.
_ROUNDING = 1e-8


def attribution_table(shares: Shares) -> pa.Table:
    """One row per completed request, in order of arrival.

    Columns are its `id`, and seconds in ``to_first.PHASE`` and ``after.PHASE``.  Kernel families in which no request
    spent time are left out.
    """
    history = shares.history
    parts = _Partition.of(history, Activity(history, shares))
    rows = np.flatnonzero(history.requests.completed)
    columns: dict[str, Floats | Ints] = {"id": history.requests.ids[rows]}
    for part, (begin, end), seconds in zip((TO_FIRST, AFTER), parts.windows, parts.seconds, strict=True):
        exact = _settled(seconds[rows], (end - begin)[rows])
        for name, column in zip(parts.names, exact.T, strict=True):
            if "." not in name or column.any():
                columns[f"{part}.{name}"] = column
    return table(columns)


def _settled(seconds: Floats, totals: Floats) -> Floats:
    """*seconds* that add up to *totals* exactly: the largest phase of each row absorbs the rounding."""
    seconds = np.maximum(seconds, 0.0)
    rounding = np.abs(totals - seconds.sum(axis=1))
    assert (rounding <= _ROUNDING * np.maximum(1.0, totals)).all(), "phases leave something out, or count it twice"
    if len(seconds):
        seconds[np.arange(len(seconds)), seconds.argmax(axis=1)] += totals - seconds.sum(axis=1)
    return seconds


@define(eq=False)
class _Partition:
    """The seconds of each request in each phase, for both parts of its time: (parts, requests, phases).

    `windows` has the beginning and the end of each part.
    """

    history: History
    activity: Activity
    stretches: Stretches
    names: list[str]
    windows: list[tuple[Floats, Floats]]
    seconds: Floats

    @classmethod
    def of(cls, history: History, does: Activity) -> "_Partition":
        requests = history.requests
        names = phases(does.shares.families[:-1], history.fleet, history.has_adapters, history.log.gated,
                       bool(history.tiers))
        windows = [(requests.arrival, requests.first_token), (requests.first_token, requests.last_token)]
        made = cls(history, does, does.shares.stretches, names, windows, np.zeros((2, len(requests), len(names))))
        made._before_admission()
        made._handed_over()
        made._behind_gpus()
        made._stretches()
        made._own_prefills()
        return made

    def _add(self, part: int, name: str, rows: Ints, amounts: Floats) -> None:
        self.seconds[part, :, self.names.index(name)] += sums(rows, amounts, len(self.history.requests))

    def _before_admission(self) -> None:
        requests, rows = self.history.requests, np.arange(len(self.history.requests))
        if HELD in self.names:
            self._add(0, HELD, rows, requests.held_at_first)
            self._add(0, BACK_OFF, rows, requests.backed_off)
            self._add(0, INTAKE, rows, requests.received - requests.reached)
        else:
            self._add(0, INTAKE, rows, requests.received - requests.arrival)
        loading = np.zeros(len(rows))
        if self.history.tiers:
            loading = self.history.loading
            self._add(0, LOADING, rows, loading)
        self._add(0, QUEUE, rows, requests.queue - loading)

    def _handed_over(self) -> None:
        """Add the time of split requests between the GPUs of their two engines."""
        if not len(self.history.splits):
            return
        rows, moments = _moments(self.history.splits)
        for (begin, end), name in zip(pairwise(moments.T), AFTER_PREFILL, strict=True):
            for part in range(2):
                since, until = self._clipped(part, rows, begin, end)
                self._add(part, name, rows, until - since)

    def _behind_gpus(self) -> None:
        """Add the time after the GPUs finish each part's last token: the host processes and delivers it."""
        requests = self.history.requests
        rows = np.flatnonzero(requests.completed)
        for part, places in enumerate((requests.first[:-1], requests.first[1:] - 1)):
            steps = requests.token_steps[places[rows]]
            begin, end = (edge[rows] for edge in self.windows[part])
            done = np.maximum(self.activity.ends[steps], begin)
            taken = np.maximum(self.history.steps.taken[steps], done)
            self._add(part, UPDATE, rows, taken - done)
            self._add(part, DELIVERY, rows, end - taken)

    def _clipped(self, part: int, rows: Ints, begin: Floats, end: Floats) -> tuple[Floats, Floats]:
        """The time between *begin* and *end* that lies in this part.

        The first part ends when the GPUs finish the step of the first token; the second begins with the first token.
        """
        requests = self.history.requests
        if part:
            begin = np.maximum(begin, requests.first_token[rows])
        else:
            end = np.minimum(end, self.activity.ends[requests.token_steps[requests.first[rows]]])
        return begin, np.maximum(begin, end)

    def _stretches(self) -> None:
        """Add what engines do while each request runs, and the time in which it is preempted.

        At first, all prompt tokens count as those of other requests.
        """
        rows, engines, states, begin, end = self.stretches.table()
        for part in range(2):
            since, until = self._clipped(part, rows, begin, end)
            lost = states == activity.PREEMPTED
            self._add(part, PREEMPTED, rows[lost], (until - since)[lost])
            runs = ~lost & (until > since)
            spent = self.activity.between(engines[runs], since[runs], until[runs])
            self._running(part, rows[runs], states[runs], spent)

    def _running(self, part: int, rows: Ints, states: Ints, spent: Floats) -> None:
        for name, column in ((UPDATE, activity.UPDATE), (SCHEDULE, activity.SCHEDULE),
                             (LAUNCH, activity.LAUNCH), (OTHERS_PREFILL, activity.PROMPTS)):
            self._add(part, name, rows, spent[:, column])
        if LOADS in self.names:
            self._add(part, LOADS, rows, spent[:, activity.LOADS])
        decodes, decoding = spent[:, activity.DECODES:], states == activity.DECODE
        for family, column in zip(self._families(DECODE), decodes.T, strict=True):
            self._add(part, family, rows[decoding], column[decoding])
        self._add(part, OTHERS_DECODE, rows[~decoding], decodes[~decoding].sum(axis=1))

    def _families(self, prefix: str) -> list[str]:
        """The phases of the kernel families, with this *prefix*; communication has a phase of its own."""
        return [*(prefix + family for family in self.activity.shares.families[:-1]), COMMUNICATION]

    def _own_prefills(self) -> None:
        """Move the time of a request's own prompt tokens from others' prefill to its own """
        chunks, stints = self.stretches.prompt_chunks, self.stretches.stints
        steps, rows, states = chunks.step, stints.row[chunks.stint], stints.state[chunks.stint]
        own = self._own_seconds(chunks)
        starts, ends = self.activity.begins[steps], self.activity.ends[steps]
        caught_up = np.minimum(ends, stints.caught_up[chunks.stint])
        for part in range(2):
            since, until = self._clipped(part, rows, starts, caught_up)
            inside = np.where(ends > starts, (until - since) / np.where(ends > starts, ends - starts, 1.0), 0.0)
            mine = own * inside[:, None]
            self._add(part, OTHERS_PREFILL, rows, -mine.sum(axis=1))
            self._add(part, RECOMPUTATION, rows[states == activity.AGAIN], mine[states == activity.AGAIN].sum(axis=1))
            for state, prefix in ((activity.PREFILL, PREFILL), (activity.DECODE, DECODE)):
                which, names = states == state, self._families(prefix)
                for index, column in zip(self.activity.shares.family.tolist(), mine.T, strict=True):
                    self._add(part, names[index], rows[which], column[which])

    def _own_seconds(self, chunks: PromptChunks) -> Floats:
        """GPU seconds of each chunk by `Shares.parts`; at most those of all prompts in its step."""
        shares = self.activity.shares.of(chunks.step, chunks.new, chunks.context)
        return np.minimum(self.activity.seconds(chunks.step) * shares, self.activity.prompts(chunks.step))


def _moments(splits: Splits) -> tuple[Ints, Floats]:
    """The rows of completed requests that two engines ran; when each of `AFTER_PREFILL` began, and the last one ended.

    A phase begins when the one before it ends.  Where a connector moves KV behind the prefill, much of the hand-over is
    over by then: a phase that ended before the one ahead of it takes no time.  The decode engine's first admission is
    the end of all.
    """
    requests = splits.requests
    which = requests.completed[splits.row] & ~np.isnan(splits.admitted)
    taken = np.append(requests.steps.taken, np.nan)[splits.last_prefill]
    begin = np.where(splits.handed, requests.first_token[splits.row], splits.prefilled)
    begin = np.where(np.isnan(begin), splits.queued, begin)
    taken, answered = (np.where(splits.awaited, times, np.nan) for times in (taken, splits.answered))
    ends = [begin, taken, answered, splits.queued, np.where(np.isnan(splits.loaded), splits.admitted, splits.allocated)]
    reached = np.stack([np.minimum(end, splits.admitted) for end in accumulate(ends, np.fmax)], axis=1)[which]
    return splits.row[which], np.concatenate([reached, _transfers(splits, reached[:, -1:], which)], axis=1)


def _transfers(splits: Splits, begin: Floats, which: Bools) -> Floats:
    """When what is left of each transfer from *begin* on could have ended, did end, and the decode engine went on."""
    began, loaded, alone, admitted = (column[which, None] for column in (
        splits.began, splits.loaded, splits.alone, splits.admitted))
    end = np.fmax(begin, np.fmin(loaded, admitted))
    return np.concatenate([np.fmin(np.fmax(begin, began) + alone, end), end, admitted], axis=1)


#: What a run is judged by, and the statistics of it; shares of the requests, from the fastest, whose phases a
#: percentile is given.
METRICS = ("ttft", "tpot", "e2el")
_BANDS = {"median": (0.50, 0.45, 0.55), "p99": (0.99, 0.98, 1.0)}
STATISTICS = ("mean", *_BANDS)


@frozen(eq=False)
class Breakdown:
    """The completed requests of the run in `directory`.

    Their seconds are by `names`, up to the first token and after it: (requests, phases).  `tokens` counts their
    output tokens.
    """

    directory: Path
    ids: Ints
    output: Ints
    names: list[str]
    to_first: Floats
    after: Floats

    @classmethod
    def read(cls, directory: Path) -> "Breakdown":
        """Read what `Result.save` wrote; raises ConfigError if there is no run, or a run without attribution."""
        if not (directory / "summary.json").is_file():
            raise ConfigError(str(directory), "there is no run; name a directory that `ksim run -o` has written")
        if not (directory / "attribution.parquet").is_file():
            raise ConfigError(str(directory), "the run says nothing of where time went (attribution.parquet): it was"
                              f" written with --stream, or by an older ksim; run {directory / 'scenario.toml'} again")
        seconds = _columns(directory / "attribution.parquet")
        if not all(np.isfinite(column).all() for column in seconds.values()):
            raise DataError(str(directory / "attribution.parquet"), "has a time that is no number; run it again")
        return cls._of(directory, seconds, _columns(directory / "requests.parquet"))

    @classmethod
    def _of(cls, directory: Path, seconds: Mapping[str, Any], requests: Mapping[str, Any]) -> "Breakdown":
        """What the columns of attribution.parquet and of requests.parquet say."""
        output = dict(zip(requests["id"].tolist(), requests["output_tokens"].tolist(), strict=True))
        found = {name.partition(".")[2] for name in seconds if name != "id"}
        families = {name.partition(".")[2] for name in found if "." in name}
        names = [name for name in phases(sorted(families), fleet=True, adapters=True, gateway=True, tiers=True)
                 if name in found]
        ids = seconds["id"].astype(np.int64)
        parts = [_stacked([seconds.get(f"{part}.{name}", np.zeros(len(ids))) for name in names], len(ids))
                 for part in (TO_FIRST, AFTER)]
        return cls(directory, ids, np.array([output[each] for each in ids.tolist()], np.int64), names, *parts)

    def place(self, request: int) -> int:
        """The row of a request; raises ConfigError if it does not exist or did not complete."""
        places = np.flatnonzero(self.ids == request)
        if len(places):
            return int(places[0])
        raise ConfigError(str(self.directory), self._missing(request))

    def _missing(self, request: int) -> str:
        table = _columns(self.directory / "requests.parquet")
        for number, status, reason in zip(table["id"], table["status"], table["reason"], strict=True):
            if number == request:
                why = f": {reason}" if reason else ""
                return f"request {request} is {status}{why}; only completed ones have all their time told"
        near = sorted(self.ids.tolist(), key=lambda other: (abs(other - request), other))[:3]
        hint = f"; the nearest are {', '.join(map(str, sorted(near)))}" if near else ""
        return f"there is no request {request} among {len(table['id']):,}{hint}"

    def of(self, request: int) -> dict[str, Floats]:
        """The phases of one request in seconds: up to its first token, after it, and in all."""
        row = self.place(request)
        return {TO_FIRST: self.to_first[row], AFTER: self.after[row], "all": self.to_first[row] + self.after[row]}

    def engines(self, request: int) -> str:
        """Which engines prefilled and decoded a request, in a run with pools; "" in any other."""
        table = _columns(self.directory / "requests.parquet")
        if "prefill_engine" not in table:
            return ""
        row = int(np.flatnonzero(table["id"] == request)[0])
        engine, source = table["engine"][row], table["prefill_engine"][row]
        if source is None or np.isnan(source):
            return f"served by engine {engine:.0f}"
        return f"prefilled by engine {source:.0f}, decoded by {engine:.0f}"

    def metric(self, name: str) -> Floats:
        """The phases of each request's TTFT, TPOT or E2EL, in seconds; outputs of one token have no TPOT."""
        if name == "tpot":
            several = self.output > 1
            return np.asarray(self.after[several] / (self.output[several] - 1)[:, None])
        return self.to_first if name == "ttft" else self.to_first + self.after

    def statistics(self) -> dict[str, Floats]:
        """The phases behind each statistic of each metric, by names such as ``p99_ttft``."""
        return {f"{statistic}_{metric}": behind(statistic, self.metric(metric))
                for metric in METRICS for statistic in STATISTICS if len(self.metric(metric))}

    def only(self, ids: Iterable[int]) -> "Breakdown":
        """The requests with these *ids*, in the order of the ids."""
        rows = {number: row for row, number in enumerate(self.ids.tolist())}
        kept = np.array([rows[number] for number in sorted(ids)], dtype=np.int64)
        return evolve(self, ids=self.ids[kept], output=self.output[kept], to_first=self.to_first[kept],
                      after=self.after[kept])

    def with_names(self, names: list[str]) -> "Breakdown":
        """The breakdown with these *names*; phases that it does not have are zero."""
        def spread(seconds: Floats) -> Floats:
            wide = np.zeros((len(seconds), len(names)))
            wide[:, [names.index(name) for name in self.names]] = seconds
            return wide

        return evolve(self, names=names, to_first=spread(self.to_first), after=spread(self.after))


def mean_phases(attribution: pa.Table, requests: pa.Table) -> dict[str, dict[str, float]]:
    """The milliseconds of each group of phases behind the mean TTFT and TPOT of a run with these tables."""
    run = Breakdown._of(Path(), *({name: table.column(name).to_numpy() for name in names} for table, names in (
        (attribution, attribution.column_names), (requests, ("id", "output_tokens")))))
    shown = groups(run.names)
    return {f"mean_{metric}_ms": dict(zip(shown, by_group(1e3 * run.metric(metric).mean(axis=0), run.names).tolist(),
                                          strict=True))
            for metric in ("ttft", "tpot") if len(run.metric(metric))}


def paired(one: Breakdown, other: Breakdown) -> tuple[Breakdown, Breakdown]:
    """The requests that completed in both runs, and all phases of both; raises ConfigError if there are none."""
    common = set(one.ids.tolist()) & set(other.ids.tolist())
    if not common:
        raise ConfigError(f"{one.directory}, {other.directory}", "no request completed in both runs; compare runs of"
                          " one workload")
    families = {name.partition(".")[2] for name in (*one.names, *other.names) if "." in name}
    names = [name for name in phases(sorted(families), fleet=True, adapters=True, gateway=True, tiers=True)
             if name in one.names or name in other.names]
    first, second = (run.only(common).with_names(names) for run in (one, other))
    return first, second


def behind(statistic: str, seconds: Floats) -> Floats:
    """The phases that add up to a *statistic* of the row sums of *seconds*: (requests, phases) to (phases).

    For a mean, they are the mean phases.  A percentile is one or two requests, which may be outliers.  So its phases
    are averaged over the requests around it: those from 45 to 55 % for the median, the slowest 2 % for the p99.
    """
    if statistic == "mean":
        return np.asarray(seconds.mean(axis=0))
    share, low, high = _BANDS[statistic]
    totals = seconds.sum(axis=1)
    last = len(totals) - 1
    order = np.argsort(totals, kind="stable")
    band = seconds[order[int(np.floor(low * last)): int(np.ceil(high * last)) + 1]].mean(axis=0)
    return np.asarray(band * (np.quantile(totals, share) / band.sum() if band.sum() > 0 else 0.0))


def _stacked(columns: list[Floats], rows: int) -> Floats:
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))


def _columns(path: Path) -> Mapping[str, Any]:
    """A parquet file as arrays; raises DataError if it is none."""
    try:
        table = parquet_table(path)
    except (OSError, ArrowException) as error:
        raise DataError(str(path), f"cannot be read as a table: {error}") from None
    return {name: table[name].to_numpy() for name in table.column_names}

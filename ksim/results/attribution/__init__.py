"""Where each request's time went: seconds of every phase, which add up to its TTFT and to the rest of its E2EL.

docs/explain.md defines the phases.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from attrs import define

from ksim.results import gateway
from ksim.results.arrow import table
from ksim.results.attribution import activity, stretches
from ksim.results.attribution.activity import Activity, Shares
from ksim.results.attribution.stretches import DELIVERY, HANDOVER, UPDATE, PromptChunks, Stretches
from ksim.results.gateway import has_adapters
from ksim.results.history import History
from ksim.results.steps import Floats, Ints, sums
from ksim.results.tiers import loading_seconds

#: The parts of a request's time: up to its first token, and from there to its last.
TO_FIRST, AFTER = "to_first", "after"

INTAKE, QUEUE, OTHERS_PREFILL, OTHERS_DECODE = "intake", "queue", "others_prefill", "others_decode"
LOADING = "kv_load"
PREEMPTED, RECOMPUTATION = "preempted", "recomputation"
SCHEDULE, LAUNCH, LOADS = "schedule", "launch", "adapter_loads"
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
        names = phases(does.shares.families[:-1], history.fleet, has_adapters(history.log), history.log.gated,
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
            self._add(0, HELD, rows, gateway.held(requests))
            self._add(0, BACK_OFF, rows, gateway.backed_off(requests))
            self._add(0, INTAKE, rows, requests.received - requests.reached)
        else:
            self._add(0, INTAKE, rows, requests.received - requests.arrival)
        loading = np.zeros(len(rows))
        if self.history.tiers:
            loading = np.minimum(requests.queue, loading_seconds(self.history.events, self.history.copied_rows,
                                                         requests.received, requests.admitted))
            self._add(0, LOADING, rows, loading)
        self._add(0, QUEUE, rows, requests.queue - loading)

    def _handed_over(self) -> None:
        """Add the time of split requests between the GPUs of their two engines."""
        if not len(self.history.splits):
            return
        rows, moments = stretches.moments(self.history.splits)
        for (begin, end), name in zip(pairwise(moments.T), stretches.PHASES, strict=True):
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
            lost = states == stretches.PREEMPTED
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
        decodes, decoding = spent[:, activity.DECODES:], states == stretches.DECODE
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
            self._add(part, RECOMPUTATION, rows[states == stretches.AGAIN], mine[states == stretches.AGAIN].sum(axis=1))
            for state, prefix in ((stretches.PREFILL, PREFILL), (stretches.DECODE, DECODE)):
                which, names = states == state, self._families(prefix)
                for place, column in zip(self.activity.shares.family.tolist(), mine.T, strict=True):
                    self._add(part, names[place], rows[which], column[which])

    def _own_seconds(self, chunks: PromptChunks) -> Floats:
        """GPU seconds of each chunk by `Shares.parts`; at most those of all prompts in its step."""
        shares = self.activity.shares.of(chunks.step, chunks.new, chunks.context)
        return np.minimum(self.activity.seconds(chunks.step) * shares, self.activity.prompts(chunks.step))

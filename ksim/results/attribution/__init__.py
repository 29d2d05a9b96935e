"""Where each request's time went: seconds of every phase, which add up to its TTFT, and to the rest of its E2EL.

docs/explain.md defines the phases.
"""

import numpy as np
import pyarrow as pa
from attrs import define

from ksim.results.arrays import Floats, Ints, sums
from ksim.results.arrow import table
from ksim.results.attribution import activity, phases
from ksim.results.attribution.activity import Activity
from ksim.results.attribution.prefills import Pieces
from ksim.results.attribution.shares import Shares
from ksim.results.attribution.stretches import AGAIN, DECODE, PREEMPTED, PREFILL, Stretches
from ksim.results.history import History

#: How far sums over all steps of a run may be off, in seconds or as a share.
_ROUNDING = 1e-8


def attribution_table(shares: Shares) -> pa.Table:
    """One row per completed request, in the order of arrival: its `id`, and seconds in ``to_first.PHASE`` and
    ``after.PHASE``.  Families without a second anywhere are left out."""
    history = shares.history
    split = _Split.of(history, Activity(history, shares))
    rows = np.flatnonzero(history.requests.completed)
    columns: dict[str, Floats | Ints] = {"id": history.requests.ids[rows]}
    for part, (begin, end), seconds in zip((phases.TO_FIRST, phases.AFTER), split.windows, split.seconds, strict=True):
        exact = _settled(seconds[rows], (end - begin)[rows])
        for name, column in zip(split.names, exact.T, strict=True):
            if "." not in name or column.any():
                columns[f"{part}.{name}"] = column
    return table(columns)


def _settled(seconds: Floats, totals: Floats) -> Floats:
    """*seconds* without the rounding that parts them from *totals*, which the largest phase of each row makes up."""
    seconds = np.maximum(seconds, 0.0)
    rounding = np.abs(totals - seconds.sum(axis=1))
    assert (rounding <= _ROUNDING * np.maximum(1.0, totals)).all(), "phases leave something out, or count it twice"
    if len(seconds):
        seconds[np.arange(len(seconds)), seconds.argmax(axis=1)] += totals - seconds.sum(axis=1)
    return seconds


@define(eq=False)
class _Split:
    """The seconds of each request in each phase, of both parts of its time: (parts, requests, phases).

    `windows` says from when to when each part lasts.
    """

    history: History
    activity: Activity
    stretches: Stretches
    names: list[str]
    windows: list[tuple[Floats, Floats]]
    seconds: Floats

    @classmethod
    def of(cls, history: History, does: Activity) -> "_Split":
        requests = history.requests
        names = phases.phases(does.shares.families[:-1])
        windows = [(requests.arrival, requests.first_token), (requests.first_token, requests.last_token)]
        split = cls(history, does, does.shares.stretches, names, windows, np.zeros((2, len(requests), len(names))))
        split._before_admission()
        split._behind_gpus()
        split._stretches()
        split._own_prefills()
        return split

    def _add(self, part: int, name: str, rows: Ints, amounts: Floats) -> None:
        self.seconds[part, :, self.names.index(name)] += sums(rows, amounts, len(self.history.requests))

    def _before_admission(self) -> None:
        requests, rows = self.history.requests, np.arange(len(self.history.requests))
        self._add(0, phases.INTAKE, rows, requests.received - requests.arrival)
        self._add(0, phases.QUEUE, rows, requests.admitted - requests.received)

    def _behind_gpus(self) -> None:
        """From the end of the step of each part's last token: the host takes it in, and hands it on."""
        requests = self.history.requests
        rows = np.flatnonzero(requests.completed)
        for part, places in enumerate((requests.first[:-1], requests.first[1:] - 1)):
            steps = requests.token_steps[places[rows]]
            begin, end = (edge[rows] for edge in self.windows[part])
            done = np.maximum(self.activity.ends[steps], begin)
            taken = np.maximum(self.history.steps.taken[steps], done)
            self._add(part, phases.UPDATE, rows, taken - done)
            self._add(part, phases.DELIVERY, rows, end - taken)

    def _clipped(self, part: int, rows: Ints, begin: Floats, end: Floats) -> tuple[Floats, Floats]:
        """What of the time between *begin* and *end* is in this part: up to the GPUs' end of the first token's step,
        or from the first token on."""
        requests = self.history.requests
        if part:
            begin = np.maximum(begin, requests.first_token[rows])
        else:
            end = np.minimum(end, self.activity.ends[requests.token_steps[requests.first[rows]]])
        return begin, np.maximum(begin, end)

    def _stretches(self) -> None:
        """What engines do while each request runs, as if all prompts were others'; and who waits to run again."""
        rows, states, begin, end = self.stretches.table()
        for part in range(2):
            since, until = self._clipped(part, rows, begin, end)
            lost = states == PREEMPTED
            self._add(part, phases.PREEMPTED, rows[lost], (until - since)[lost])
            runs = ~lost & (until > since)
            spent = self.activity.between(self.history.requests.engine[rows[runs]], since[runs], until[runs])
            self._running(part, rows[runs], states[runs], spent)

    def _running(self, part: int, rows: Ints, states: Ints, spent: Floats) -> None:
        for name, column in ((phases.UPDATE, activity.UPDATE), (phases.SCHEDULE, activity.SCHEDULE),
                             (phases.LAUNCH, activity.LAUNCH), (phases.OTHERS_PREFILL, activity.PROMPTS)):
            self._add(part, name, rows, spent[:, column])
        decodes, decoding = spent[:, activity.DECODES:], states == DECODE
        for family, column in zip(self._families(phases.DECODE), decodes.T, strict=True):
            self._add(part, family, rows[decoding], column[decoding])
        self._add(part, phases.OTHERS_DECODE, rows[~decoding], decodes[~decoding].sum(axis=1))

    def _families(self, prefix: str) -> list[str]:
        """The phase of each family that is computed, where *prefix* says what for."""
        return [*(prefix + family for family in self.activity.shares.families[:-1]), phases.COMMUNICATION]

    def _own_prefills(self) -> None:
        """Move what a request's own tokens cost from the others' to its own."""
        pieces, stints = self.activity.shares.pieces, self.stretches.stints
        steps, rows, states = pieces.step, stints.row[pieces.stint], stints.state[pieces.stint]
        own = self._own_seconds(pieces)
        starts, ends = self.activity.begins[steps], self.activity.ends[steps]
        caught_up = np.minimum(ends, stints.caught_up[pieces.stint])
        for part in range(2):
            since, until = self._clipped(part, rows, starts, caught_up)
            inside = np.where(ends > starts, (until - since) / np.where(ends > starts, ends - starts, 1.0), 0.0)
            mine = own * inside[:, None]
            self._add(part, phases.OTHERS_PREFILL, rows, -mine.sum(axis=1))
            self._add(part, phases.RECOMPUTATION, rows[states == AGAIN], mine[states == AGAIN].sum(axis=1))
            first = states == PREFILL
            names = self._families(phases.PREFILL)
            for place, column in zip(self.activity.shares.family.tolist(), mine.T, strict=True):
                self._add(part, names[place], rows[first], column[first])

    def _own_seconds(self, pieces: Pieces) -> Floats:
        """GPU seconds of each piece by `Shares.parts`: no more than all prompts of its step have."""
        shares = self.activity.shares.of(pieces.step, pieces.new, pieces.context)
        return np.minimum(self.activity.seconds(pieces.step) * shares, self.activity.prompts(pieces.step))

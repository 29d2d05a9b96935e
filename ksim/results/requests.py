"""The requests of a run as arrays."""

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np
from attrs import define

from ksim.flow.events import Admitted, Arrived, Emitted, Event, Finished, Preempted, Received, Rejected, Routed
from ksim.flow.log import Columns
from ksim.flow.request import Request
from ksim.results.arrays import Bools, Floats, Ints, Places, ints, offsets, shares, sums
from ksim.results.runs import Runs
from ksim.results.steps import Steps

#: The number of tokens that are processed together, roughly.
_TOKENS = 1 << 16
COMPLETED, REJECTED, UNFINISHED = "completed", "rejected", "unfinished"


@define(eq=False, slots=False)
class Requests:
    """One row per request in order of arrival; nan where something did not happen.

    `token_steps` has the rows of the steps that sampled output tokens, request by request: those of row r are
    ``token_steps[first[r]:first[r + 1]]``.  It is long, so work that needs more memory per token is done in `parts`
    of the requests.
    """

    events: Mapping[type[Event], Columns]
    steps: Steps

    def __attrs_post_init__(self) -> None:
        arrived = self.events[Arrived]
        self.requests: list[Request] = arrived["request"].tolist()
        self.ids = ints(self.requests, "id")
        self._order = np.argsort(self.ids, kind="stable")
        self.arrival: Floats = arrived["time"]
        self.output, self.token_steps = self._tokens()
        self.first: Ints = offsets(self.output)

    def __len__(self) -> int:
        return len(self.requests)

    def rows(self, ids: Ints) -> Ints:
        """The rows of the requests with these ids."""
        return self._order[np.searchsorted(self.ids, ids, sorter=self._order)] if len(ids) else np.zeros(0, np.int64)

    def find(self, ids: Ints) -> tuple[Ints, Bools]:
        """The rows of the requests with these ids, and whether they exist; the row is 0 if not."""
        known = np.isin(ids, self.ids)
        rows = np.zeros(len(ids), np.int64)
        rows[known] = self.rows(ids[known])
        return rows, known

    @cached_property
    def prompt(self) -> Ints:
        """The number of tokens of each prompt."""
        return ints(self.requests, "prompt")

    def _tokens(self) -> tuple[Ints, Places]:
        """How many tokens each request got, and from which steps."""
        runs, numbers = self.runs, np.arange(len(self.steps), dtype=np.int32)
        counts = sums(runs.row, runs.counts, len(self)).astype(np.int64)
        stretches = np.stack([runs.first, runs.last + 1, runs.every], axis=1).tolist()
        return counts, np.concatenate([numbers[:0], *(numbers[slice(*each)] for each in stretches)])

    def came(self, places: Ints) -> Floats:
        """When the tokens at these places in `token_steps` were delivered."""
        return self.steps.time[self.token_steps[places]]

    @property
    def tokens(self) -> Floats:
        """When all tokens were delivered."""
        return self.steps.time[self.token_steps]

    def parts(self) -> list[slice]:
        """Slices of rows, each with few enough tokens to fit in memory."""
        begins = np.unique(np.searchsorted(self.first, np.arange(0, max(len(self.token_steps), 1), _TOKENS)))
        return [slice(*pair) for pair in pairwise([0, *begins[begins > 0].tolist(), len(self)])]

    @cached_property
    def runs(self) -> Runs:
        """The runs of tokens, request by request."""
        events = self.events[Emitted]
        first, last = (self.steps.row(events["engine"], events[name]) for name in ("first", "last"))
        columns = (self.rows(events["request_id"]), first, last, events["every"])
        order = np.argsort(columns[0], kind="stable")
        return Runs(*(column[order] for column in columns))

    def _once(self, events: Columns, values: str = "time") -> Floats:
        """The value of each request's first event; nan without one."""
        column = np.full(len(self), np.nan)
        column[self.rows(events["request_id"])[::-1]] = events[values][::-1]
        return column

    def _admissions(self, again: bool) -> Columns:
        events = self.events[Admitted]
        return {name: column[events["again"] == again] for name, column in events.items()}

    @cached_property
    def admitted(self) -> Floats:
        """When each request was first admitted."""
        return self._once(self._admissions(False))

    @cached_property
    def known(self) -> Floats:
        """The number of tokens that were looked up in the cache at the first admission."""
        return self._once(self._admissions(False), "known")

    @cached_property
    def cached(self) -> Floats:
        """The number of these tokens that were found."""
        return self._once(self._admissions(False), "cached")

    @cached_property
    def finished(self) -> Floats:
        return self._once(self.events[Finished])

    @cached_property
    def rejected(self) -> Floats:
        return self._once(self.events[Rejected])

    @cached_property
    def reasons(self) -> dict[int, str]:
        """The reasons of the rejected rows."""
        refused = self.events[Rejected]
        return dict(zip(self.rows(refused["request_id"]).tolist(), refused["reason"].tolist(), strict=True))

    @cached_property
    def completed(self) -> Bools:
        return ~np.isnan(self.finished)

    @cached_property
    def status(self) -> list[str]:
        pairs = zip(self.completed.tolist(), (~np.isnan(self.rejected)).tolist(), strict=True)
        return [COMPLETED if done else REJECTED if refused else UNFINISHED for done, refused in pairs]

    @cached_property
    def engine(self) -> Ints:
        """The place in `Steps.engines` of the engine that each request reached last; -1 for none."""
        column = np.full(len(self), -1)
        for kind in (Routed, Admitted):
            events = self.events[kind]
            column[self.rows(events["request_id"])] = self.steps.places(events["engine"])
        return column

    @cached_property
    def reached(self) -> Floats:
        """When each request was routed to an engine; its arrival without a router."""
        routed = self._once(self.events[Routed])
        return np.where(np.isnan(routed), self.arrival, routed)

    @cached_property
    def received(self) -> Floats:
        """When the front end had passed each request to its engine; when it was routed without a front end."""
        through = self._once(self.events[Received])
        return np.where(np.isnan(through), self.reached, through)

    @cached_property
    def preempted(self) -> Columns:
        """The preemptions."""
        return self.events[Preempted]

    @cached_property
    def readmitted(self) -> Columns:
        """The admissions after a preemption."""
        return self._admissions(True)

    @cached_property
    def preemptions(self) -> Ints:
        """How often each request was preempted."""
        return np.bincount(self.rows(self.preempted["request_id"]), minlength=len(self))

    @cached_property
    def displaced(self) -> Bools:
        """Requests that never ran again after a preemption: their last token was in flight, or the run ended."""
        return self.preemptions > np.bincount(self.rows(self.readmitted["request_id"]), minlength=len(self))

    @cached_property
    def last_step(self) -> Ints:
        """The row of the step of each request's last token so far; -1 for none."""
        column = np.full(len(self), -1)
        column[self.runs.row] = self.runs.last
        return column

    @cached_property
    def first_token(self) -> Floats:
        return self._token(self.first[:-1])

    @cached_property
    def last_token(self) -> Floats:
        return self._token(self.first[1:] - 1)

    def _token(self, places: Ints) -> Floats:
        column = np.full(len(self), np.nan)
        column[self.output > 0] = self.came(places[self.output > 0])
        return column

    @cached_property
    def queue(self) -> Floats:
        """Seconds from arrival to first admission."""
        return self.admitted - self.arrival

    @cached_property
    def ttft(self) -> Floats:
        """Seconds from arrival to first token."""
        return self.first_token - self.arrival

    @cached_property
    def tpot(self) -> Floats:
        """Seconds per output token after the first; nan for outputs of one token."""
        return shares(self.last_token - self.first_token, self.output - 1, otherwise=np.nan)

    @cached_property
    def e2e(self) -> Floats:
        """Seconds from arrival to last token; nan for requests that did not complete."""
        return np.where(self.completed, self.last_token - self.arrival, np.nan)

    @cached_property
    def gap_counts(self) -> Ints:
        """How many gaps between tokens each request has."""
        return np.maximum(self.output - 1, 0)

    @property
    def gaps(self) -> Floats:
        """Seconds between consecutive tokens, request by request."""
        return self.gaps_of(np.ones(len(self), dtype=bool))

    def gaps_of(self, mask: Bools) -> Floats:
        """The gaps between the tokens of the requests in *mask*."""
        found, end = np.empty(int(self.gap_counts[mask].sum())), 0
        for rows in self.parts():
            gaps = self._gaps(rows)[np.repeat(mask[rows], self.gap_counts[rows])]
            found[end: end + len(gaps)] = gaps
            end += len(gaps)
        return found

    def _gaps(self, rows: slice) -> Floats:
        first = self.first[rows.start: rows.stop + 1]
        ends = first[1:][self.output[rows] > 0] - first[0] - 1
        return np.delete(np.diff(self.steps.time[self.token_steps[first[0]: first[-1]]]), ends[:-1])

    def per_second(self, mask: Bools, begin: float) -> tuple[Ints, Ints]:
        """The seconds after *begin* in which the requests in *mask* got tokens, ascending, and how many in each.

        Seconds without tokens are left out, because there may be any number of them.
        """
        counts = np.zeros(len(self.steps), np.int64)
        for rows in self.parts():
            tokens = self.token_steps[self.first[rows.start]: self.first[rows.stop]]
            counts += np.bincount(tokens[np.repeat(mask[rows], self.output[rows])], minlength=len(counts))
        some = counts > 0
        seconds, which = np.unique((self.steps.time[some] - begin).astype(np.int64), return_inverse=True)
        return seconds, sums(which, counts[some], len(seconds)).astype(np.int64)

    @cached_property
    def gap_medians_and_peaks(self) -> tuple[Floats, Floats]:
        """The median and the largest gap of each request; nan without gaps."""
        medians, peaks = np.full(len(self), np.nan), np.full(len(self), np.nan)
        for rows in self.parts():
            medians[rows], peaks[rows] = _medians_and_peaks(self._gaps(rows), self.gap_counts[rows])
        return medians, peaks


def _medians_and_peaks(values: Floats, counts: Ints) -> tuple[Floats, Floats]:
    """The median and the maximum of consecutive groups of *values*, which are sorted in place; nan for empty groups."""
    first, some = offsets(counts), counts > 0
    for begin, end in pairwise(first.tolist()):
        values[begin:end].sort()
    begin, count = first[:-1][some], counts[some]
    medians, peaks = np.full(len(counts), np.nan), np.full(len(counts), np.nan)
    medians[some] = (values[begin + (count - 1) // 2] + values[begin + count // 2]) / 2
    peaks[some] = values[begin + count - 1]
    return medians, peaks

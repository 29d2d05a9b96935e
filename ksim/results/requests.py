"""The requests of a run as arrays."""

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from attrs import define, frozen

from ksim.flow.events import (
    CUT_OFF,
    GONE_AFTER_REFUSAL,
    Admitted,
    Arrived,
    Emitted,
    Event,
    Failed,
    Finished,
    Held,
    Preempted,
    Received,
    Refused,
    Rejected,
    Routed,
)
from ksim.flow.log import Columns, only
from ksim.flow.request import Request
from ksim.results.steps import Bools, Floats, Ints, Places, Steps, ints, offsets, shares, sums

#: The number of tokens that are processed together, roughly.
_TOKENS = 1 << 16


@frozen(eq=False)
class Runs:
    """Tokens of the request at `row`, `tokens` from each of the steps `first`, `first` + `every`, ..., `last`: columns.

    A prefill engine has `handed` tokens over to the decode engine, whose steps may have lower rows.
    """

    row: Ints
    first: Ints
    last: Ints
    every: Ints
    handed: Bools
    tokens: Ints

    @property
    def counts(self) -> Ints:
        """The number of tokens of each run."""
        return self.outputs * self.tokens

    @property
    def outputs(self) -> Ints:
        """The number of steps of each run, each of which put out its tokens at once."""
        return (self.last - self.first) // self.every + 1

    @cached_property
    def joined(self) -> Bools:
        """Runs that begin with the step with which the request's run before ends: behind a token handed over."""
        same = (self.row[1:] == self.row[:-1]) & (self.first[1:] == self.last[:-1])
        return np.append(np.zeros(min(1, len(self.row)), bool), same)

    @cached_property
    def single(self) -> bool:
        """Whether each token came alone."""
        return bool((self.tokens == 1).all()) and not self.joined.any()

    def place(self, row: Ints, step: Ints) -> Ints:
        """The place among all tokens of the first token that each request at *row* got from *step* or later.

        Of tokens that were handed over, all came before any step.
        """
        scale = 2 + int(max(self.last.max(initial=0), step.max(initial=0)))
        begins = np.where(self.handed, -1, self.first)
        run = np.searchsorted(self.row * scale + begins + 1, row * scale + step + 1) - 1
        counts, first = np.append(self.counts, 0), offsets(self.counts)
        own = np.append(self.row, -1)[run] == row
        passed = -((np.append(self.first, 0)[run] - step) // np.append(self.every, 1)[run])
        passed = np.where(np.append(self.handed, False)[run], counts[run], passed * np.append(self.tokens, 1)[run])
        return first[run + 1] - np.where(own, np.maximum(counts[run] - passed, 0), 0)


class OutputTokens:
    """The tokens of requests, which have `steps` and `runs`: request by request, in order of time.

    `token_steps` has the row of the step that sampled each.  Those of the request at row r are
    ``token_steps[first[r]:first[r + 1]]``, `output` many.  It is long, so work that needs more memory per token is
    done in `parts` of the requests.
    """

    steps: Steps
    runs: Runs
    output: Ints
    first: Ints
    token_steps: Places

    def __len__(self) -> int:
        raise NotImplementedError

    def _tokens(self) -> tuple[Ints, Places]:
        """The number of tokens of each request, and the rows of the steps that sampled them."""
        runs, outputs = self.runs, self.runs.outputs
        steps = np.repeat(runs.every.astype(np.int32), outputs)  # how far each is from the one before
        steps[offsets(outputs)[:-1]] = runs.first - np.append(0, runs.last)[:-1]
        np.cumsum(steps, out=steps)
        counts = sums(runs.row, runs.counts, len(self)).astype(np.int64)
        return counts, steps if runs.single else np.repeat(steps, np.repeat(runs.tokens, outputs))

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
    def gap_counts(self) -> Ints:
        """The number of gaps between tokens of each request; tokens that came at once have none between them."""
        if self.runs.single:
            return np.maximum(self.output - 1, 0)
        outputs = self.runs.outputs - self.runs.joined
        return np.maximum(sums(self.runs.row, outputs, len(self)).astype(np.int64) - 1, 0)

    @property
    def gaps(self) -> Floats:
        """Seconds between consecutive tokens, or several that came at once, request by request."""
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
        steps = self.token_steps[first[0]: first[-1]]
        gaps: Floats = np.diff(self.steps.time[steps])
        if self.runs.single:
            return np.delete(gaps, ends[:-1])
        between = np.diff(steps) != 0
        between[ends[:-1]] = False
        return np.compress(between, gaps)

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



@define(eq=False, slots=False)
class Requests(OutputTokens):
    """The requests of a run, one row for each in order of arrival; nan where something did not happen."""

    events: Mapping[type[Event], Columns]
    steps: Steps

    #: How requests may end, as files have it.
    STATUS: ClassVar = ("completed", "rejected", "failed", "unfinished")

    def __attrs_post_init__(self) -> None:
        arrived = self.events[Arrived]
        self.requests: list[Request] = arrived["request"].tolist()
        self.ids = ints(self.requests, "id")
        self._order = np.argsort(self.ids, kind="stable")
        self.arrival: Floats = arrived["time"]
        self.runs = self._runs()
        self.output, self.token_steps = self._tokens()
        self.first = offsets(self.output)

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

    def names(self, called: str) -> Any:
        """What each request names, such as its "tenant": (requests,), of objects."""
        return np.array([getattr(request, called) for request in self.requests], dtype=object)

    def _runs(self) -> Runs:
        """The runs of tokens, request by request."""
        events = self.events[Emitted]
        first, last = (self.steps.row(events["engine"], events[name]) for name in ("first", "last"))
        row = self.rows(events["request_id"])
        handed = self.prefill_engine[row] == self.steps.places(events["engine"])
        order = np.argsort(row, kind="stable")
        return Runs(row[order], first[order], last[order], events["every"][order], handed[order],
                    events["tokens"][order])

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
    def failed(self) -> Floats:
        """When each request ended with an error."""
        return self._once(self.events[Failed])

    @cached_property
    def reasons(self) -> dict[int, str]:
        """The reasons of the rejected and the failed rows."""
        return {row: reason for kind in (Rejected, Failed) for row, reason in zip(
            self.rows(self.events[kind]["request_id"]).tolist(), self.events[kind]["reason"].tolist(), strict=True)}

    @cached_property
    def completed(self) -> Bools:
        return ~np.isnan(self.finished)

    @cached_property
    def ended(self) -> Bools:
        """Requests that completed, failed or were rejected."""
        return self.completed | ~np.isnan(self.rejected) | ~np.isnan(self.failed)

    @cached_property
    def status_numbers(self) -> Ints:
        """The place in `STATUS` of each request's status."""
        refused, failed = ~np.isnan(self.rejected), ~np.isnan(self.failed)
        return np.where(self.completed, 0, np.where(refused, 1, np.where(failed, 2, 3)))

    @property
    def status(self) -> list[str]:
        return [self.STATUS[number] for number in self.status_numbers.tolist()]

    @cached_property
    def engine(self) -> Ints:
        """The place in `Steps.engines` of the engine that each request reached last; -1 for none.

        A split request's is its decode engine from the beginning.
        """
        column, split = np.full(len(self), -1), self.prefill_engine >= 0
        for kind in (Routed, Admitted):
            events = self.events[kind]
            rows, places = self.rows(events["request_id"]), self.steps.places(events["engine"])
            which = slice(None) if kind is Routed else ~split[rows]
            column[rows[which]] = places[which]
        return column

    @cached_property
    def prefill_engine(self) -> Ints:
        """The place in `Steps.engines` of the engine that prefills each request for another one; -1 for none."""
        routed = only(self.events[Routed], self.events[Routed]["prefill_engine"] >= 0)
        column = np.full(len(self), -1)
        column[self.rows(routed["request_id"])] = self.steps.places(routed["prefill_engine"])
        return column

    @cached_property
    def migrated(self) -> Bools:
        """Requests that went on at another engine when theirs was terminated, or were sent again."""
        return self._counts(self.events[Routed]["request_id"]) > 1

    @cached_property
    def attempts(self) -> Ints:
        """How often the client of each request sent it to a gateway."""
        refused = self.events[Refused]
        rows = self.rows(refused["request_id"])
        sent = 1 + np.bincount(rows[~refused["last"]], minlength=len(self))
        sent[[row for row, reason in self.reasons.items() if reason == GONE_AFTER_REFUSAL]] -= 1
        return sent

    @cached_property
    def held(self) -> Floats:
        """Seconds of each request in the queue of the gateway."""
        events = self.events[Held]
        return sums(self.rows(events["request_id"]), events["time"] - events["since"], len(self))

    @cached_property
    def held_at_first(self) -> Floats:
        """Those before it was first routed."""
        events = self.events[Held]
        rows = self.rows(events["request_id"])
        first = events["time"] <= self.reached[rows]
        return np.where(np.isnan(self._once(self.events[Routed])), self.held,
                        sums(rows[first], (events["time"] - events["since"])[first], len(self)))

    @cached_property
    def backed_off(self) -> Floats:
        """Seconds in which the client of each request that was routed waited to send it again before."""
        return np.maximum(self.reached - self.arrival - self.held_at_first, 0.0)

    @cached_property
    def restarts(self) -> tuple[Ints, Ints]:
        """The rows of requests that their clients sent again when they were cut off, each time, and the places in
        `token_steps` of the first token from then on."""
        refused = only(self.events[Refused], self.events[Refused]["reason"] == CUT_OFF)
        rows = self.rows(refused["request_id"])
        places = [begin + np.searchsorted(self.steps.scheduled[self.token_steps[begin:end]], time) for begin, end, time
                  in zip(self.first[rows], self.first[rows + 1], refused["time"], strict=True)]
        return rows, np.array(places, np.int64)

    @cached_property
    def reached(self) -> Floats:
        """When each request was routed to an engine; its arrival without a router."""
        routed = self._once(self.events[Routed])
        return np.where(np.isnan(routed), self.arrival, routed)

    @cached_property
    def received(self) -> Floats:
        """When the front end had passed each request to its engine; when it was routed without a front end.

        A split request's is that of its prefill engine, or its first admission where a decode engine admits it before.
        """
        events = self.events[Received]
        rows, places = self.rows(events["request_id"]), self.steps.places(events["engine"])
        first = self.prefill_engine[rows]
        through = self._once(only(events, (first < 0) | (first == places)))
        return np.where(np.isnan(through), self.reached, np.fmin(through, self.admitted))

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
        """The number of preemptions of each request."""
        others = np.repeat(*(self.events[Finished][name] for name in ("request_id", "preemptions")))
        return self._counts(np.append(self.preempted["request_id"], others))

    def _counts(self, ids: Ints) -> Ints:
        return np.bincount(self.rows(ids), minlength=len(self))

    @cached_property
    def displaced(self) -> Bools:
        """Requests that never ran again after a preemption: their last token was in flight, or the run ended."""
        return self._counts(self.preempted["request_id"]) > self._counts(self.readmitted["request_id"])

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
    def acceptance_length(self) -> Floats:
        """The mean tokens of a verification, the sampled one included; nan for requests that verified nothing."""
        finished = self.events[Finished]
        column = np.full(len(self), np.nan)
        some = finished["verified"] > 0
        column[self.rows(finished["request_id"][some])] = 1.0 + finished["accepted"][some] / finished["verified"][some]
        return column

    @cached_property
    def queue(self) -> Floats:
        """Seconds from when its engine had each request to its first admission: vLLM's `request_queue_time_seconds`."""
        return self.admitted - self.received

    def latency(self, name: str) -> Floats:
        """The seconds of latency *name* of each request, nan where it has none; of itl its mean gap, which is its TPOT.
        """
        seconds: Floats = getattr(self, {"itl": "tpot", "e2el": "e2e"}.get(name, name))
        return seconds

    def latencies(self, name: str, which: Bools) -> Floats:
        """The seconds of latency *name* that the numbers of a run count, of the completed requests in *which*.

        Those of itl are all gaps between tokens; an output of one token has no tpot.
        """
        if name == "itl":
            return self.gaps_of(which)
        return self.latency(name)[which & (self.output > 1) if name == "tpot" else which]

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

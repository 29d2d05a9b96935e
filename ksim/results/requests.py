"""The requests of a run as arrays."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import define

from ksim.flow.events import Admitted, Arrived, Emitted, Event, Finished, Preempted, Received, Rejected, Routed
from ksim.flow.request import Request
from ksim.results.arrays import Bools, Floats, Ints, each, floats, ints, offsets, shares
from ksim.results.steps import Steps

COMPLETED, REJECTED, UNFINISHED = "completed", "rejected", "unfinished"


@define(eq=False, slots=False)
class Requests:
    """One row per request in the order they arrived; nan where something did not happen.

    `tokens` holds when each output token came out, request by request: those of
    row r are ``tokens[first[r]:first[r + 1]]``, and `token_steps` has the rows of
    the steps that they came from.
    """

    events: dict[type[Event], list[Any]]
    steps: Steps

    def __attrs_post_init__(self) -> None:
        arrived: list[Arrived] = self.events[Arrived]
        self.requests: list[Request] = [event.request for event in arrived]
        self.row = {request.id: row for row, request in enumerate(self.requests)}
        self.arrival = floats(arrived, "time")
        self.output, self.token_steps = self._tokens()
        self.tokens: Floats = self.steps.time[self.token_steps]
        self.first: Ints = offsets(self.output)

    def __len__(self) -> int:
        return len(self.requests)

    def rows(self, events: Sequence[Any]) -> Ints:
        """The row of each event's request."""
        return each(events, lambda event: self.row[event.request_id])

    def _tokens(self) -> tuple[Ints, Ints]:
        """How many tokens each request got, and from which steps: stretches of them, put in the order of the rows."""
        runs: list[Emitted] = self.events[Emitted]
        begin = self.steps.first[:-1][self.steps.places(runs)]
        rows, every = self.rows(runs), ints(runs, "every")
        first, last = begin + ints(runs, "first"), begin + ints(runs, "last")
        counts = np.bincount(rows, weights=(last - first) // every + 1, minlength=len(self)).astype(np.int64)
        stretches = np.stack([first, last + 1, every], axis=1)[np.argsort(rows, kind="stable")]
        numbers = np.arange(len(self.steps))
        return counts, np.concatenate([numbers[:0], *(numbers[slice(*each)] for each in stretches.tolist())])

    def _once(self, events: Sequence[Any], values: Floats) -> Floats:
        """The value of each request's first event, nan where it has none."""
        column = np.full(len(self), np.nan)
        rows, earliest = np.unique(self.rows(events), return_index=True)
        column[rows] = values[earliest]
        return column

    @cached_property
    def _admissions(self) -> list[Admitted]:
        return [event for event in self.events[Admitted] if not event.again]

    @cached_property
    def admitted(self) -> Floats:
        """When each request was admitted for the first time."""
        return self._once(self._admissions, floats(self._admissions, "time"))

    @cached_property
    def known(self) -> Floats:
        """How many tokens the cache was searched for at the first admission."""
        return self._once(self._admissions, floats(self._admissions, "known"))

    @cached_property
    def cached(self) -> Floats:
        """How many of them were found."""
        return self._once(self._admissions, floats(self._admissions, "cached"))

    @cached_property
    def finished(self) -> Floats:
        return self._once(self.events[Finished], floats(self.events[Finished], "time"))

    @cached_property
    def rejected(self) -> Floats:
        return self._once(self.events[Rejected], floats(self.events[Rejected], "time"))

    @cached_property
    def reasons(self) -> dict[int, str]:
        """Why the rejected rows were."""
        return {self.row[event.request_id]: event.reason for event in self.events[Rejected]}

    @cached_property
    def completed(self) -> Bools:
        return ~np.isnan(self.finished)

    @cached_property
    def status(self) -> list[str]:
        pairs = zip(self.completed.tolist(), (~np.isnan(self.rejected)).tolist(), strict=True)
        return [COMPLETED if done else REJECTED if refused else UNFINISHED for done, refused in pairs]

    @cached_property
    def engine(self) -> Ints:
        """The place in `Steps.engines` of the engine that each request came to last; -1 for none."""
        column = np.full(len(self), -1)
        for kind in (Routed, Admitted):
            column[self.rows(self.events[kind])] = self.steps.places(self.events[kind])
        return column

    @cached_property
    def reached(self) -> Floats:
        """When each request was routed to an engine, or arrived where no router is."""
        routed = self._once(self.events[Routed], floats(self.events[Routed], "time"))
        return np.where(np.isnan(routed), self.arrival, routed)

    @cached_property
    def received(self) -> Floats:
        """When each request had come through the front end to its engine, or was routed where no front end is."""
        through = self._once(self.events[Received], floats(self.events[Received], "time"))
        return np.where(np.isnan(through), self.reached, through)

    @cached_property
    def preempted(self) -> list[Preempted]:
        return self.events[Preempted]

    @cached_property
    def readmitted(self) -> list[Admitted]:
        """The admissions after a preemption."""
        return [event for event in self.events[Admitted] if event.again]

    @cached_property
    def preemptions(self) -> Ints:
        """How often each request was preempted."""
        return np.bincount(self.rows(self.preempted), minlength=len(self))

    @cached_property
    def displaced(self) -> Bools:
        """Which requests never ran again after a preemption: their last token was on its way, or the run ended."""
        return self.preemptions > np.bincount(self.rows(self.readmitted), minlength=len(self))

    @cached_property
    def last_step(self) -> Ints:
        """The row of the step that ended each request's last token so far; -1 for none."""
        runs: list[Emitted] = self.events[Emitted]
        column = np.full(len(self), -1)
        column[self.rows(runs)] = self.steps.first[:-1][self.steps.places(runs)] + ints(runs, "last")
        return column

    @cached_property
    def first_token(self) -> Floats:
        return self._token(self.first[:-1])

    @cached_property
    def last_token(self) -> Floats:
        return self._token(self.first[1:] - 1)

    def _token(self, places: Ints) -> Floats:
        column = np.full(len(self), np.nan)
        column[self.output > 0] = self.tokens[places[self.output > 0]]
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

    @cached_property
    def gaps(self) -> Floats:
        """Seconds between one token and the next, request by request as in `tokens`."""
        inside = np.ones(max(len(self.tokens) - 1, 0), dtype=bool)
        ends = self.first[1:][self.output > 0] - 1
        inside[ends[:-1]] = False
        gaps = self.tokens[1:] - self.tokens[:-1]
        return np.compress(inside, gaps)

    def tokens_of(self, mask: Bools) -> Floats:
        """The token times of the requests in *mask*."""
        return self.tokens[np.repeat(mask, self.output)]

    def gaps_of(self, mask: Bools) -> Floats:
        """The gaps between the tokens of the requests in *mask*."""
        return self.gaps[np.repeat(mask, self.gap_counts)]

    @cached_property
    def gap_medians_and_peaks(self) -> tuple[Floats, Floats]:
        """The median and the largest gap of each request; nan where there is none."""
        first, ordered = offsets(self.gap_counts), self.gaps.copy()
        for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
            ordered[begin:end].sort()
        some = self.gap_counts > 0
        begin, count = first[:-1][some], self.gap_counts[some]
        medians, peaks = np.full(len(self), np.nan), np.full(len(self), np.nan)
        medians[some] = (ordered[begin + (count - 1) // 2] + ordered[begin + count // 2]) / 2
        peaks[some] = ordered[begin + count - 1]
        return medians, peaks


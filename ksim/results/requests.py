"""The requests of a run as arrays."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from attrs import define

from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    Event,
    Failed,
    Finished,
    Preempted,
    Received,
    Rejected,
    Routed,
)
from ksim.flow.log import Columns, only
from ksim.flow.request import Request
from ksim.results.steps import Bools, Floats, Ints, Steps, ints, offsets, shares
from ksim.results.tokens import OutputTokens, Runs

COMPLETED, REJECTED, FAILED, UNFINISHED = STATUS = "completed", "rejected", "failed", "unfinished"


@define(eq=False, slots=False)
class Requests(OutputTokens):
    """The requests of a run, one row for each in order of arrival; nan where something did not happen."""

    events: Mapping[type[Event], Columns]
    steps: Steps

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
        return [STATUS[number] for number in self.status_numbers.tolist()]

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
    def reached(self) -> Floats:
        """When each request was routed to an engine; its arrival without a router."""
        routed = self._once(self.events[Routed])
        return np.where(np.isnan(routed), self.arrival, routed)

    @cached_property
    def received(self) -> Floats:
        """When the front end had passed each request to its engine; when it was routed without a front end.

        A split request's is that of its prefill engine.
        """
        events = self.events[Received]
        rows, places = self.rows(events["request_id"]), self.steps.places(events["engine"])
        first = self.prefill_engine[rows]
        through = self._once(only(events, (first < 0) | (first == places)))
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

"""The requests of a run as arrays."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from attrs import define

from ksim.flow.events import Admitted, Arrived, Emitted, Event, Finished, Preempted, Received, Rejected, Routed
from ksim.flow.log import Columns
from ksim.flow.request import Request
from ksim.results.arrays import Bools, Floats, Ints, ints, offsets, shares
from ksim.results.steps import Steps
from ksim.results.tokens import OutputTokens, Runs

COMPLETED, REJECTED, UNFINISHED = "completed", "rejected", "unfinished"


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
        """The number of preemptions of each request."""
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

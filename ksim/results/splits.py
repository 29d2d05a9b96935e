"""The requests that one engine prefills and another decodes, and when they got how far."""

from functools import cached_property

import numpy as np
from attrs import define

from ksim.flow.events import Admitted, Event, Prefilled, Received, Released, Routed, Transferred
from ksim.results.requests import Requests
from ksim.results.steps import Bools, Floats, Ints, ints


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
            place = self._place[self.requests.rows(events["request_id"])]
            which = np.flatnonzero(place >= 0)
            if at is not None:
                which = which[self.requests.steps.places(events["engine"][which]) == at[place[which]]]
            column[place[which[::-1]]] = events[name][which[::-1]]
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

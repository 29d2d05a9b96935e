"""A recorded trace as a workload."""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path

from attrs import field, frozen
from attrs.validators import and_, ge, gt, in_, le, optional

from ksim.flow.request import Request
from ksim.foundation.errors import DataError
from ksim.foundation.rng import stream
from ksim.foundation.units import LONGEST, Seconds, optional_quantity, quantity
from ksim.workload.ledger import Ledger
from ksim.workload.order import from_zero
from ksim.workload.reading import read
from ksim.workload.row import Row, follows
from ksim.workload.shaping import Limits, note_ties, spread_ties

_DAY = 86400.0
#: Days that are worth a remark, and seconds from one request to the next that make a single day worth one.
_MANY_DAYS, _RARE = 30, 60.0
_UNITS = "if these are milliseconds or microseconds: --time-unit ms or --time-unit us"


@frozen
class Replay:
    """The requests of the trace at `path`, changed in this order by what is set.

    `format` is recognised from the file where empty, `chunk_tokens` replaces
    the format's tokens to a block id, `sort` reads a trace into memory that is
    out of order.  `start` and `end` cut out a window, in seconds since the
    first request.  A prompt above `max_prompt`, or with its output above
    `max_tokens`, is dropped, clipped (its prompt, as Vidur does) or an error,
    as `overlong` says.  `limit` keeps the first so many.  `spread` places
    requests of equal time stamps at random inside the step of the trace's
    clock.  `time_scale` multiplies all times; `rate`, in requests/s, does so to
    make (arrivals - 1) / (last arrival - first) that rate, where turns that only
    follow others of their session do not count.

    `rate` and `spread` each read the file once more to know their factor.
    """

    path: Path = field(converter=Path)
    format: str = ""
    limit: int | None = field(default=None, validator=optional(gt(0)))
    time_scale: float = field(default=1.0, validator=(ge(1e-9), le(1e9)))
    rate: float | None = field(default=None, validator=optional(and_(gt(0), le(1e9))))
    start: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    end: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    spread: bool = False
    max_prompt: int | None = field(default=None, validator=optional(gt(0)))
    max_tokens: int | None = field(default=None, validator=optional(gt(1)))
    overlong: str = field(default="drop", validator=in_(("drop", "clip", "error")))
    chunk_tokens: int | None = field(default=None, validator=optional(gt(0)))
    sort: bool = False

    def __attrs_post_init__(self) -> None:
        if self.rate is not None and self.time_scale != 1:
            raise ValueError("give rate or time_scale, not both")
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end ({self.end:g} s) must be after start ({self.start:g} s)")

    def requests(self, seed: int, ledger: Ledger | None = None) -> Iterator[Request]:
        """Yield the requests in order of arrival, numbered from 0, the first at 0 s.

        *ledger* takes the account of the rows.  Raises DataError for a trace that
        cannot be read, and for one of which no request is left.
        """
        ledger = Ledger() if ledger is None else ledger
        scale = self._scale(seed)
        for number, row in enumerate(self._placed(seed, ledger)):
            arrival, delay = row.arrival * scale, row.delay * scale
            if arrival > LONGEST or delay > LONGEST:
                raise self._too_long(max(arrival, delay))
            yield Request(number, arrival, row.prompt, row.output, row.chunks, row.chunk_tokens,
                          row.priority, row.session, delay, row.tenant)
            ledger.requests = number + 1
        if not ledger.requests:
            raise DataError(str(self.path), "; ".join(["has no request to replay", *ledger.remarks()]))

    def remarks(self, seed: int) -> list[str]:
        """What a user should hear before the run, for which the trace is read once more: arrivals that span weeks.

        Raises DataError as `requests` does.
        """
        count, last = 0, 0.0
        for request in self.requests(seed):
            count, last = count + 1, request.arrival
        days = last / _DAY
        if self.rate is not None or days < 1 or (days < _MANY_DAYS and last / count < _RARE):
            return []
        return [f"arrivals span {days:,.0f} days; {_UNITS}"]

    def _too_long(self, seconds: float) -> DataError:
        return DataError(str(self.path), f"arrivals span {seconds / _DAY:,.0f} days, and at most {LONGEST / _DAY:,.0f}"
                                         f" can be simulated; {_UNITS}")

    def _scale(self, seed: int) -> float:
        """The factor of all times."""
        if self.rate is None:
            return self.time_scale
        gaps, previous = -1, None
        for row in self._placed(seed, Ledger()):
            gaps, previous = gaps + (not follows(row, previous)), row
        last = previous.arrival if previous else 0.0
        if gaps > 0 and not last:
            raise DataError(str(self.path), "all requests arrive at once, so no factor gives them a rate; "
                                            "leave out rate")
        return gaps / last / self.rate if last else 1.0

    def _placed(self, seed: int, ledger: Ledger) -> Iterator[Row]:
        """The rows that are to be replayed, where they are to arrive but for the scale."""
        rows = self._chosen(ledger)
        if not self.spread:
            return rows
        return from_zero(spread_ties(rows, self._clock_step(), stream(seed, "workload.spread")))

    def _clock_step(self) -> float:
        """The smallest time between two different arrivals, 0 where all are equal."""
        arrivals = (row.arrival for row in self._chosen(Ledger()))
        return min((later - earlier for earlier, later in pairwise(arrivals) if later > earlier), default=0.0)

    def _chosen(self, ledger: Ledger) -> Iterator[Row]:
        """The rows that are to be replayed."""
        rows = read(self.path, self.format, self.chunk_tokens, self.sort, ledger)
        limits = Limits(self.max_prompt, self.max_tokens, self.overlong, str(self.path))
        kept = islice(limits.apply(self._inside_window(rows, ledger), ledger), self.limit)
        return note_ties(from_zero(kept), ledger)

    def _inside_window(self, rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
        for row in rows:
            if self.end is not None and row.arrival >= self.end:
                ledger.outside_window += 1
                return
            if row.arrival >= self.start:
                yield row
            else:
                ledger.outside_window += 1

"""A workload as a scenario states it: the replay of a recorded trace, or synthetic requests, or several of these, and
retries of clients.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from sys import maxsize
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen
from attrs.validators import and_, ge, gt, in_, le, optional

from ksim.flow.request import Request
from ksim.foundation.config import Choice
from ksim.foundation.errors import DataError
from ksim.foundation.rng import stream
from ksim.foundation.units import LONGEST, Seconds, optional_quantity, quantity
from ksim.specs.settings import Slo
from ksim.workload.arrivals import Arrivals
from ksim.workload.reading import clock, may_abort, read, recognise
from ksim.workload.rows import UNITS, Ledger, Row, follows, known_fields
from ksim.workload.shaping import LengthLimits, from_zero, note_ties, spread_ties
from ksim.workload.synthetic import MOST_REQUESTS, Synthetic, check_file, check_number, most_of

if TYPE_CHECKING:
    import numpy as np


#: A hint for arrivals that span too long a time.
UNITS_HINT = "if these are milliseconds or microseconds: --time-unit ms or --time-unit us"
#: Seconds.
DAY = 86400.0


def _choice(value: Any) -> Choice:
    try:
        return Choice.of(value)
    except ValueError as error:
        raise ValueError(f"format: {error}") from None


#: The beginning of the remark on arrivals that are drawn because the trace has none.
MADE_UP = "the trace has no arrival times"


@frozen
class Replay:
    """The requests of the trace at `path`, with changes in this order: window, lengths, number, times.

    A request that is too long is dropped, clipped (its prompt, as in Vidur) or an error, as `overlong` says.  `rate` is
    (arrivals - 1) / (last arrival - first); turns that only follow others of their session are not counted.  In a trace
    without arrival times, it is the rate of Poisson arrivals.  `rate` and `spread` each read the file once more to find
    their factor.
    """

    path: Path = field(converter=Path)
    """Trace file, gzipped or not, or a folder of sessions, relative to the scenario. Example: "trace.csv"."""
    format: Choice = field(default=Choice(""), converter=_choice)
    """Format of the trace; recognised from the file where empty. Names: workload.traces."""
    limit: int | None = field(default=None, validator=optional(gt(0)))
    """Replay only the first requests, this many. Unit: requests. Default: all. Example: 100."""
    time_scale: float = field(default=1.0, validator=(ge(1e-9), le(1e9)))
    """Multiply all times: above 1 stretches, below 1 compresses. Unit: ratio."""
    rate: float | None = field(default=None, validator=optional(and_(gt(0), le(1e9))))
    """Scale times to this mean rate; replaces `time_scale`. Unit: requests/s. Default: as recorded. Example: 10.0."""
    start: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Start of the window to replay, measured from the first request. Unit: s."""
    end: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """End of that window. Unit: s. Default: the end of the trace. Example: "10 s"."""
    spread: bool = False
    """Spread requests of equal time stamps over a tick of the clock of the trace."""
    max_prompt: int | None = field(default=None, validator=optional(gt(0)))
    """Longest prompt; see `overlong`. Unit: tokens. Default: no limit. Example: 8192."""
    max_tokens: int | None = field(default=None, validator=optional(gt(1)))
    """Most tokens of a request, prompt and output; see `overlong`. Unit: tokens. Default: no limit. Example: 16384."""
    max_completion_tokens: int | None = field(default=None, validator=optional(gt(0)))
    """Most output tokens, which each request sends as its `max_tokens` where the trace does not say it; requests with
    longer outputs send these. Unit: tokens. Default: every output ends where the scheduler expects it. Source: OpenAI's
    API. Example: 1024."""
    ignore_eos: bool = False
    """Let no stop token end an output, and the scheduler know it, where the trace does not say it. Source: vLLM and
    SGLang."""
    overlong: str = field(default="drop", validator=in_(("drop", "clip", "error")))
    """What happens to longer requests."""
    chunk_tokens: int | None = field(default=None, validator=optional(gt(0)))
    """Tokens that a block id of the trace stands for. Unit: tokens. Default: set by the format. Example: 512."""
    sort: bool = False
    """Read a trace that is out of order into memory and sort it."""
    columns: Mapping[str, str] = field(factory=dict, validator=known_fields)
    """Which column of the file is which field; where its format is not known. Example: {arrival = "ts"}."""
    time_unit: str | None = field(default=None, validator=optional(in_(tuple(UNITS))))
    """Unit of the times in the trace. Default: set by the format; for columns of your own
    the unit in their names, such as start_ms, else s. Example: "ms"."""
    empty: str | None = field(default=None, validator=optional(in_(("skip", "error"))))
    """What happens to rows without tokens. Default: set by the format. Example: "skip"."""

    def __attrs_post_init__(self) -> None:
        if self.rate is not None and self.time_scale != 1:
            raise ValueError("give rate or time_scale, not both")
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end ({self.end:g} s) must be after start ({self.start:g} s)")

    def requests(self, seed: int, ledger: Ledger | None = None) -> Iterator[Request]:
        """Yield the requests in order of arrival, numbered from 0, the first at 0 s.

        *ledger* counts what happens to the rows.  Raises DataError for a trace that
        cannot be read, and if no request is left.
        """
        ledger = Ledger() if ledger is None else ledger
        scale = self._scale(seed)
        for number, row in enumerate(self._placed(seed, ledger)):
            arrival, delay = row.arrival * scale, row.delay * scale
            aborted = None if row.aborted is None else row.aborted * scale
            if (longest := max(arrival, delay, aborted or 0.0)) > LONGEST:
                raise self._too_long(longest)
            yield Request(
                id=number, arrival=arrival, prompt=row.prompt, output=row.output, chunks=row.chunks,
                chunk_tokens=row.chunk_tokens, priority=row.priority, session=row.session, delay=delay,
                tenant=row.tenant, adapter=row.adapter, images=row.images, acceptance=row.acceptance,
                max_tokens=self._limit(row), n=row.n, prompt_logprobs=row.prompt_logprobs, beam_width=row.beam_width,
                outputs=row.outputs, aborted=aborted,
                ignore_eos=self.ignore_eos if row.ignore_eos is None else row.ignore_eos, model=row.model)
            ledger.requests = number + 1
        if not ledger.requests:
            raise DataError(str(self.path), "; ".join(["has no request to replay", *ledger.remarks()]))

    def _limit(self, row: Row) -> int | None:
        """The `max_tokens` that a request sends."""
        if row.max_tokens is not None or self.max_completion_tokens is None:
            return row.max_tokens
        return max(self.max_completion_tokens, row.output)

    @property
    def recognised(self) -> str:
        """The name of the format, recognised from the file where none is named."""
        return self.format.name or ("plain" if self.columns else recognise(self.path))

    def clock(self) -> str:
        """Return the unit of the trace's times, "dates", or "" if it has no arrival times.

        Raises DataError for a first row that cannot be read.
        """
        return clock(self.path, self.format, self.columns, self.time_unit, self.empty)

    def _too_long(self, seconds: float) -> DataError:
        return DataError(str(self.path), f"arrivals span {seconds / DAY:,.0f} days, and at most {LONGEST / DAY:,.0f}"
                                         f" can be simulated; {UNITS_HINT}")

    def _scale(self, seed: int) -> float:
        """Return the factor of all times."""
        if self.rate is None or not self.clock():
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
        """Yield the rows to replay, at their arrivals before scaling."""
        rows = self._chosen(seed, ledger)
        if not self.spread:
            return rows
        return from_zero(spread_ties(rows, self._clock_step(seed), stream(seed, "workload.spread")))

    def _clock_step(self, seed: int) -> float:
        """Return the smallest time between two different arrivals, 0 if all are equal."""
        arrivals = (row.arrival for row in self._chosen(seed, Ledger()))
        return min((later - earlier for earlier, later in pairwise(arrivals) if later > earlier), default=0.0)

    def _chosen(self, seed: int, ledger: Ledger) -> Iterator[Row]:
        """Yield the rows to replay, before ties are spread."""
        rows = read(self.path, self.format, self.chunk_tokens, self.sort, ledger, columns=self.columns,
                    time_unit=self.time_unit, empty=self.empty, arrivals=self._arrivals(seed, ledger), seed=seed)
        limits = LengthLimits(self.max_prompt, self.max_tokens, self.overlong, str(self.path))
        kept = islice(limits.apply(self._inside_window(rows, ledger), ledger), self.limit)
        return note_ties(from_zero(kept), ledger)

    def _arrivals(self, seed: int, ledger: Ledger) -> Iterator[float] | None:
        """Return Poisson arrivals for a trace without arrivals; None without a rate."""
        if self.rate is None:
            return None
        return self._noted(Arrivals("poisson", self.rate).times(stream(seed, "workload.arrivals"), maxsize), ledger)

    def _noted(self, times: Iterator[float], ledger: Ledger) -> Iterator[float]:
        ledger.notes.append(f"{MADE_UP}; Poisson arrivals at {self.rate:g}/s")
        yield from times

    def _inside_window(self, rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
        for row in rows:
            if self.end is not None and row.arrival >= self.end:
                ledger.outside_window += 1
                return
            if row.arrival >= self.start:
                yield row
            else:
                ledger.outside_window += 1


@frozen
class Retries:
    """A client's retries after status 429, or a cut: it waits, and tries again; each wait is twice the one before.

    The defaults are those of the openai package for Python (src/openai/_base_client.py, _constants.py).
    """

    max_retries: int = field(default=2, validator=(ge(0), le(1000)))
    """Attempts after the first. Unit: attempts. Source: openai-python max_retries."""
    initial_delay: Seconds = field(default=0.5, converter=quantity, validator=gt(0))
    """The wait before the first of them. Unit: s. Source: openai-python INITIAL_RETRY_DELAY."""
    max_delay: Seconds = field(default=8.0, converter=quantity, validator=gt(0))
    """The longest wait. Unit: s. Source: openai-python MAX_RETRY_DELAY."""
    jitter: float = field(default=0.25, validator=(ge(0), le(1)))
    """The share of a wait that chance may take off, by the scenario's seed. Unit: share. Source: openai-python."""

    def delay(self, taken: int, random: "np.random.Generator") -> float:
        """Seconds until the next attempt, where so many retries were *taken* before."""
        return min(self.initial_delay * 2.0**taken, self.max_delay) * (1.0 - self.jitter * float(random.random()))


@frozen
class MixedWorkload:
    """One of several workloads: a recorded trace or synthetic requests, and whose they are."""

    replay: Replay | None = None
    """A recorded trace. Default: none."""
    synthetic: Synthetic | None = None
    """Requests drawn at random. Default: none."""
    model: str | None = None
    """The model that its requests are for, as a pool names it. Default: that of the scenario, or what a trace says.
    Example: "qwen2.5-7b"."""
    tenant: str | None = None
    """The tenant whose requests they are. Default: as drawn, or as a trace says. Example: "free"."""
    slo: Slo | None = None
    """The latency targets of its requests. Default: those of the scenario."""

    def __attrs_post_init__(self) -> None:
        if (self.replay is None) == (self.synthetic is None):
            raise ValueError("is either replay or synthetic")


#: What the name of a workload in a mix is made of: no dots, which separate keys.
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def _are_named(_: object, _attribute: object, mix: Mapping[str, MixedWorkload]) -> None:
    """Names that can be part of a key."""
    if strangers := [name for name in mix if not _NAME.fullmatch(name)]:
        raise ValueError(f"mix: {strangers[0]!r} is no name; use letters, digits, - and _")


@frozen
class Workload:
    """The requests that arrive: a recorded trace, synthetic requests, or a mix of such workloads.

    At most `max_concurrency` requests are in flight; the others wait at the client,
    as with `vllm bench serve --max-concurrency`.
    """

    replay: Replay | None = None
    """A recorded trace. Default: none."""
    synthetic: Synthetic | None = None
    """Requests drawn at random. Default: none."""
    max_concurrency: int | None = field(default=None, validator=optional(gt(0)))
    """Most requests in flight; the others wait at the client. Unit: requests. Default: no limit. Source: vllm bench
    serve --max-concurrency. Example: 64."""
    retries: Retries | None = None
    """What a client does when it is refused with status 429, or cut off with its replica. Default: it gives up.
    Example: {max_retries = 2}."""
    mix: Mapping[str, MixedWorkload] = field(factory=dict, validator=_are_named)
    """Several workloads at once, by name. Default: one, of the keys above."""
    arrivals: Arrivals | None = None
    """Arrivals of which workloads of the mix have a `share`. Default: each has its own. Example: {rate = 10.0}."""
    count: int | None = field(default=None, validator=optional(and_(gt(0), le(MOST_REQUESTS))))
    """Number of these arrivals; a session is one. Unit: arrivals. Default: 100; with rates that end, all that arrive.
    Example: 1000."""

    def __attrs_post_init__(self) -> None:
        if [self.replay is not None, self.synthetic is not None, bool(self.mix)].count(True) != 1:
            raise ValueError("a workload is either replay or synthetic, or a mix of such")
        self._check_arrivals()

    def _check_arrivals(self) -> None:
        """Raise ValueError for shares of no arrivals, and for arrivals of which nobody has a share."""
        if self.arrivals is None:
            if self.count is not None:
                raise ValueError("count is of workload.arrivals; set it in synthetic")
            for key, source in self.sources.items():
                if source.synthetic is not None and source.synthetic.arrivals.share is not None:
                    raise ValueError(f"{key}.synthetic.arrivals.share is of workload.arrivals, and there are none; add"
                                     " them, or give a rate")
            return
        if not self.shares:
            raise ValueError("arrivals are shared, and no workload of the mix has a share of them; say"
                             " synthetic.arrivals = {share = 1.0} in those that do")
        if self.arrivals.share is not None:
            raise ValueError("arrivals.share is of these arrivals themselves; give them a rate")
        if self.arrivals.path is None:
            check_number(self.arrivals, self.count)

    @property
    def sources(self) -> Mapping[str, "Workload | MixedWorkload"]:
        """What has a `replay` or is `synthetic`, by its key."""
        return {f"workload.mix.{name}": part for name, part in self.mix.items()} if self.mix else {"workload": self}

    @property
    def syntheses(self) -> Mapping[str, Synthetic]:
        """The synthetic ones of these, by their keys."""
        return {f"{key}.synthetic": source.synthetic for key, source in self.sources.items() if source.synthetic}

    @property
    def shares(self) -> Mapping[str, float]:
        """The shares of the common arrivals, by the names of the workloads that have one."""
        shares = {name: part.synthetic.arrivals.share for name, part in self.mix.items() if part.synthetic}
        return {name: share for name, share in shares.items() if share is not None}

    def of_model(self, model: str, usual: str) -> "Workload | None":
        """What of it is for *model*, where *usual* is that of synthetic requests for which none is named; None for
        nothing.  A trace may say models itself."""
        if not self.mix:
            return self if self.replay or model == usual else None
        own = {name: part for name, part in self.mix.items()
               if (part.model or (model if part.replay else usual)) == model}
        shared = any(name in self.shares for name in own)
        return evolve(self, mix=own, arrivals=self.arrivals if shared else None,
                      count=self.count if shared else None) if own else None

    @property
    def may_abort(self) -> bool:
        """Whether clients may hang up on requests: whether a trace has a column that says when."""
        replays = (source.replay for source in self.sources.values())
        return any(replay is not None and may_abort(replay.path, replay.format, replay.columns) for replay in replays)

    def requests(self, seed: int, ledger: Ledger | None = None) -> Iterator[Request]:
        """Yield the requests by arrival, the first at 0 s; the same for the same *seed*.

        *ledger* counts what happens to a trace's rows.  Raises DataError for a trace
        that cannot be read, UnknownName for an unknown table of lengths.
        """
        if self.mix:
            from ksim.workload.mix import merged, renamed, seeds_of  # most scenarios have one workload

            seeds, counts = seeds_of(self.mix, seed), Ledger() if ledger is None else ledger
            return merged([renamed(self._of_part(name, seed, seeds[name], counts), name, part.model or "", part.tenant)
                           for name, part in self.mix.items()])
        if self.replay:
            return self.replay.requests(seed, ledger)
        assert self.synthetic, "a workload without a replay is synthetic"
        return self.synthetic.requests(seed)

    def _of_part(self, name: str, seed: int, own: int, ledger: Ledger) -> Iterator[Request]:
        """The requests of the workload *name* of the mix, whose *own* seed is not that of the scenario."""
        part, counts = self.mix[name], Ledger()
        if part.replay:
            from ksim.workload.mix import noted

            return noted(part.replay.requests(own, counts), counts, ledger, name)
        assert part.synthetic, "a workload without a replay is synthetic"
        return part.synthetic.requests(own, self.times_of(name, seed))

    def times_of(self, name: str, seed: int) -> Iterator[float] | None:
        """When requests of the workload *name* of the mix arrive that have a share of common arrivals, else None."""
        common = self.common(name)
        if common is None:
            return None
        if common[0].path is not None:
            check_file(common[0], self.count)
        from ksim.workload.mix import shared_times

        return shared_times(*common, self.shares, name, seed)

    def common(self, name: str) -> tuple[Arrivals, int] | None:
        """The arrivals of which the workload *name* of the mix has a share, and the most that there are; None for one
        that has its own."""
        if name not in self.shares or self.arrivals is None:
            return None
        return self.arrivals, most_of(self.arrivals, self.count)

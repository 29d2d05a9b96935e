"""How long a workload is, found without running it, and what keeping such a run takes."""

from itertools import islice
from pathlib import Path

from attrs import evolve, frozen

from ksim.foundation.errors import KsimError
from ksim.studies.scenario import Scenario
from ksim.workload.lines import Lines
from ksim.workload.reading import reader, recognise
from ksim.workload.replay import Replay

__all__ = ["Extent", "extent"]

#: Requests whose outputs stand for those of all.
SAMPLE = 1000
#: Bytes that a run takes which is kept whole, and for each request and output token of it: within 3 % of the peaks of
#: runs of 5,000 to 50,000 requests with 50 to 230 output tokens each, all files written (362 MB to 1.75 GB).
BASE, PER_REQUEST, PER_TOKEN = 300e6, 9.4e3, 80.0
#: CPU seconds of the same runs for each request and output token (0.31 ms, 2.5 us on a 2-core cloud machine).
SECONDS_PER_REQUEST, SECONDS_PER_TOKEN = 3e-4, 2.5e-6
#: More requests or output tokens than these make a run that is kept whole take 0.8 to 1.6 GB.
MANY_REQUESTS, MANY_TOKENS = 50_000, 10_000_000


@frozen
class Extent:
    """About how many `requests` a workload has, and how many output `tokens` in all; 0 where that is not known."""

    requests: int
    tokens: int

    @property
    def is_long(self) -> bool:
        """Whether a run of it should be written while it goes on."""
        return self.requests > MANY_REQUESTS or self.tokens > MANY_TOKENS

    @property
    def memory(self) -> float:
        """About how many bytes a run of it takes that is kept whole."""
        return BASE + PER_REQUEST * self.requests + PER_TOKEN * self.tokens

    @property
    def seconds(self) -> float:
        """About how many CPU seconds a run of it takes; how busy the engines are decides, and so does the machine."""
        return SECONDS_PER_REQUEST * self.requests + SECONDS_PER_TOKEN * self.tokens


def extent(scenario: Scenario) -> Extent:
    """The extent of the workload of *scenario*: by its first requests, and by the lines of a trace.

    Rows without tokens count as well, and outputs after the first rows are taken to be like those.  Where only a window
    of a trace counts, or lengths decide which rows do, the trace is read to the end of the window.  Of a workload that
    cannot be read nothing is known, and the extent is 0: the run itself says why.
    """
    try:
        return _synthetic(scenario) if scenario.workload.replay is None else _replay(scenario.workload.replay)
    except KsimError:
        return Extent(0, 0)


def _synthetic(scenario: Scenario) -> Extent:
    assert scenario.workload.synthetic, "a workload without a replay is synthetic"
    outputs = [request.output for request in islice(scenario.workload.requests(scenario.seed), SAMPLE)]
    return _extent(scenario.workload.synthetic.count, outputs)


def _replay(replay: Replay) -> Extent:
    if not (replay.start or replay.end is not None or replay.max_prompt or replay.max_tokens):
        return _of_lines(replay)
    # A rate and spread arrivals change no row, and each would take a pass of its own.
    outputs = [request.output for request in evolve(replay, rate=None, spread=False).requests(0)]
    return Extent(len(outputs), sum(outputs))


def _extent(requests: int, outputs: list[int]) -> Extent:
    return Extent(requests, round(requests * sum(outputs) / max(1, len(outputs))))


def _of_lines(replay: Replay) -> Extent:
    """As many rows to each line as at the beginning of the trace."""
    lines = Lines(replay.path)
    rows = reader(replay.format or recognise(replay.path)).rows(lines, replay.chunk_tokens)
    outputs = [row.output for row in islice(rows, min(SAMPLE, replay.limit or SAMPLE))]
    if len(outputs) == replay.limit:
        return Extent(len(outputs), sum(outputs))
    read = lines.number
    left = _count(replay.path) - read
    if left <= 0:  # nothing left, or all rows are in one line
        outputs += [row.output for row in rows]
    requests = len(outputs) + (left * len(outputs) // max(1, read) if left > 0 else 0)
    return _extent(min(requests, replay.limit or requests), outputs)


def _count(path: Path) -> int:
    """How many lines a file has."""
    lines = Lines(path)
    for _ in lines:
        pass
    return lines.number

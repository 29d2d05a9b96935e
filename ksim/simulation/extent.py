"""How long a workload is, found without running it, and what keeping such a run takes."""

from itertools import islice

from attrs import evolve, frozen

from ksim.simulation.scenario import Scenario
from ksim.workload.replay import Replay
from ksim.workload.workload import Workload

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
    """How many `requests` a workload has, about how many output `tokens` in all, and the seconds that recorded arrivals
    span; 0 where times are not as recorded."""

    requests: int
    tokens: int
    span: float = 0.0

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
    """The extent of the workload of *scenario*: a trace is read to its end, of made-up requests only the first.

    Raises what reading the workload raises.
    """
    workload = scenario.workload
    if workload.replay is None:
        assert workload.synthetic, "a workload without a replay is synthetic"
        outputs = [request.output for request in islice(workload.requests(scenario.seed), SAMPLE)]
        count = workload.synthetic.count
        return Extent(count, round(count * sum(outputs) / max(1, len(outputs))))
    requests = tokens = 0
    last = 0.0
    for request in _as_recorded(workload.replay).requests(scenario.seed):
        requests, tokens, last = requests + 1, tokens + request.output, request.arrival
    return Extent(requests, tokens, last if workload.replay.rate is None else 0.0)


def _as_recorded(replay: Replay) -> Workload:
    """*replay* without what changes no row and takes a pass over the file: spread arrivals, and a rate where the file
    has times."""
    return Workload(evolve(replay, rate=None if replay.clock() else replay.rate, spread=False))

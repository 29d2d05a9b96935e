"""How large a workload is, and what a run of it would take, told without running it."""

from itertools import islice

from attrs import evolve, frozen

from ksim.simulation.scenario import Scenario
from ksim.workload.replay import Replay
from ksim.workload.workload import Workload

__all__ = ["WorkloadSize"]

#: How many synthetic requests are sampled for the mean output.
SAMPLE = 1000
#: Bytes that a run in memory takes: in any case, for each request, and for each output token.  Within 3 % of the peaks
#: of runs of 5,000 to 50,000 requests with 50 to 230 output tokens each, all files written (362 MB to 1.75 GB).
BASE, PER_REQUEST, PER_TOKEN = 300e6, 9.4e3, 80.0
#: CPU seconds of the same runs for each request and output token (0.31 ms and 2.5 us on a 2-core cloud machine).
SECONDS_PER_REQUEST, SECONDS_PER_TOKEN = 3e-4, 2.5e-6
#: With more requests or output tokens than these, a run in memory takes 0.8 to 1.6 GB.
MANY_REQUESTS, MANY_TOKENS = 50_000, 10_000_000


@frozen
class WorkloadSize:
    """How many `requests` a workload has, and about how many output `tokens` in all.

    `span` is the time between the first and the last recorded arrival, in seconds; 0 where arrivals are not recorded.
    """

    requests: int
    tokens: int
    span: float = 0.0

    @classmethod
    def of(cls, scenario: Scenario) -> "WorkloadSize":
        """Measure the workload of *scenario*: a trace is read to its end, a synthetic workload is sampled.

        Raises what reading the workload raises.
        """
        workload = scenario.workload
        if workload.replay is not None:
            return cls._of_trace(workload.replay, scenario.seed)
        assert workload.synthetic, "a workload without a replay is synthetic"
        sample = [*islice(workload.requests(scenario.seed), SAMPLE)]
        # Sessions arrive, and have several turns.
        arriving = len({request.session or request.id for request in sample})
        count = round(min(workload.synthetic.most, workload.synthetic.arrivals.expected * len(sample) / arriving))
        return cls(count, round(count * sum(request.output for request in sample) / len(sample)))

    @classmethod
    def _of_trace(cls, replay: Replay, seed: int) -> "WorkloadSize":
        requests = tokens = 0
        last = 0.0
        for request in _as_recorded(replay).requests(seed):
            requests, tokens, last = requests + 1, tokens + request.output, request.arrival
        return cls(requests, tokens, last if replay.rate is None else 0.0)

    @property
    def is_long(self) -> bool:
        """Whether a run should write its rows while it runs."""
        return self.requests > MANY_REQUESTS or self.tokens > MANY_TOKENS

    @property
    def memory(self) -> float:
        """About how many bytes a run in memory takes."""
        return BASE + PER_REQUEST * self.requests + PER_TOKEN * self.tokens

    @property
    def seconds(self) -> float:
        """About how many CPU seconds a run takes; it varies with the load of the engines, and with the machine."""
        return SECONDS_PER_REQUEST * self.requests + SECONDS_PER_TOKEN * self.tokens


def _as_recorded(replay: Replay) -> Workload:
    """*replay* without what needs a further pass over the file and changes no row: spread arrivals, and a rate where
    the file has times."""
    return Workload(evolve(replay, rate=None if replay.clock() else replay.rate, spread=False))

"""Acceptances: how many drafted tokens does the model accept?

Rejection sampling accepts a drafted token only if it has accepted all before it.  To add an acceptance, add a file
with an attrs class that has

    rates(k, request) -> Sequence[float]
                         for each of the `k` positions of a draft, the chance that this token of `request` and all
                         before it are accepted; no chance is larger than the one before it

Its fields are set by the scenario's options.  The scheduler draws: one number for each verification of each request,
whatever the order in which requests are served.  One from elsewhere is named ``package.module:Class``; nothing need be
inherited.  `tests/laws/test_acceptances.py` holds every one of this folder to the contract.

Drafts are never made: `DrawnSpeculation` draws how many are proposed and accepted.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from attrs import frozen

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.scheduling.job import Job


class Acceptance(Protocol):
    def rates(self, k: int, request: Request) -> Sequence[float]: ...


#: 64 bits, and odd numbers that spread seeds, requests and draws over them (Steele et al., OOPSLA 2014: SplitMix64).
_BITS = (1 << 64) - 1
_SEED, _REQUEST, _DRAW = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xBF58476D1CE4E5B9


@frozen(kw_only=True)
class DrawnSpeculation:
    """Draws what `Speculation` is asked, by `acceptance`, a plug-in of `scheduling.acceptances`.

    The nth verification of a request has the nth number of the request's own stream: what is accepted does not depend
    on when it is verified, nor beside what.  A drafter that looks things up finds something with chance `match_rate`.
    With `ahead`, drafts are scheduled before they are made, so those of a drafter that found nothing are all rejected.
    """

    k: int
    lookahead: int
    drops_block: bool
    keys_ahead: bool
    input_slots: int
    acceptance: Any
    match_rate: float = 1.0
    ahead: bool = False
    seed: int = 0

    def accepted(self, job: Job, drafts: int) -> int:
        """How many of *drafts* drafted tokens of *job* the model accepts, of which none is after a rejected one."""
        if not job.acceptance_rates:
            job.acceptance_rates = self._rates(job)
        job.verifications += 1
        if self.ahead and not self._matches(job, job.verifications):
            return 0
        drawn = self._uniform(job, 2 * job.verifications)
        return sum(drawn < rate for rate in job.acceptance_rates[:drafts])

    def proposed(self, job: Job) -> int:
        """How many tokens are drafted for *job*: all or none."""
        return self.k if self._matches(job, job.sampled) else 0

    def _matches(self, job: Job, draw: int) -> bool:
        return self.match_rate >= 1.0 or self._uniform(job, 2 * draw + 1) < self.match_rate

    def _uniform(self, job: Job, draw: int) -> float:
        """A number of the stream of *job*; each sequence of a request has one."""
        return uniform(self.seed, job.request.id + (job.request.sequence << 48), draw)

    def _rates(self, job: Job) -> Sequence[float]:
        """The rates of *job*; raises ConfigError for numbers that cannot be such."""
        rates = [float(rate) for rate in self.acceptance.rates(self.k, job.request)]
        falls = all(1.0 >= before >= rate >= 0.0 for before, rate in zip([1.0, *rates], rates, strict=False))
        if len(rates) != self.k or not falls:
            raise ConfigError("serve.speculative_config.acceptance",
                              f"{type(self.acceptance).__name__} gives {rates} for request {job.request.id}; expected"
                              f" {self.k} numbers in [0, 1], none larger than the one before it")
        return rates


def uniform(seed: int, request: int, draw: int) -> float:
    """The number in [0, 1) that *draw* of a *request* gives: a hash, so nothing depends on the order of draws."""
    state = (seed * _SEED + (request + 1) * _REQUEST + (draw + 1) * _DRAW) & _BITS
    for _ in range(2):
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _BITS
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _BITS
        state ^= state >> 31
    return (state >> 11) * 2.0**-53

"""Acceptances of drafted tokens: how likely the target takes each."""

from collections.abc import Sequence
from itertools import accumulate

from attrs import field, frozen
from attrs.validators import deep_iterable, ge, le, min_len, optional

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["Geometric", "ByPosition", "ByRequest", "Histogram"]


@frozen
class Geometric:
    """Each drafted token is accepted with the same chance, if those before it are.

    The model of Leviathan et al. (ICML 2023): tokens are accepted independently of each other, with chance `rate`.

    The mean length of a verification, with the token that the model samples, is (1 - rate^(k + 1)) / (1 - rate).

        acceptance = {name = "geometric", rate = 0.8}
    """

    rate: float = field(validator=(ge(0), le(1)))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        return [self.rate**position for position in range(1, k + 1)]


@frozen
class ByPosition:
    """Each position of a draft has a rate of its own, as vLLM's log prints them.

    `rates_by_position` are vLLM's "per-position acceptance rates": the chance that a token and all before it are
    accepted, position by position.

    Positions beyond them are never accepted.

        acceptance = {name = "by_position", rates_by_position = [0.85, 0.7, 0.55]}
    """

    rates_by_position: tuple[float, ...] = field(validator=min_len(1))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        return [*self.rates_by_position, *[0.0] * k][:k]


@frozen
class ByRequest:
    """Each request has a rate of its own, from the trace.

    The trace says for each request with which chance a drafted token is accepted if those before it are, in its
    column acceptance; `rate` is for requests without.

        acceptance = {name = "by_request", rate = 0.7}
    """

    rate: float | None = field(default=None, validator=optional((ge(0), le(1))))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        rate = self.rate if request.acceptance is None else request.acceptance
        if rate is None:
            raise ConfigError("serve.speculative_config.acceptance", f"request {request.id} of the trace has no"
                                                                     f" acceptance; give by_request a rate for those"
                                                                     f" without, or the trace a column")
        return [rate**position for position in range(1, k + 1)]


def _some(_: object, __: object, value: Sequence[float]) -> None:
    if not sum(value) > 0:
        raise ValueError("'counts' must have at least one verification")


@frozen
class Histogram:
    """How often so many drafted tokens were accepted is measured.

    `counts` are verifications that accepted 0, 1, 2, ... tokens: vLLM's `acceptance_histogram` of a request
    (--per-request-spec-decode-metrics), or its sum over many.

    A longer draft than those measured has no more accepted; a shorter one is cut.

        acceptance = {name = "histogram", counts = [120, 60, 30, 90]}
    """

    counts: tuple[float, ...] = field(validator=(min_len(2), deep_iterable(ge(0)), _some))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        at_least = [*accumulate(reversed(self.counts))][::-1]
        rates = [count / at_least[0] for count in at_least[1:]]
        return [*rates, *[0.0] * k][:k]

"""How often so many drafted tokens were accepted is measured."""

from collections.abc import Sequence
from itertools import accumulate

from attrs import field, frozen
from attrs.validators import deep_iterable, ge, min_len

from ksim.flow.request import Request

__all__ = ["Histogram"]


def _some(_: object, __: object, value: Sequence[float]) -> None:
    if not sum(value) > 0:
        raise ValueError("'counts' must have at least one verification")


@frozen
class Histogram:
    """`counts` are verifications that accepted 0, 1, 2, ... tokens: vLLM's `acceptance_histogram` of a request
    (--per-request-spec-decode-metrics), or its sum over many.

    A longer draft than those measured has no more accepted; a shorter one is cut.

        acceptance = {name = "histogram", counts = [120, 60, 30, 90]}
    """

    counts: tuple[float, ...] = field(validator=(min_len(2), deep_iterable(ge(0)), _some))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        at_least = [*accumulate(reversed(self.counts))][::-1]
        rates = [count / at_least[0] for count in at_least[1:]]
        return [*rates, *[0.0] * k][:k]

"""Each position of a draft has a rate of its own, as vLLM's log prints them."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import min_len

from ksim.flow.request import Request

__all__ = ["ByPosition"]


@frozen
class ByPosition:
    """`rates_by_position` are vLLM's "per-position acceptance rates": the chance that a token and all before it are
    accepted, position by position.

    Positions beyond them are never accepted.

        acceptance = {name = "by_position", rates_by_position = [0.85, 0.7, 0.55]}
    """

    rates_by_position: tuple[float, ...] = field(validator=min_len(1))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        return [*self.rates_by_position, *[0.0] * k][:k]

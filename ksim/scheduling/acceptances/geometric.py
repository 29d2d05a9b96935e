"""Each drafted token is accepted with the same chance, if those before it are."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, le

from ksim.flow.request import Request

__all__ = ["Geometric"]


@frozen
class Geometric:
    """The model of Leviathan et al. (ICML 2023): tokens are accepted independently of each other, with chance `rate`.

    The mean length of a verification, with the token that the model samples, is (1 - rate^(k + 1)) / (1 - rate).

        acceptance = {name = "geometric", rate = 0.8}
    """

    rate: float = field(validator=(ge(0), le(1)))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        return [self.rate**place for place in range(1, k + 1)]

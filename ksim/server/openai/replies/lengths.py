"""Lengths of answers that end by themselves: those of the outputs of the scenario's workload."""

from collections.abc import Iterator
from itertools import chain, repeat

from attrs import define, field

from ksim.foundation.rng import stream
from ksim.workload.distributions import tokens
from ksim.workload.workload import Workload

__all__ = ["Lengths"]


@define
class Lengths:
    """Draws output lengths of `workload`, the same ones for the same `seed`.

    A trace gives its own lengths in order, again and again.
    """

    workload: Workload
    seed: int
    _draws: Iterator[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._draws = self._drawn()

    def draw(self) -> int:
        """The length of the next answer."""
        return next(self._draws)

    def _drawn(self) -> Iterator[int]:
        synthetic = self.workload.synthetic
        if synthetic is not None:
            return tokens(synthetic.output, stream(self.seed, "server.output"), "output")
        return chain.from_iterable(self._recorded() for _ in repeat(None))

    def _recorded(self) -> Iterator[int]:
        """The lengths of a trace, in its order."""
        return (request.output for request in self.workload.requests(self.seed))

"""What a router saw when it chose."""

from array import array
from collections.abc import Mapping, Sequence

from attrs import frozen

from ksim.flow.events import Event

__all__ = ["Chosen", "Seen"]


@frozen(eq=False)
class Seen:
    """By the names of columns, a number for each of `engines`, which were to choose from; -1 if it was not asked for.

    Metrics are shared with other choices until the next scrape.
    """

    engines: Sequence[int]
    books: Mapping[str, Sequence[int]]
    metrics: Mapping[str, Sequence[float]]
    hits: "array[int] | None" = None
    scores: "array[float] | None" = None

    @property
    def columns(self) -> dict[str, Sequence[float]]:
        """All columns."""
        return {**self.books, **self.metrics, **({} if self.hits is None else {"prefix_hit_tokens": self.hits}),
                **({} if self.scores is None else {"score": self.scores})}


@frozen
class Chosen(Event):
    """A router chose engines for a request by what it had `seen`; `attempt` counts earlier ones of its client."""

    request_id: int
    attempt: int
    engine: int
    prefill_engine: int
    seen: Seen

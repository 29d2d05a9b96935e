"""Laps that are made when somebody looks at them."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from attrs import frozen

from ksim.flow.timeline import Lap


@frozen(eq=False)
class Laps(Sequence[Lap]):
    """The laps that `make` makes, which are as many and the same whenever it is asked.  Pickled, they are made."""

    make: Callable[[], Iterable[Lap]]

    @cached_property
    def made(self) -> tuple[Lap, ...]:
        return tuple(self.make())

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, place: Any) -> Any:
        return self.made[place]

    def __eq__(self, other: object) -> bool:
        return self.made == (other.made if isinstance(other, Laps) else other)

    def __hash__(self) -> int:
        return hash(self.made)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.made,)

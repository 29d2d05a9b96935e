"""A mixture's experts: how popular each one is, and which ranks hold it."""

from math import ceil, isfinite

from attrs import field, frozen
from attrs.validators import ge

from ksim.foundation.errors import ConfigError


def _shares(table: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(share / sum(row) for share in row) if sum(row) else row for row in table)


@frozen(cache_hash=True)
class Routing:
    """How popular a mixture's experts are.

    Popularity follows Zipf's law with an `exponent` (0 makes all experts equal), in an order that is independent of
    which rank holds them.  Or it is given by `shares` of the (token, expert) pairs, expert by expert: one row for all
    layers, or one row for each.
    """

    exponent: float = field(default=0.0, validator=ge(0))
    shares: tuple[tuple[float, ...], ...] = field(default=(), converter=_shares)

    def __attrs_post_init__(self) -> None:
        for row in self.shares:
            if not all(isfinite(share) and share >= 0 for share in row) or not sum(row):
                raise ValueError("shares of experts must be finite numbers of 0 or more, and not all 0")

    def at(self, layer: int) -> "Routing":
        """The routing of one layer."""
        return Routing(self.exponent, (self.shares[layer],)) if len(self.shares) > 1 else self


@frozen
class Placement:
    """Which ranks hold which experts: by a `strategy` of compute/placement.py, with `redundant` copies."""

    strategy: str = "linear"
    redundant: int = 0

    def slots(self, experts: int, ranks: int) -> int:
        """The experts that a rank holds, at most.

        Raises ConfigError where EPLB would need the same number on all ranks.
        """
        total = experts + self.redundant
        if self.strategy == "balanced" and total % ranks:
            raise ConfigError("serve.num_redundant_experts", f"{experts} experts and {self.redundant} redundant ones do"
                              f" not divide among {ranks} ranks; set it to {self.redundant + -total % ranks}")
        return ceil(total / ranks)

"""Which group of ranks splits which index, and what is left of the sizes on one rank."""

from collections.abc import Mapping

from ksim.compute.equation import Equation
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError

#: The groups that a system's GPUs form, from the innermost: neighbours are of one tensor group.
GROUPS = ("tensor", "context", "expert")
#: Pairs of an index and the group that splits it.
Splits = tuple[tuple[str, str], ...]
#: As users write them: "K", which stands for {"K": "tensor"}.
Written = str | Mapping[str, str] | Splits


def splits(written: Written) -> Splits:
    """The pairs that *written* stands for; raises ValueError for what is no index or no group."""
    if isinstance(written, str):
        written = {written: "tensor"} if written else {}
    pairs = tuple(written.items()) if isinstance(written, Mapping) else tuple(written)
    for index, group in pairs:
        if len(index) != 1:
            raise ValueError(f"{index!r} is not one index; of several, say which group splits each:"
                             f" {{'K': 'tensor', 's': 'context'}}")
        group_of(group)
    return pairs


def group_of(name: str) -> str:
    """*name*; raises ValueError where it is none of `GROUPS`."""
    if name not in GROUPS:
        raise ValueError(f"{name!r} is no group of ranks ({', '.join(GROUPS)})")
    return name


def check(equation: Equation, pairs: Splits, indices: str, word: str) -> None:
    """Raise ValueError where one of *pairs* has an index that is not one of *indices*; *word* says what it is for."""
    for index, _ in pairs:
        if index not in indices:
            raise equation.wrong(f"{word} index {index!r} is not one of {', '.join(indices)}")


def share(sizes: Sizes, pairs: Splits, ranks: Mapping[str, int], where: str) -> Sizes:
    """The sizes on one rank; raises ConfigError that names *where* for one that does not divide."""
    local = dict(sizes.of)
    for index, group in pairs:
        if local[index] % ranks[group]:
            raise ConfigError(where, f"index {index!r} has size {local[index]}, which does not divide over"
                                     f" {ranks[group]} ranks (group {group!r})")
        local[index] //= ranks[group]
    return Sizes(local)

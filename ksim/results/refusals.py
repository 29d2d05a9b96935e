"""Why requests were rejected, in one sentence."""

import re

from attrs import define, field

_NUMBERS = re.compile(r"\d+")


@define(eq=False)
class Refusals:
    """Counts of the reasons for rejections, which differ in no more than their numbers, and an example of each."""

    _counts: dict[str, int] = field(factory=dict)
    _examples: dict[str, str] = field(factory=dict)

    def add(self, reason: str) -> None:
        """Count a rejection."""
        kind = _NUMBERS.sub("#", reason)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._examples.setdefault(kind, reason)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def commonest(self) -> str:
        """The commonest reason, with the numbers of the first request that it was given for; "" without any."""
        kind = max(self._counts, key=self._counts.__getitem__, default="")
        often = "" if self._counts.get(kind) == len(self) else f" ({self._counts[kind]:,} of them)"
        return f"{self._examples[kind]}{often}" if kind else ""

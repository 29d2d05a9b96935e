"""Why requests were rejected, in one sentence."""

import re

from attrs import define, field

_NUMBERS = re.compile(r"\d+")


@define(eq=False)
class Refusals:
    """Counts of the reasons for rejections; reasons that differ only in their numbers are the same."""

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
        """The most common reason, with the numbers of the first such request; "" if there is none."""
        kind = max(self._counts, key=self._counts.__getitem__, default="")
        often = "" if self._counts.get(kind) == len(self) else f" ({self._counts[kind]:,} of them)"
        return f"{self._examples[kind]}{often}" if kind else ""

"""The blocks of prompts that are being served, engine by engine, as a router counts them."""

from bisect import bisect_left
from collections import Counter

from attrs import define, field

from ksim.cluster.prefix_index import Prompt, nested

__all__ = ["ActiveBlocks"]


@define(eq=False)
class ActiveBlocks:
    """Counts a block once for each engine, however many of its requests have it.

    Whoever has a block has those before it, so what one request has alone is the end of its prompt.
    """

    amounts: dict[int, int] = field(factory=dict, init=False)
    _uses: dict[int, Counter[int]] = field(factory=dict, init=False)
    _holders: dict[int, int] = field(factory=dict, init=False)  # a bit for each engine

    def leading(self, prompt: Prompt) -> dict[int, int]:
        """By engine, how many blocks of *prompt*, from the first on, it serves for others."""
        return nested(prompt.keys, self._holders)

    def add(self, prompt: Prompt, number: int) -> None:
        """Engine *number* serves *prompt*, too."""
        uses = self._uses.get(number)
        if uses is None:
            uses = self._uses[number] = Counter()
        keys, holders, bit = prompt.keys, self._holders, 1 << number
        known = bisect_left(keys, True, key=lambda key: key not in uses)
        fresh = keys[known:]
        held = bisect_left(fresh, True, key=lambda key: key not in holders)
        for key in fresh[:held]:
            holders[key] |= bit
        holders.update(dict.fromkeys(fresh[held:], bit))
        uses.update(keys[:known])
        dict.update(uses, dict.fromkeys(fresh, 1))
        self.amounts[number] = self.amounts.get(number, 0) + prompt.blocks - known

    def remove(self, prompt: Prompt, number: int) -> None:
        """Engine *number* has served *prompt* to its end."""
        uses, keys, holders, bit = self._uses[number], prompt.keys, self._holders, 1 << number
        shared = bisect_left(keys, True, key=lambda key: uses[key] == 1)
        for key in keys[:shared]:
            uses[key] -= 1
        for key in keys[shared:]:
            del uses[key]
            if left := holders[key] & ~bit:
                holders[key] = left
            else:
                del holders[key]
        self.amounts[number] -= prompt.blocks - shared

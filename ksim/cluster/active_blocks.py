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
    _holders: dict[int, int] = field(factory=dict, init=False)  # a bit for each engine
    #: By engine, how many of its requests have a block beside the first that has it.
    _more: dict[int, Counter[int]] = field(factory=dict, init=False)

    def leading(self, prompt: Prompt) -> dict[int, int]:
        """By engine, how many blocks of *prompt*, from the first on, it serves for others."""
        return nested(prompt.keys, self._holders)

    def add(self, prompt: Prompt, number: int) -> None:
        """Engine *number* serves *prompt*, too."""
        keys, holders, bit = prompt.keys, self._holders, 1 << number
        known = bisect_left(keys, True, key=lambda key: not holders.get(key, 0) & bit)
        held = bisect_left(keys, True, known, key=lambda key: key not in holders)
        for key in keys[known:held]:
            holders[key] |= bit
        holders.update(dict.fromkeys(keys[held:], bit))
        if known:
            self._more.setdefault(number, Counter()).update(keys[:known])
        self.amounts[number] = self.amounts.get(number, 0) + prompt.blocks - known

    def remove(self, prompt: Prompt, number: int) -> None:
        """Engine *number* has served *prompt* to its end."""
        keys, holders, more = prompt.keys, self._holders, self._more.get(number, Counter())
        shared = bisect_left(keys, True, key=lambda key: key not in more)
        for key in keys[:shared]:
            if more[key] > 1:
                more[key] -= 1
            else:
                del more[key]
        for key in keys[shared:]:
            if left := holders[key] & ~(1 << number):
                holders[key] = left
            else:
                del holders[key]
        self.amounts[number] -= prompt.blocks - shared

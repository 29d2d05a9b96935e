"""The blocks of prompts that are being served, engine by engine, as a router counts them."""

from attrs import define, field

from ksim.cluster.prefix_index import Prompt, leading

__all__ = ["ActiveBlocks"]


@define(eq=False)
class ActiveBlocks:
    """Counts a block once for each engine, however many of its requests have it."""

    _blocks: dict[int, int] = field(factory=dict, init=False)
    _uses: dict[int, dict[int, int]] = field(factory=dict, init=False)
    _holders: dict[int, int] = field(factory=dict, init=False)  # a bit for each engine

    def of(self, number: int) -> int:
        """How many blocks engine *number* serves."""
        return self._blocks.get(number, 0)

    def leading(self, prompt: Prompt) -> dict[int, int]:
        """By engine, how many blocks of *prompt*, from the first on, it serves for others."""
        return leading(prompt.keys, self._holders)

    def add(self, prompt: Prompt, number: int) -> None:
        uses, holders, bit = self._uses.setdefault(number, {}), self._holders, 1 << number
        before = len(uses)
        for key in prompt.keys:
            count = uses.get(key)
            if count is None:
                uses[key] = 1
                holders[key] = holders.get(key, 0) | bit
            else:
                uses[key] = count + 1
        self._blocks[number] = self.of(number) + len(uses) - before + prompt.blocks - len(prompt.keys)

    def remove(self, prompt: Prompt, number: int) -> None:
        uses, bit = self._uses[number], 1 << number
        before = len(uses)
        for key in prompt.keys:
            if uses[key] > 1:
                uses[key] -= 1
            else:
                del uses[key]
                self._release(key, bit)
        self._blocks[number] -= before - len(uses) + prompt.blocks - len(prompt.keys)

    def _release(self, key: int, bit: int) -> None:
        holders = self._holders[key] & ~bit
        if holders:
            self._holders[key] = holders
        else:
            del self._holders[key]

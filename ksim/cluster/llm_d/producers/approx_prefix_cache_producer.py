"""Guesses what engines have cached from what they were sent."""

from collections.abc import Sequence
from math import inf

from attrs import define, field
from attrs.validators import ge, gt

from ksim.cluster.llm_d.cycle import Cycle, Match
from ksim.cluster.prefix_index import PrefixIndex, Prompt
from ksim.cluster.routers import EngineView

__all__ = ["ApproxPrefixCacheProducer"]

#: The smallest blocks that llm-d takes.
_SMALLEST = 64


@define(eq=False)
class ApproxPrefixCacheProducer:
    """An engine has the blocks that it was sent last, `lru_capacity_per_server` of them, or as many as its KV cache
    has if `auto_tune`.

    Blocks are of `block_size_tokens`, or of the engines' size with `auto_tune`, but of 64 tokens at least.  The first
    `max_prefix_tokens_to_match` tokens of a prompt count; if that is 0, its first `max_prefix_blocks_to_match` blocks;
    if both are 0, all.

    Source: llm-d-router, requestcontrol/dataproducer/approximateprefix (October 2026).
    """

    name: str
    auto_tune: bool = True
    block_size_tokens: int = field(default=16, validator=gt(0))
    block_size: int = field(default=0, validator=ge(0))
    max_prefix_blocks_to_match: int = field(default=2048, validator=ge(0))
    max_prefix_tokens_to_match: int = field(default=131_072, validator=ge(0))
    lru_capacity_per_server: int = field(default=31_250, validator=gt(0))
    _index: PrefixIndex | None = field(default=None, init=False)
    _prompt: Prompt = field(factory=lambda: Prompt((), 0), init=False)
    _kv_blocks: dict[int, int] = field(factory=dict, init=False)

    def look(self, cycle: Cycle, engines: Sequence[EngineView]) -> None:
        index = self._index or self._make(engines)
        self._prompt = prompt = index.prompt(cycle.request)
        cycle.matches[self.name] = Match(prompt.blocks, index.block_tokens, index.shared(prompt))

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        capacity = self._kv_blocks.get(number) or self.lru_capacity_per_server
        assert self._index is not None, "producers look before anything is sent"
        self._index.add(self._prompt, number, cycle.now, capacity)

    def _make(self, engines: Sequence[EngineView]) -> PrefixIndex:
        size = self.block_size or self.block_size_tokens
        if self.auto_tune:
            size = engines[0].block_tokens or size
        size = max(size, _SMALLEST)
        most = (self.max_prefix_tokens_to_match // size if self.max_prefix_tokens_to_match
                else self.max_prefix_blocks_to_match or inf)
        index = self._index = PrefixIndex(size, most_blocks=most, partial=True)
        if self.auto_tune:
            self._kv_blocks = {engine.number: engine.kv_blocks for engine in engines}
        return index

"""SGLang's cache-aware router: the best match of its own approximate tree of prompts, if loads are even."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt, le

from ksim.cluster.prefix_index import PrefixTree
from ksim.cluster.routers import V
from ksim.flow.request import BlockKeys, Request

__all__ = ["SglangCacheAware"]


@define
class SglangCacheAware:
    """Loads are the unfinished requests that it has sent to each engine.

    If the largest is more than `balance_abs_threshold` above the least, and more than `balance_rel_threshold` times as
    large, the engine with the least has the request.  Otherwise the one that had the longest beginning of the prompt
    before, if that is more than `cache_threshold` of the prompt; if it is not, the engine with the least load.

    The tree remembers what was sent where, not what is cached.  Every `eviction_interval_secs` seconds, what was
    longest unused is forgotten of each engine with more than `max_tree_size` tokens.  SGLang counts characters, 2**26
    by default; here a token counts for four of them.  Prompts are compared chunk by chunk, as
    traces name them.

    The defaults are those of SGLang's launcher (router_args.py).  Older releases have 0.5, 32 and 1.0001.
    """

    source: ClassVar[str] = "SGLang sgl-model-gateway, policies/cache_aware.rs and tree.rs"
    signals: ClassVar[tuple[str, ...]] = ("books",)
    cache_threshold: float = field(default=0.3, validator=(ge(0), le(1)))
    balance_abs_threshold: int = field(default=64, validator=ge(0))
    balance_rel_threshold: float = field(default=1.5, validator=ge(0))
    eviction_interval_secs: int = field(default=60, validator=ge(0))
    max_tree_size: int = field(default=2**24, validator=gt(0))
    _tree: PrefixTree = field(factory=PrefixTree, init=False)
    _keys: BlockKeys = field(factory=lambda: BlockKeys(0), init=False)  # chunks of any size
    _evicted: float = field(default=0.0, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        self._evict(now)
        loads = [engine.outstanding for engine in engines]
        least, most = min(loads), max(loads)
        keys, each = self._chunks(request), request.chunk_tokens
        chosen = engines[loads.index(least)]
        if not (most - least > self.balance_abs_threshold and most > least * self.balance_rel_threshold):
            chosen = self._matching(keys, request, engines) or chosen
        self._tree.insert(keys, each, max(request.prompt - len(keys) * each, 0), chosen.number)
        return chosen

    def on_gone(self, number: int) -> None:
        self._tree.forget(number)

    def _chunks(self, request: Request) -> list[int]:
        """The keys of the prompt's chunks that have names, a last one that is not full included."""
        keys, key = list[int](), self._keys.after(-1, request.chunk_tokens)
        for name in request.keyed.chunks[:-(-request.prompt // request.chunk_tokens)]:
            key = self._keys.after(key, name)
            keys.append(key)
        return keys

    def _matching(self, keys: Sequence[int], request: Request, engines: Sequence[V]) -> V | None:
        """The engine that the tree finds for *keys*, if they match enough of the prompt."""
        matched, number = self._tree.match(keys)
        if not min(matched * request.chunk_tokens, request.prompt) > self.cache_threshold * request.prompt:
            return None
        return next((engine for engine in engines if engine.number == number), None)

    def _evict(self, now: float) -> None:
        """Forget what is too much, if it is time; nobody looks between two requests."""
        every = self.eviction_interval_secs
        if every and now >= self._evicted + every:
            self._evicted = now // every * every
            self._tree.evict(self.max_tree_size)

"""llm-d's scheduling profiles for prefill and decode, and its decider: short uncached prompts are not split."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field
from attrs.validators import ge, gt

from ksim.cluster.pair_routers import V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["LlmD"]


@define
class LlmD:
    """Picks the decode engine first, then decides whether to split, then picks the prefill engine.

    An engine's score is `prefix` times the share of the prompt's blocks that it has cached, plus `queue` times how
    short its queue is: 1 for the shortest, 0 for the longest, and 1 for all where they are equally long.  The best
    score wins; ties are drawn by `seed`.  A request is split if the decode engine lacks `threshold` or more tokens of
    its prompt; a `threshold` of 0 never splits.  A decode engine of role decode cannot prefill, so it always splits.

    Source: github.com/llm-d/llm-d-router, plugins disagg-profile-handler, prefix-based-pd-decider (`nonCachedTokens`),
    prefix-cache-scorer, queue-scorer and max-score-picker; weights 2 and 1 and 16 tokens are those of llm-d's guide
    pd-disaggregation.  llm-d knows prefixes approximately or by KV events, and queues as of its last scrape; here both
    are known as they are.
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics", "kv_events")
    source: ClassVar[str] = "github.com/llm-d/llm-d-router"

    threshold: int = field(default=16, validator=ge(0))
    prefix: float = field(default=2.0, validator=ge(0))
    queue: float = field(default=1.0, validator=ge(0))
    block_tokens: int = field(default=64, validator=gt(0))
    seed: int = field(default=0, validator=ge(0))
    _random: Any = field(default=None, init=False)

    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V]:
        decode = self._best(request, decode_engines)
        if decode.role == "both" and not self._splits(request, decode):
            return None, decode
        return self._best(request, prefill_engines), decode

    def _splits(self, request: Request, decode: V) -> bool:
        return self.threshold > 0 and request.prompt - decode.prefix_hit(request) >= self.threshold

    def _best(self, request: Request, engines: Sequence[V]) -> V:
        """The engine with the best score, drawn from those that are equally good."""
        queues = [engine.waiting for engine in engines]
        longest, shortest = max(queues), min(queues)
        scores = [self.prefix * self._cached(request, engine)
                  + self.queue * ((longest - queue) / (longest - shortest) if longest > shortest else 1.0)
                  for engine, queue in zip(engines, queues, strict=True)]
        best = [engine for engine, score in zip(engines, scores, strict=True) if score == max(scores)]
        return best[0] if len(best) == 1 else best[self._draw(len(best))]

    def _cached(self, request: Request, engine: V) -> float:
        """The share of the prompt's whole blocks that *engine* has cached."""
        blocks = request.prompt // self.block_tokens
        return min(engine.prefix_hit(request) // self.block_tokens, blocks) / blocks if blocks else 0.0

    def _draw(self, count: int) -> int:
        if self._random is None:
            self._random = stream(self.seed, "llm_d")
        return int(self._random.integers(count))

"""1 where the request's LoRA adapter is on the GPUs, 0.8 where there is room for one more, 0.6 where it is queued."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from attrs import define, field
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["LoraAffinityScorer"]


@define(eq=False)
class LoraAffinityScorer:
    """llm-d scrapes which adapters run and wait at an engine; here those of the router's own requests are counted.

    `max_loras` is the engines' --max-loras, which llm-d scrapes too.

    Source: llm-d-router, scheduling/scorer/loraaffinity/lora_affinity.go (October 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    max_loras: int = field(default=1, validator=gt(0))
    _adapters: dict[int, Counter[str]] = field(factory=dict, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return [self._score(cycle.request.adapter, engine) for engine in engines]

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        if cycle.request.adapter:
            self._adapters.setdefault(number, Counter())[cycle.request.adapter] += 1

    def ended(self, request: Request, number: int) -> None:
        adapters = self._adapters.get(number, Counter())
        if adapters[request.adapter] > 0:
            adapters[request.adapter] -= 1

    def _score(self, adapter: str, engine: EngineView) -> float:
        if adapter and engine.adapter_place(adapter) == "gpu":
            return 1.0
        theirs = +self._adapters.get(engine.number, Counter[str]())
        return 0.8 if len(theirs) < self.max_loras else 0.6 if adapter in theirs else 0.0

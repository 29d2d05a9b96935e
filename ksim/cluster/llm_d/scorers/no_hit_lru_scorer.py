"""For a prompt that no engine has anything of: the longer since an engine got such a one, the better."""

from collections.abc import Sequence

from attrs import define, field
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import APPROXIMATE, Cycle
from ksim.cluster.routers import EngineView

__all__ = ["NoHitLruScorer"]


@define(eq=False)
class NoHitLruScorer:
    """Engines that never got one come first, in their order; if any engine has part of the prompt, all get a half.

    Source: llm-d-router, scheduling/scorer/nohitlru/no_hit_lru.go (October 2026).
    """

    lru_size: int = field(default=1024, validator=gt(0))
    prefix_match_info_producer_name: str = APPROXIMATE
    prefix_plugin_type: str = ""  # without effect, in llm-d too
    prefix_plugin_name: str = ""
    _oldest_first: dict[int, None] = field(factory=dict, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        if not self._is_cold(cycle, engines):
            return [0.5] * len(engines)
        if len(engines) == 1:
            return [1.0]
        ranks = self._ranks(engines)
        return [max(1.0 - rank / (len(engines) - 1), 0.0) for rank in ranks]

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        if not cycle.matches[self.prefix_match_info_producer_name].blocks:
            self._oldest_first.pop(number, None)
            self._oldest_first[number] = None
            if len(self._oldest_first) > self.lru_size:
                del self._oldest_first[next(iter(self._oldest_first))]

    def _is_cold(self, cycle: Cycle, engines: Sequence[EngineView]) -> bool:
        blocks = cycle.matches[self.prefix_match_info_producer_name].blocks
        return not blocks or not any(engine.number in blocks for engine in engines)

    def _ranks(self, engines: Sequence[EngineView]) -> list[int]:
        """From 0 on: first those that never got a cold request, then the others, the oldest first."""
        places = {number: place for place, number in enumerate(self._oldest_first)}
        never = [engine.number for engine in engines if engine.number not in places]
        firsts = {number: place for place, number in enumerate(never)}
        return [firsts[engine.number] if engine.number in firsts else len(never) + places[engine.number]
                for engine in engines]

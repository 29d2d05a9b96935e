"""Deciders of llm-d's endpoint picker: whether another engine prefills."""

from attrs import field, frozen
from attrs.validators import ge

from ksim.cluster.llm_d.cycle import APPROXIMATE, Cycle
from ksim.cluster.routers import EngineView

__all__ = ["AlwaysDisaggPdDecider", "PrefixBasedPdDecider"]


@frozen
class AlwaysDisaggPdDecider:
    """Splits every request.

    Source: llm-d-router, scheduling/profilehandler/disagg/always_disagg_pd_decider.go (October 2026).
    """

    def splits(self, cycle: Cycle, engine: EngineView) -> bool:
        return True


@frozen
class PrefixBasedPdDecider:
    """Splits a request if its decode engine lacks enough of its prompt.

    Enough is `non_cached_tokens` or more; 0 never splits.  Prompts shorter than `prompt_tokens` are not split.

    Source: llm-d-router, scheduling/profilehandler/disagg/prefix_based_pd_decider.go (October 2026).
    """

    non_cached_tokens: int = field(default=0, validator=ge(0))
    prompt_tokens: int = field(default=0, validator=ge(0))
    prefix_match_info_producer_name: str = APPROXIMATE

    def splits(self, cycle: Cycle, engine: EngineView) -> bool:
        prompt = cycle.request.prompt
        if not self.non_cached_tokens or prompt < self.prompt_tokens:
            return False
        match = cycle.matches[self.prefix_match_info_producer_name]
        return prompt - match.tokens(engine.number) >= self.non_cached_tokens

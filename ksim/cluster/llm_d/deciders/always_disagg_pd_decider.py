"""Splits every request."""

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["AlwaysDisaggPdDecider"]


@frozen
class AlwaysDisaggPdDecider:
    """Source: llm-d-router, scheduling/profilehandler/disagg/always_disagg_pd_decider.go (October 2026)."""

    def splits(self, cycle: Cycle, engine: EngineView) -> bool:
        return True

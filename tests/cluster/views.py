"""What routers see of engines."""

from collections.abc import Mapping

from attrs import field, frozen

from ksim.flow.request import Request


@frozen
class View:
    """What a router may know of an engine."""

    number: int
    outstanding: int
    cached: int
    waiting: int = 0
    role: str = "both"
    adapters: Mapping[str, str] = field(factory=dict, hash=False)
    running: int = 0
    kv_usage: float = 0.0
    scraped_at: float = 0.0
    kv_blocks: int = 1000
    block_tokens: int = 16
    tiers: Mapping[str, int] = field(factory=dict, hash=False)

    def adapter_place(self, name: str) -> str:
        return self.adapters.get(name, "")

    def prefix_hit(self, request: Request) -> int:
        return min(self.cached, request.prompt)

    def tier_hits(self, request: Request) -> Mapping[str, int]:
        return self.tiers

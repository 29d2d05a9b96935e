"""What routers see of engines."""

from attrs import frozen

from ksim.flow.request import Request


@frozen
class View:
    """What a router may know of an engine."""

    number: int
    outstanding: int
    cached: int
    waiting: int = 0
    role: str = "both"

    def prefix_hit(self, request: Request) -> int:
        return min(self.cached, request.prompt)

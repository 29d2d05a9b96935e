"""Flow controls: which requests wait at the gateway or are refused there, before a router sees them.

To add one, add a file with an attrs class of the members of `FlowControl`.  It
decides, and the gateway (ksim/cluster/gateway.py) does the rest: it keeps the
queue, counts the time, and answers with status 429.

The class attributes `signals` and `source` are as those of a router
(ksim/cluster/routers), and so are the methods `measured`, `on_first_token` and
`on_end` if it has them.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar, Protocol

from ksim.cluster.routers import EngineView
from ksim.flow.request import Request


class FlowControl(Protocol):
    @property
    def default_request_ttl(self) -> float:
        """Most seconds that a request waits in the queue; then it is refused."""
        ...

    def refusal(self, request: Request, engines: Sequence[EngineView], held: int, now: float) -> str:
        """Why *request*, which has just come, is refused while so many others are *held*; "" if it may queue."""
        ...

    def flow(self, request: Request) -> str:
        """The name of the queue that *request* joins; a queue is first come, first served."""
        ...

    def ready(self, engines: Sequence[EngineView], now: float) -> bool:
        """Whether a request that waits may go to an engine."""
        ...

    def pick(self, heads: Mapping[str, Request]) -> str:
        """The flow whose first request goes to an engine now; *heads* has the first request of each, at least one."""
        ...

    def sent(self, request: Request, engine_number: int, now: float) -> None:
        """*request* has gone to an engine, which the router chose."""
        ...


class NoQueue:
    """The members of a flow control that holds nobody back."""

    default_request_ttl: ClassVar[float] = inf

    def flow(self, request: Request) -> str:
        return ""

    def pick(self, heads: Mapping[str, Request]) -> str:
        return ""

    def ready(self, engines: Sequence[EngineView], now: float) -> bool:
        return True

"""The cluster: engines behind a router, and the journey of each request."""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.cluster.pair_routers import PairRouter
from ksim.cluster.remote_replica import RemoteReplica
from ksim.cluster.routers import Router
from ksim.engine.engine import Engine
from ksim.flow.events import Arrived, Rejected, Routed
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

Process = Generator[simpy.Event, Any, None]


@define(eq=False)
class Cluster:
    """Takes requests as they come, at most `max_concurrency` at a time where the client keeps to that.

    What is for an engine that is `RemoteReplica` passes by, and is not written down.  With a `pair_router`, requests
    may be split among engines of roles prefill and decode.
    `on_end` is told of each request that is finished or turned away.
    """

    env: simpy.Environment
    router: Router
    engines: Sequence[Engine | RemoteReplica]
    log: Log
    max_concurrency: int | None = None
    on_end: Callable[[], None] = lambda: None
    pair_router: PairRouter | None = None
    _slots: simpy.Resource | None = field(init=False)
    _sessions: dict[str, simpy.Event] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = simpy.Resource(self.env, self.max_concurrency) if self.max_concurrency else None

    def serve(self, requests: Iterable[Request]) -> Process:
        """Let each request set out when it arrives, and wait until the client can take another."""
        for request in requests:
            if request.arrival > self.env.now:
                yield self.env.timeout(request.arrival - self.env.now)
            if self._slots is None and not request.session:
                self._send(request, self.on_end, timely=False)
                continue
            before = self._sessions.get(request.session) if request.session else None
            # A turn that waits for the one before it must not take the place of a request that could run.
            slot = None if before else (yield from self._take_slot())
            end = self.env.process(self._journey(request, slot, before))
            if request.session:
                self._sessions[request.session] = end

    def close(self) -> None:
        """Have all engines write down what is not in the log yet."""
        for engine in self.engines:
            if isinstance(engine, Engine):
                engine.close()

    def _take_slot(self) -> Generator[simpy.Event, Any, Any]:
        if self._slots is None:
            return None
        slot = self._slots.request()
        yield slot
        return slot

    def _journey(self, request: Request, slot: Any, before: simpy.Event | None) -> Process:
        """The whole way of one request."""
        if before is not None:
            yield before
            if request.delay:
                yield self.env.timeout(request.delay)
            slot = yield from self._take_slot()
        end = self.env.event()
        self._send(request, end.succeed)
        yield end
        if self._slots is not None:
            self._slots.release(slot)
        self.on_end()

    def _send(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        """Have an engine serve *request*; *done* is called when the user has its last token, or a refusal."""
        engine = self._route(request)
        if isinstance(engine, RemoteReplica):
            return
        self.log.add(Arrived(self.env.now, request))
        self.log.add(Routed(self.env.now, request.id, engine.number))
        if reason := engine.refusal(request):
            self.log.add(Rejected(self.env.now, request.id, reason))
            done()
        else:
            engine.submit(request, done, timely)

    def _route(self, request: Request) -> Engine | RemoteReplica:
        engine = self.router.choose(request, self.engines, self.env.now)
        if engine not in self.engines:
            raise ConfigError(f"router {type(self.router).__name__}", f"chose {engine!r:.80}, which is no engine")
        return engine

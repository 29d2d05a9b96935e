"""The cluster: engines behind a router, and the journey of each request.

A request enters an engine whole, as several sequences, or as a beam search, and may leave before its end.  One that an
engine prefills and another decodes has two parts.  `RemoteReplica` is an engine that another process runs.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import simpy
from attrs import define, evolve, field, frozen

from ksim.cluster.routers import Refusal, Router
from ksim.cluster.signals import View
from ksim.cluster.signals.engine_views import EngineViews
from ksim.engine.engine import Engine, ParentRequest
from ksim.engine.loop_times import Horizon
from ksim.flow.events import GONE, Arrived, Chosen, Failed, KvTransferParams, Rejected, Routed
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError, KsimError
from ksim.specs.settings import SignalSettings

if TYPE_CHECKING:
    from ksim.cluster.gateway import Gateway
    from ksim.cluster.pair_routers import PairRouter
    from ksim.kv.transfer.connectors import KvConnector
    from ksim.kv.transfer.transfer import TransferNetwork

__all__ = ["hang_up", "submit", "first_token", "rest_of", "RemoteReplica", "Clients", "Cluster"]


def submit(engine: Engine, request: Request, done: Callable[[], object], timely: bool) -> None:
    """Have *engine* serve *request*; *done* is called at the end of all its sequences."""
    if request.beam_width:
        from ksim.engine.beam_search import BeamSearch  # for requests that ask for one alone

        BeamSearch.of(request, engine, done)
    elif request.n == 1:
        engine.submit(request, done, timely)
    else:
        parent = ParentRequest(request.n, done)
        for child in request.children():  # one after the other, as vLLM's front end sends them
            engine.submit(child, parent, timely)


def hang_up(request: Request, engines: Iterable[object], env: Horizon, leave: Callable[[], None]) -> None:
    """Call *leave* when the client of *request*, which is sent now to one of *engines*, hangs up.

    Raises KsimError where an engine goes ahead of the clock: it would have taken steps beyond that moment.
    """
    assert request.aborted is not None, "its client hangs up"
    if any(getattr(engine, "ahead", False) for engine in engines):
        raise KsimError(f"request {request.id} is aborted after {request.aborted:g} s, and an engine goes ahead of the"
                        " clock; play such requests with fleet.stepping()")
    env.call_at(env.now + request.aborted, leave)


def first_token(request: Request) -> Request:
    """The part of *request* that its prefill engine serves: the prompt and one token."""
    return evolve(request, output=1, max_tokens=None)


def rest_of(request: Request, decode: Engine, connector: "KvConnector") -> tuple[Request, bool]:
    """The part of *request* that *decode* serves, and whether the first token is handed over to it.

    A token that is the only one is computed by *decode* itself: for an engine that takes tokens apart from the prompt,
    it is the one after that.  Where tokens are handed over, so are log-probabilities of the prompt: *decode* takes the
    prompt's KV, and need not compute the prompt again.
    """
    if not connector.hands_over_token:
        return request, False
    taken = evolve(request, prompt_logprobs=None)
    if decode.endpoint is not None and decode.endpoint.takes_tokens:
        return (evolve(taken, output=2, max_tokens=2), False) if request.output == 1 else (taken, True)
    if request.output == 1 or request.prompt + 1 >= decode.scheduler.limits.max_model_len:
        return taken, False
    most = None if request.max_tokens is None else request.max_tokens - 1
    return evolve(taken, prompt=request.prompt + 1, output=request.output - 1, max_tokens=most), True


@frozen
class RemoteReplica:
    """Stands for an engine before a router: it may be chosen, and cannot be looked at."""

    number: int
    role: str = "both"


Process = Generator[simpy.Event, Any, None]


class Clients:
    """What clients do before a fleet, which says how requests are sent on: at most so many at a time as it has slots.

    `on_end` is told of each request that is finished or turned away.  `prepare` makes what the model sees of a request.
    """

    __slots__ = ()

    env: Horizon
    log: Log
    engines: Sequence[Engine | RemoteReplica]
    on_end: Callable[[], None]
    prepare: Callable[[Request], Request] | None
    _slots: simpy.Resource | None
    _sessions: dict[str, simpy.Event]

    @property
    def parts(self) -> "Sequence[Cluster]":
        """The cluster of each model that is served."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether requests wait at gateways, or with clients that will try again."""
        return any(part.gateway is not None and part.gateway.busy for part in self.parts)

    def send(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        """Have an engine serve *request*; *done* is called when the user has its last token, or a refusal."""
        raise NotImplementedError

    def abort(self, request: int, done: Callable[[], object] = lambda: None) -> None:
        """Drop *request*, by its number, wherever it is, as its client has gone; *done* is called if it had not ended.
        """
        raise NotImplementedError

    def serve(self, requests: Iterable[Request]) -> Process:
        """Let each request set out when it arrives, and wait until the client can take another."""
        foreseen = self._slots is None and any(part.pair_router is not None for part in self.parts) and all(
            part.gateway is None for part in self.parts)
        for request in map(self.prepare, requests) if self.prepare else requests:
            if foreseen:
                foreseen = not request.session
                self.env.next_request = request.arrival if foreseen else -inf
            if request.arrival > self.env.now:
                yield self.env.timeout(request.arrival - self.env.now)
            if self._slots is None and not request.session:
                self.send(request, self.on_end, timely=False)
                continue
            before = self._sessions.get(request.session) if request.session else None
            # A turn that waits for the one before it must not take the place of a request that could run.
            slot = None if before else (yield from self._take_slot())
            end = self.env.process(self._journey(request, slot, before))
            if request.session:
                self._sessions[request.session] = end
        if foreseen:
            self.env.next_request = inf
        yield from self._sessions.values()  # turns that are still to come

    def close(self) -> None:
        """Have all engines log what they have not logged yet."""
        for engine in self.engines:
            if isinstance(engine, Engine):
                engine.close()

    def stop(self) -> None:
        """End what would go on for ever: the run is over."""
        for engine in self.engines:
            if isinstance(engine, Engine):
                engine.stop()

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
        self.send(request, end.succeed)
        yield end
        if self._slots is not None:
            self._slots.release(slot)
        self.on_end()


@define(eq=False)
class Cluster(Clients):
    """Takes requests as they come, at most `max_concurrency` at a time where the client keeps to that.

    What is for an engine that is `RemoteReplica` passes by, and is not written down.  With a `pair_router`, requests
    may be split among engines of roles prefill and decode; their KV moves over `transfer_network`.
    A `gateway` may hold requests back before the router, or refuse them.  `enter` is told of each request, which
    engines get it, and what to call at its end, and returns what is called then; `leave` is told of each, by its
    number, whose client has gone before.
    """

    env: Horizon
    router: Router
    engines: Sequence[Engine | RemoteReplica]
    log: Log
    max_concurrency: int | None = None
    on_end: Callable[[], None] = lambda: None
    pair_router: "PairRouter | None" = None
    transfer_network: "TransferNetwork | None" = None
    prepare: Callable[[Request], Request] | None = None
    signals: SignalSettings = SignalSettings()
    seed: int = 0
    gateway: "Gateway | None" = None
    enter: Callable[[Request, Iterable[int], Callable[[], object]], Callable[[], object]] | None = field(
        default=None, init=False)
    leave: Callable[[int], object] | None = field(default=None, init=False)
    _slots: simpy.Resource | None = field(init=False)
    sight: EngineViews = field(init=False)
    _prefilling: list[View] = field(init=False)
    _decoding: list[View] = field(init=False)
    _candidates: list[View] = field(init=False)
    _sessions: dict[str, simpy.Event] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = simpy.Resource(self.env, self.max_concurrency) if self.max_concurrency else None
        key = "pair_router" if self.pair_router else "router"
        chooser: Any = self.pair_router or self.router
        if self.gateway is not None:
            chooser = self.gateway.sharing(chooser, key)
        self.sight = EngineViews.of(self.engines, chooser, self.signals, self.seed, key)
        if self.gateway is not None:
            self.gateway.open(self.forward, self.sight, self.signals)
        self.offer(self.sight.views)

    def offer(self, views: Sequence[View]) -> None:
        """Have routers choose among *views* alone from now on."""
        self.sight.views = views
        self._prefilling = [view for view in views if view.role == "prefill"]
        self._decoding = [view for view in views if view.role != "prefill"]
        self._candidates = self._prefilling + self._decoding

    @property
    def parts(self) -> "Sequence[Cluster]":
        return (self,)

    def send(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        if request.aborted is not None:
            hang_up(request, self.engines, self.env, lambda: self.abort(request.id, done))
        if self.gateway is not None:
            self.gateway.take(request, done, timely)
        else:
            self.forward(request, done, timely)

    def abort(self, request: int, done: Callable[[], object] = lambda: None) -> None:
        engines = [engine for engine in self.engines if isinstance(engine, Engine)]
        if (self.gateway is not None and self.gateway.abort(request)) or self.drop(request, engines, GONE):
            done()
            if self.leave is not None:
                self.leave(request)

    def drop(self, request: int, engines: Sequence[Engine], reason: str) -> bool:
        """Have *engines* drop *request*, by its number, which fails for this *reason*; return whether any had it."""
        tokens = sum(engine.tokens_had(request) for engine in engines)
        if had := [engine.number for engine in engines if engine.abort(request)]:
            self.log.add(Failed(self.env.now, request, had[-1], reason))
            if self.gateway is not None and self.gateway.scaler is not None:
                self.gateway.scaler.lost(request, self.env.now, tokens, failed=True)
        return bool(had)

    def forward(self, request: Request, done: Callable[[], object], timely: bool) -> int:
        """Have the engine that the router chooses serve *request*; return the number of the one that gets it first.

        Raises Refusal where the router refuses it.
        """
        if self.pair_router is not None:
            return self._send_to_pair(request, done, timely)
        engine = self._route(request)
        if isinstance(engine, RemoteReplica):
            return engine.number
        self._log_routed(request, engine)
        if self.enter is not None:
            done, timely = self.enter(request, (engine.number,), done), True
        if reason := engine.refusal(request):
            self.log.add(Rejected(self.env.now, request.id, reason))
            done()
        else:
            submit(engine, request, done, timely)
        return engine.number

    def _log_routed(self, request: Request, engine: Engine, prefill_engine: int = -1) -> None:
        if self.gateway is None:
            self.log.add(Arrived(self.env.now, request))
        self.log.add(Routed(self.env.now, request.id, engine.number, prefill_engine))

    def _route(self, request: Request) -> Engine | RemoteReplica:
        self.sight.look(request, self.env.now)
        chosen: View | None = self.router.choose(request, self.sight.views, self.env.now)
        if chosen is None:
            self._refuse(self.router)
        if chosen is None or chosen not in self.sight.views:
            raise ConfigError(f"router {type(self.router).__name__}", f"chose {chosen!r:.80}, which is no engine")
        engine: Engine | RemoteReplica = chosen.engine
        self._note(request, engine.number, -1, self.sight.views)
        return engine

    def _refuse(self, router: Any) -> None:
        """Raise Refusal as *router* says, where there is a gateway to answer the client."""
        if self.gateway is not None:
            raise Refusal(getattr(router, "refusal", "") or "the router refused it")

    def _note(self, request: Request, engine: int, prefill_engine: int, candidates: Sequence[View]) -> None:
        """Log what the router saw of *candidates* when it chose, if it looked."""
        sight, attempt = self.sight, self.gateway.retried if self.gateway else 0
        if sight.tells:
            self.log.add(Chosen(self.env.now, request.id, attempt, engine, prefill_engine, sight.seen(candidates)))

    # Split requests.

    def _send_to_pair(self, request: Request, done: Callable[[], object], timely: bool) -> int:
        """As `forward`, with a prefill and a decode engine, or with one that does both."""
        prefill, decode = self._route_pair(request)
        first = decode if prefill is None else prefill
        if self.enter is not None:
            done, timely = self.enter(request, {first.number, decode.number}, done), True
        self._log_routed(request, decode, -1 if prefill is None else prefill.number)
        reason = decode.refusal(request)
        if prefill is not None and (request.n > 1 or request.beam_width):
            asked = f"beam_width is {request.beam_width}" if request.beam_width else f"n is {request.n}"
            reason = f"its {asked}, and a request that one engine prefills for another has one sequence"
        if prefill is not None and not reason:
            reason = prefill.refusal(first_token(request))
        if reason:
            self.log.add(Rejected(self.env.now, request.id, reason))
            done()
        elif prefill is None:
            submit(decode, request, done, timely)
        else:
            self._split(request, prefill, decode, done, timely)
        return first.number

    def _split(self, request: Request, prefill: Engine, decode: Engine, done: Callable[[], object],
               timely: bool) -> None:
        """Have *prefill* compute one token of *request*, and *decode* the others, both at once or one after the
        other."""
        network = self.transfer_network
        assert network and prefill.endpoint and decode.endpoint, "engines of pairs can send each other KV"
        transfer = network.transfer(prefill.endpoint, decode.endpoint, request)
        decode.endpoint.expected.add(transfer)
        rest, handed_over = rest_of(request, decode, network.connector)

        def go_on() -> None:
            decode.submit(rest, done, timely, KvTransferParams(do_remote_prefill=True, transfer=transfer,
                                                               handed_over=handed_over))

        first, params = first_token(request), KvTransferParams(do_remote_decode=True, transfer=transfer)
        if network.connector.concurrent:
            prefill.submit(first, lambda: None, timely=False, params=params)
            go_on()
        else:
            prefill.submit(first, go_on, timely=True, params=params)

    def _route_pair(self, request: Request) -> tuple[Engine | None, Engine]:
        assert self.pair_router is not None, "only a pair router chooses pairs"
        self.sight.look(request, self.env.now)
        prefill, decode = self.pair_router.choose(request, self._prefilling, self._decoding, self.env.now)
        if prefill is None and decode is None:
            self._refuse(self.pair_router)
        for view, among in ((prefill, self._prefilling), (decode, self._decoding)):
            if view not in among and (view is not None or among is self._decoding):
                raise ConfigError(f"pair_router {type(self.pair_router).__name__}",
                                  f"chose {view!r:.80}, which is none of the engines that it was given for that")
        assert decode is not None, "it is one of those given"
        if prefill is None and decode.role != "both":
            raise ConfigError(f"pair_router {type(self.pair_router).__name__}",
                              f"lets engine {decode.number} prefill, and its role is {decode.role!r}")
        self._note(request, decode.number, -1 if prefill is None else prefill.number, self._candidates)
        return None if prefill is None else prefill.engine, decode.engine

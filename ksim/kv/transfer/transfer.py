"""The transfer of one request's KV cache: when its bytes may move, and when they have.

The network says what moves between two engines over which links, and how long that takes alone.  A `KvLayout` says
which GPU of an engine holds which part of the KV cache, and so what each must get from which other.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from math import inf, isnan, nan
from typing import Protocol

import simpy
from attrs import define, field, frozen

from ksim.flow.events import Transferred
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.kv.transfer.connectors import KvConnector
from ksim.network.flows import Flow, Flows
from ksim.network.links import Links
from ksim.network.network import FleetNetwork
from ksim.scheduling.job import Job, Load


@frozen
class LayerShare:
    """A layer's KV cache on one GPU: `bytes` per token, and `state` bytes per sequence.

    The layer is of pipeline stage `stage`.  Its KV heads are cut in `slices`, of which each GPU holds one; if there are
    more GPUs than slices, several hold the same.
    """

    stage: int
    bytes: float
    slices: int = 1
    state: float = 0.0


@frozen(cache_hash=True)
class KvLayout:
    """The KV cache of an engine with `ranks` GPUs in each pipeline stage, layer by layer."""

    ranks: int
    layers: tuple[LayerShare, ...]

    @property
    def per_token(self) -> float:
        """Bytes of one token on all GPUs together."""
        return self.ranks * sum(layer.bytes for layer in self.layers)


@frozen
class Piece:
    """What GPU number `target` of one engine gets from GPU number `source` of another: bytes by token and sequence.

    GPUs are numbered within their engines, stage by stage.
    """

    source: int
    target: int
    per_token: float
    per_sequence: float


@lru_cache(maxsize=256)
def plan(source: KvLayout, target: KvLayout) -> tuple[Piece, ...]:
    """What moves between engines with these layouts so that *target* has all that its GPUs hold.

    Each GPU gets its heads from GPUs that hold them.  Where several do, the GPUs of *target* take turns.
    """
    moved: dict[tuple[int, int], list[float]] = {}
    for here, there in zip(source.layers, target.layers, strict=True):
        for rank in range(target.ranks):
            for giver, part in _givers(here.slices, source.ranks, there.slices, target.ranks, rank):
                pair = here.stage * source.ranks + giver, there.stage * target.ranks + rank
                known = moved.setdefault(pair, [0.0, 0.0])
                known[0] += float(part) * there.bytes
                known[1] += float(part) * there.state
    return tuple(Piece(*pair, *amounts) for pair, amounts in sorted(moved.items()))


def _givers(cut: int, ranks: int, wanted_cut: int, wanting: int, rank: int) -> Sequence[tuple[int, Fraction]]:
    """Which of *ranks* GPUs, with one of *cut* slices each, give which part of its slice to GPU *rank*.

    That is one of *wanting* GPUs, with one of *wanted_cut* slices each.
    """
    wanted = rank * wanted_cut // wanting
    begin, end = Fraction(wanted, wanted_cut), Fraction(wanted + 1, wanted_cut)
    first, last = int(begin * cut), -int(-end * cut // 1)
    givers = []
    for index in range(first, last):
        part = min(end, Fraction(index + 1, cut)) - max(begin, Fraction(index, cut))
        holders = [holder for holder in range(ranks) if holder * cut // ranks == index]
        givers.append((holders[rank % len(holders)], part * wanted_cut))
    return givers


@define(eq=False)
class KvPlacement:
    """Where an engine's KV cache is: on `gpus`, numbered through the fleet, stage by stage, with this `layout`."""

    gpus: Sequence[int]
    layout: KvLayout


@define(slots=False)
class KvRoute:
    """The way of KV from one engine to another: `pieces` are path, cap, and bytes by token and by sequence."""

    links: Links
    pieces: Sequence[tuple[Sequence[int], float, float, float]]

    def sizes(self, tokens: int, last: bool) -> list[float]:
        """The bytes of each piece for so many *tokens*; what is kept by sequence goes with the *last* of them."""
        return [per_token * tokens + per_sequence * last for _, _, per_token, per_sequence in self.pieces]

    def alone(self, tokens: int, last: bool) -> float:
        """Seconds until so many *tokens* have arrived, without other transfers."""
        if last and any(per_sequence for *_, per_sequence in self.pieces):
            return self._played(self.sizes(tokens, last))
        return tokens * self._per_token

    @cached_property
    def _per_token(self) -> float:
        return self._played(self.sizes(1 << 20, last=False)) / (1 << 20)

    def _played(self, sizes: Sequence[float]) -> float:
        env = simpy.Environment()
        flows = Flows(env, self.links)
        begun = [flows.start(size, path, cap) for size, (path, cap, *_) in zip(sizes, self.pieces, strict=True)]
        env.run()
        return max((flow.ended or 0.0 for flow in begun), default=0.0)


@define(eq=False)
class TransferNetwork(FleetNetwork):
    """What the transfers of a fleet share beside its network: how their KV moves, and the log."""

    connector: KvConnector
    log: Log
    _routes: dict[tuple[int, int], KvRoute] = field(factory=dict, init=False)

    def route(self, source: KvPlacement, target: KvPlacement) -> KvRoute:
        """The way from one engine to another."""
        key = id(source), id(target)
        if key not in self._routes:
            self._routes[key] = KvRoute(self.links, [
                self._piece(source.gpus[piece.source], target.gpus[piece.target], piece.per_token, piece.per_sequence)
                for piece in plan(source.layout, target.layout)])
        return self._routes[key]

    def _piece(self, source: int, target: int, per_token: float, per_sequence: float
               ) -> tuple[Sequence[int], float, float, float]:
        path = self.links.path(f"gpu{source}", f"gpu{target}")
        return path, self.connector.share * self.links.line_rate(path), per_token, per_sequence

    def transfer(self, source: "Side", target: "Side", request: Request) -> "KvTransfer":
        """The transfer of the KV of *request*'s prompt from one engine to another."""
        return KvTransfer(self, source, target, request)

    def send(self, route: KvRoute, tokens: int, last: bool) -> list[Flow]:
        """Start the flows of so many *tokens* now."""
        sizes = route.sizes(tokens, last)
        return [self.flows.start(size, path, cap) for size, (path, cap, *_) in zip(sizes, route.pieces, strict=True)]


class Side(Protocol):
    """What a transfer needs of the engine at either of its ends: an `Endpoint`."""

    number: int
    placement: KvPlacement
    block_tokens: int

    @property
    def expected(self) -> set["KvTransfer"]:
        """Transfers whose requests will come to the engine."""
        ...

    @property
    def waiting_for_peer(self) -> set["KvTransfer"]:
        """Transfers whose requests wait for the other engine."""
        ...

    def blocks(self, tokens: int) -> int: ...

    def resume(self, transfer: "KvTransfer") -> None: ...

    def received(self, transfer: "KvTransfer", now: float, failed: bool = False) -> None: ...

    def sent(self, transfer: "KvTransfer", now: float) -> None: ...


@define(eq=False)
class KvTransfer:
    """KV of `request`'s prompt on its way from the engine `source` to the engine `target`.

    Both tell it when they are ready, which may be at a moment to come.  It starts flows, and tells both when the last
    byte has arrived, or when the blocks are gone.
    """

    network: TransferNetwork
    source: Side
    target: Side
    request: Request
    #: P's job, once it has come to P; D's load, once D has blocks for it.
    job: Job | None = None
    load: Load | None = None
    load_begun: bool = False  # D loads, or need not
    target_ready: bool = False  # P may begin
    prefilled: bool = False
    blocks_lost: bool = False  # P's blocks are gone
    ended: bool = False  # nobody needs P's blocks
    lease_renewed: bool = False  # D prolongs the lease
    deadline: float = inf  # of the lease
    answered: float = inf  # when the router has P's answer, once that is known
    flows: list[Flow] = field(factory=list, init=False)
    _prefilled_at: float = field(default=inf, init=False)  # which may be known ahead of the clock
    _skipped: float = field(default=inf, init=False)  # when D has said that it needs no KV
    _allocated: float = field(default=nan, init=False)
    _ready_at: dict[str, float] = field(factory=dict, init=False)
    _began: float = field(default=nan, init=False)
    _first_chunk_at: float = field(default=nan, init=False)  # when the first chunk can leave
    _first_chunk: int = field(default=0, init=False)  # tokens that leave then
    _alone: float = field(default=nan, init=False)
    _sent: int = field(default=0, init=False)  # of the prompt's tokens, those whose KV moves, has moved or need not
    _flows_left: int = field(default=0, init=False)  # flows that have not ended
    _bytes: float = field(default=0.0, init=False)
    _failed: bool = field(default=False, init=False)

    @property
    def tokens(self) -> int:
        """The tokens whose KV D needs."""
        return self.request.prompt

    # What D says.

    def expect(self, moment: float) -> None:
        """D will have the request at *moment*, and prolong the lease if that is before its end."""
        self.lease_renewed |= self.network.connector.renews and moment <= self.deadline

    def allocate(self, load: Load, scheduled: float, moment: float) -> None:
        """D has *scheduled* the load: it has blocks, and its workers know that from *moment* on."""
        self.load, self._allocated, self._sent = load, scheduled, load.start
        self._let_source_begin(moment)
        if self.network.connector.pull:
            self.network.at(moment + self.network.connector.start, self._send_all)
        elif not self.network.connector.by_chunk:
            self._note_ready("target", moment)
        elif self.blocks_lost:
            self.network.at(moment, self._fail)

    def skip_load(self, moment: float) -> None:
        """D needs no KV, or has it: P may begin, and lets go once it has prefilled."""
        self._let_source_begin(moment)
        self._skipped = moment
        if self.prefilled:
            self.network.at(max(moment, self._prefilled_at), self.release_blocks)

    # What P says.

    def finish(self, moment: float) -> None:
        """P has prefilled the prompt, and may let go if D has said that it needs nothing."""
        self.prefilled, self._prefilled_at = True, moment
        if self._skipped < inf and self.load_begun:
            self.network.at(max(moment, self._skipped), self.release_blocks)

    def source_ready(self, moment: float) -> None:
        """P's workers know from *moment* on that the prompt is computed."""
        if not self.network.connector.pull and not self.network.connector.by_chunk:
            self._note_ready("source", moment)

    def chunk_computed(self, tokens: int, moment: float) -> None:
        """From *moment* on, the KV of the first *tokens* tokens is there to be sent."""
        if self.load is None or self.ended:
            return
        if isnan(self._first_chunk_at):
            self._first_chunk_at, self._first_chunk = moment + self.network.connector.start, tokens
            self.network.at(self._first_chunk_at, lambda: self._send(self._first_chunk))
        elif max(moment, self.network.env.now) < self._first_chunk_at:
            self._first_chunk = tokens  # both leave at one time
        else:
            self.network.at(moment, lambda: self._send(tokens))

    def expire(self) -> None:
        """The lease ends: P lets go of the blocks, unless they are being read."""
        if not (self.ended or self.lease_renewed or self.flows):
            self.blocks_lost = self.ended = True
            self.source.sent(self, self.network.env.now)
            if "target" in self._ready_at:  # which may be ahead of the clock
                self.network.at(self._ready_at["target"], self._fail)

    def give_up(self) -> None:
        """P has dropped the request before all of its prompt was computed."""
        self.ended = self.blocks_lost = True
        if self.load is not None:
            self.network.at(self.network.env.now, self._fail)

    def _let_source_begin(self, moment: float) -> None:
        if self.network.connector.by_chunk and not self.target_ready:
            self.network.at(moment, lambda: self.source.resume(self))

    def _note_ready(self, side: str, moment: float) -> None:
        """Note that one side is ready from *moment* on; once both are, all may move."""
        self._ready_at[side] = moment
        if self.blocks_lost:
            self.network.at(moment, self._fail)
        elif len(self._ready_at) == 2:
            self.network.at(max(self._ready_at.values()) + self.network.connector.start, self._send_all)

    # Bytes.

    def _send_all(self) -> None:
        if self.blocks_lost:
            self._fail()
        else:
            self._send(self.tokens)

    def _send(self, tokens: int) -> None:
        """Send the KV of the first *tokens* tokens, as far as it was not sent: whole blocks, and all at the end."""
        size, last = self.target.block_tokens, tokens >= self.tokens
        end = self.target.blocks(self.tokens) * size if last else tokens // size * size
        count = end - self._sent
        if count <= 0 and not last:
            return
        route, now = self._route, self.network.env.now
        if not self.flows:
            self._began = now
        self._alone, self._sent = route.alone(count, last), end
        self._flows_left += len(route.pieces) + 1  # one for this call, as flows may end at once
        for flow in self.network.send(route, count, last):
            self.flows.append(flow)
            self._bytes += flow.size
            flow.done.callbacks.append(lambda _: self._flow_ended())
        self._flow_ended()

    def _flow_ended(self) -> None:
        """A flow has ended."""
        self._flows_left -= 1
        if self._flows_left == 0 and self._sent >= self.tokens:
            self._complete()

    def _complete(self) -> None:
        assert self.load is not None, "bytes go to blocks"
        now = self.network.env.now
        self.network.log.add(Transferred(
            now, self.request.id, self.source.number, self.target.number, allocated=self._allocated,
            began=self._began, alone=self._alone, bytes=self._bytes, tokens=self.load.tokens))
        self.target.received(self, now)
        self.release_blocks()

    def release_blocks(self) -> None:
        """Nobody needs P's blocks any more."""
        if not self.ended:
            self.ended = True
            self.source.sent(self, self.network.env.now)

    def _fail(self) -> None:
        if self.load is None or self._failed:
            return
        self._failed = True
        self.target.received(self, self.network.env.now, failed=True)

    @property
    def _route(self) -> KvRoute:
        return self.network.route(self.source.placement, self.target.placement)

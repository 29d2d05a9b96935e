"""The transfer of one request's KV cache: when its bytes may move, and when they have."""

from math import inf, isnan, nan
from typing import Protocol

from attrs import define, field

from ksim.flow.events import Transferred
from ksim.flow.request import Request
from ksim.kv_transfer.wires import Route, Seat, Wires
from ksim.network.flows import Flow
from ksim.scheduling.connector import Load
from ksim.scheduling.job import Job


class Side(Protocol):
    """What a transfer needs of the engine at either of its ends: an `Endpoint`."""

    number: int
    seat: Seat
    block_tokens: int

    @property
    def asking(self) -> set["Transfer"]:
        """Transfers whose requests wait for the other engine."""
        ...

    def blocks(self, tokens: int) -> int: ...

    def open(self, transfer: "Transfer") -> None: ...

    def received(self, transfer: "Transfer", now: float, failed: bool = False) -> None: ...

    def sent(self, transfer: "Transfer", now: float) -> None: ...


@define(eq=False)
class Transfer:
    """KV of `request`'s prompt on its way from the engine `source` to the engine `target`.

    Both tell it when they are ready, which may be at a moment to come.  It starts flows, and tells both when the last
    byte has arrived, or when the blocks are gone.
    """

    wires: Wires
    source: Side
    target: Side
    request: Request
    #: P's job, once it has come to P; D's load, once D has blocks for it.
    job: Job | None = None
    load: Load | None = None
    begun: bool = False  # D loads, or need not
    opened: bool = False  # P may begin
    prefilled: bool = False
    lost: bool = False  # P's blocks are gone
    ended: bool = False  # nobody needs P's blocks
    kept: bool = False  # D prolongs the lease
    deadline: float = inf  # of the lease
    answered: float = inf  # when the router has P's answer, once that is known
    flows: list[Flow] = field(factory=list, init=False)
    _allocated: float = field(default=nan, init=False)
    _ready: dict[str, float] = field(factory=dict, init=False)
    _began: float = field(default=nan, init=False)
    _earliest: float = field(default=nan, init=False)  # when the first chunk can leave
    _alone: float = field(default=nan, init=False)
    _sent: int = field(default=0, init=False)  # of the prompt's tokens, those whose KV moves, has moved or need not
    _left: int = field(default=0, init=False)  # flows that have not ended
    _bytes: float = field(default=0.0, init=False)
    _failed: bool = field(default=False, init=False)

    @property
    def tokens(self) -> int:
        """The tokens whose KV D needs."""
        return self.request.prompt

    # What D says.

    def expect(self, moment: float) -> None:
        """D will have the request at *moment*, and prolong the lease if that is before its end."""
        self.kept |= self.wires.connector.renews and moment <= self.deadline

    def allocate(self, load: Load, scheduled: float, moment: float) -> None:
        """D has *scheduled* the load: it has blocks, and its workers know that from *moment* on."""
        self.load, self._allocated, self._sent = load, scheduled, load.start
        self._open(moment)
        if self.wires.connector.pull:
            self.wires.at(moment + self.wires.connector.start, self._send_all)
        elif not self.wires.connector.by_chunk:
            self._meet("target", moment)

    def dismiss(self, moment: float) -> None:
        """D has all KV already: P may begin, or let go if it has prefilled."""
        self._open(moment)
        if self.prefilled:
            self.wires.at(moment, self._let_go)

    # What P says.

    def told(self, moment: float) -> None:
        """P's workers know from *moment* on that the prompt is computed."""
        if not self.wires.connector.pull and not self.wires.connector.by_chunk:
            self._meet("source", moment)

    def computed(self, tokens: int, moment: float) -> None:
        """From *moment* on, the KV of the first *tokens* tokens is there to be sent."""
        if self.load is not None and not self.ended:
            if isnan(self._earliest):
                self._earliest = moment + self.wires.connector.start
            self.wires.at(max(moment, self._earliest), lambda: self._send(tokens))

    def expire(self) -> None:
        """The lease ends: P lets go of the blocks, unless they are being read."""
        if not (self.ended or self.kept or self.flows):
            self.lost = self.ended = True
            self.source.sent(self, self.wires.env.now)
            if "target" in self._ready:
                self._fail()

    def _open(self, moment: float) -> None:
        if self.wires.connector.by_chunk and not self.opened:
            self.wires.at(moment, lambda: self.source.open(self))

    def _meet(self, side: str, moment: float) -> None:
        """Note that one side is ready from *moment* on; once both are, all may move."""
        self._ready[side] = moment
        if self.lost:
            self.wires.at(moment, self._fail)
        elif len(self._ready) == 2:
            self.wires.at(max(self._ready.values()) + self.wires.connector.start, self._send_all)

    # Bytes.

    def _send_all(self) -> None:
        if self.lost:
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
        route, now = self._route, self.wires.env.now
        if not self.flows:
            self._began = now
        self._alone, self._sent = route.alone(count, last), end
        self._left += len(route.pieces) + 1  # one for this call, as flows may end at once
        for flow in self.wires.send(route, count, last):
            self.flows.append(flow)
            self._bytes += flow.size
            flow.done.callbacks.append(lambda _: self._land())
        self._land()

    def _land(self) -> None:
        """A flow has ended."""
        self._left -= 1
        if self._left == 0 and self._sent >= self.tokens:
            self._arrive()

    def _arrive(self) -> None:
        assert self.load is not None, "bytes go to blocks"
        now = self.wires.env.now
        self.wires.log.add(Transferred(
            now, self.request.id, self.source.number, self.target.number, allocated=self._allocated,
            began=self._began, alone=self._alone, bytes=self._bytes, tokens=self.load.tokens))
        self.target.received(self, now)
        self._let_go()

    def _let_go(self) -> None:
        self.ended = True
        self.source.sent(self, self.wires.env.now)

    def _fail(self) -> None:
        if self.load is None or self._failed:
            return
        self._failed = True
        self.target.received(self, self.wires.env.now, failed=True)

    @property
    def _route(self) -> Route:
        return self.wires.route(self.source.seat, self.target.seat)

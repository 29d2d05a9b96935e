"""The transfer of one request's KV cache: when its bytes may move, and when they have."""

from math import inf, isnan, nan
from typing import Protocol

from attrs import define, field

from ksim.flow.events import Transferred
from ksim.flow.request import Request
from ksim.kv.transfer.transfer_network import KvPlacement, Route, TransferNetwork
from ksim.network.flows import Flow
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Load


class Side(Protocol):
    """What a transfer needs of the engine at either of its ends: an `Endpoint`."""

    number: int
    placement: KvPlacement
    block_tokens: int

    @property
    def expected(self) -> set["Transfer"]:
        """Transfers whose requests will come to the engine."""
        ...

    @property
    def waiting_for_peer(self) -> set["Transfer"]:
        """Transfers whose requests wait for the other engine."""
        ...

    def blocks(self, tokens: int) -> int: ...

    def resume(self, transfer: "Transfer") -> None: ...

    def received(self, transfer: "Transfer", now: float, failed: bool = False) -> None: ...

    def sent(self, transfer: "Transfer", now: float) -> None: ...


@define(eq=False)
class Transfer:
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
        if self.load is not None and not self.ended:
            if isnan(self._first_chunk_at):
                self._first_chunk_at = moment + self.network.connector.start
            self.network.at(max(moment, self._first_chunk_at), lambda: self._send(tokens))

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
    def _route(self) -> Route:
        return self.network.route(self.source.placement, self.target.placement)

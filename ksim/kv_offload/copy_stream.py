"""A stream of copies: those of one direction of an engine, one after the other, each on all its GPUs at once."""

from collections import deque
from collections.abc import Callable, Sequence
from math import nan

import simpy
from attrs import define, field, frozen

from ksim.network.fleet_network import FleetNetwork
from ksim.scheduling.copies import Copy

__all__ = ["CopyStream", "Lane", "Submitted"]


@frozen
class Lane:
    """The links between GPU number `gpu` and the memory of its node, and the bytes of a KV block that pass them."""

    path: Sequence[int]
    block_bytes: float
    gpu: int = 0


@define(eq=False)
class Submitted:
    """A copy that the workers have known of since `asked`; `done` fires when all GPUs have their part of it.

    It does not begin before `computed`: the time at which the GPUs have computed what was launched before, or what
    fires then.
    """

    copy: Copy
    asked: float
    computed: float | simpy.Event | None
    done: simpy.Event
    began: float = nan
    bytes: float = 0.0
    _left: int = 0


@define(eq=False)
class CopyStream:
    """vLLM's handler of one direction (v1/kv_offload/cpu/gpu_worker.py): each copy has a CUDA stream of its own, which
    waits for the one before it and for the kernels launched so far."""

    network: FleetNetwork
    lanes: Sequence[Lane]
    on_end: Callable[[Submitted], None]
    _waiting: deque[Submitted] = field(factory=deque, init=False)
    _active: Submitted | None = field(default=None, init=False)

    def submit(self, copy: Copy, asked: float, computed: float | simpy.Event | None) -> Submitted:
        """Hand in *copy* at *asked*, which may be a moment to come."""
        submitted = Submitted(copy, asked, computed, self.network.env.event())
        self._waiting.append(submitted)
        if self._active is None:
            self._next()
        return submitted

    def _next(self) -> None:
        self._active = self._waiting.popleft() if self._waiting else None
        if self._active is None:
            return
        computed = self._active.computed
        if isinstance(computed, simpy.Event) and computed.callbacks is not None:
            computed.callbacks.append(lambda _: self._begin_at(0.0))
        else:
            self._begin_at(computed if isinstance(computed, float) else 0.0)

    def _begin_at(self, moment: float) -> None:
        assert self._active is not None, "a stream without copies waits for nothing"
        moment = max(moment, self._active.asked)
        if moment > self.network.env.now:
            self.network.at(moment, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        active = self._active
        assert active is not None, "a stream without copies waits for nothing"
        active.began, active._left = self.network.env.now, len(self.lanes)
        for lane in self.lanes:
            flow = self.network.flows.start(len(active.copy.blocks) * lane.block_bytes, lane.path)
            active.bytes += flow.size
            flow.done.callbacks.append(lambda _: self._part_ended())

    def _part_ended(self) -> None:
        active = self._active
        assert active is not None, "only an active copy has parts"
        active._left -= 1
        if active._left == 0:
            active.done.succeed()
            self.on_end(active)
            self._next()

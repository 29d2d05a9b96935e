"""What messages between GPUs cost: time, bandwidth and energy, by kind, size and number of GPUs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from attrs import frozen

from ksim.compute.graph import Collective, CollectiveKind
from ksim.cost.pricer import Pricer
from ksim.flow.steps import KernelCost
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.scenario.hardware import gpu_of, network_of, system_of
from ksim.scenario.scenario import COLLECTIVES

__all__ = ["KINDS", "Message", "messages"]


KINDS: tuple[str, ...] = get_args(CollectiveKind)
#: How often (ranks - 1) / ranks of a message passes each link, as nccl-tests count it.  Other messages pass it once.
_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}

#: The largest message, in bytes: more than all memory of a large system.
_LARGEST = 1e15


@frozen
class Message:
    """A collective of `bytes`, as nccl-tests count them, among `ranks` GPUs.

    `joules` are those of all GPUs; of these, `idle_joules` is their idle power.
    """

    kind: str
    ranks: int
    bytes: float
    span: KernelCost
    joules: float
    idle_joules: float

    @property
    def seconds(self) -> float:
        return self.span.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that each link carries at least."""
        passes = _PASSES[self.kind] * (self.ranks - 1) / self.ranks if self.kind in _PASSES else 1.0
        return passes * self.bytes / self.seconds

    @property
    def joules_per_bit(self) -> float:
        """Joules of all GPUs per bit of the message."""
        return self.joules / (8 * self.bytes)


def messages(gpu: str | None, system: str | None, nodes: int | None, kinds: Sequence[str], ranks: Sequence[int],
             sizes: Iterable[float]) -> Iterator[Message]:
    """Price messages on the usual system of *gpu*, or on *system*.

    Raises UnknownName for an unknown kind, GPU or system, DoesNotFit for more GPUs than the system has, and ConfigError
    for fewer than two GPUs or a message without bytes.
    """
    server, wanted = system_of(gpu, system, nodes), sorted(sizes)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UnknownName("collective", unknown[0], KINDS)
    if not ranks or min(ranks) < 2:
        raise ConfigError("ranks", f"{min(ranks, default=0)} GPUs have nobody to send to; name 2 or more")
    if max(ranks) > server.gpus:
        raise DoesNotFit(f"{server.name} has {server.gpus} GPUs, not {max(ranks)}; set nodes to"
                         f" {-(-max(ranks) // server.gpus_per_node)} or more")
    if not wanted or wanted[0] <= 0:
        raise ConfigError("sizes", "messages have at least one byte")
    if wanted[-1] > _LARGEST:
        raise ConfigError("sizes", f"messages have at most {_LARGEST:g} bytes, not {wanted[-1]:g}")
    network = network_of(server, map(Choice, COLLECTIVES))
    for count in ranks:
        pricer = Pricer(gpu_of(server.gpu), None, network, {"all": range(count)})
        for kind in kinds:
            yield from (_message(pricer, kind, count, size) for size in wanted)


def _message(pricer: Pricer, kind: str, ranks: int, size: float) -> Message:
    span = pricer.collective(kind, Collective(kind, size, "all"))  # type: ignore[arg-type]
    idle = ranks * pricer.gpu.power.idle * span.seconds
    return Message(kind, ranks, size, span, ranks * span.joules + idle, idle)

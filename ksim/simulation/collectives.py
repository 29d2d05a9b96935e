"""What messages between GPUs take: time, bandwidth and energy, by kind, size and how many take part."""

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from attrs import frozen

from ksim.compute.graph import Collective, CollectiveKind
from ksim.cost.pricer import Pricer
from ksim.flow.kernels import KernelCost
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.simulation.lookup import gpu_of, network_of, system_of
from ksim.simulation.scenario import COLLECTIVES

KINDS: tuple[str, ...] = get_args(CollectiveKind)
#: How often (ranks - 1) / ranks of a message pass each link, by NCCL's tests; of other kinds, the message does once.
_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}

#: Bytes of a message: more than all memory of a large system.
_LARGEST = 1e15


@frozen
class Message:
    """A collective of *bytes*, counted as NCCL's tests do, among `ranks` GPUs.

    `joules` are those of all GPUs, and `idle_joules` what they draw of that whatever they do.
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
        """Bytes/s that each link carries at the least, for that time."""
        passes = _PASSES[self.kind] * (self.ranks - 1) / self.ranks if self.kind in _PASSES else 1.0
        return passes * self.bytes / self.seconds

    @property
    def joules_per_bit(self) -> float:
        """Joules of all GPUs for each bit of the message."""
        return self.joules / (8 * self.bytes)


def messages(gpu: str | None, system: str | None, nodes: int | None, kinds: Sequence[str], ranks: Sequence[int],
             sizes: Iterable[float]) -> Iterator[Message]:
    """Price messages on a GPU's usual system, or another.

    Raises UnknownName for a kind, GPU or system that there is not, DoesNotFit for more GPUs than the system has,
    ConfigError for fewer than two or a message of no bytes.
    """
    found, wanted = system_of(gpu, system, nodes), sorted(sizes)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UnknownName("collective", unknown[0], KINDS)
    if not ranks or min(ranks) < 2:
        raise ConfigError("ranks", f"{min(ranks, default=0)} GPUs have nobody to send to; name 2 or more")
    if max(ranks) > found.gpus:
        raise DoesNotFit(f"{found.name} has {found.gpus} GPUs, not {max(ranks)}; set nodes to"
                         f" {-(-max(ranks) // found.gpus_per_node)} or more")
    if not wanted or wanted[0] <= 0:
        raise ConfigError("sizes", "messages have at least one byte")
    if wanted[-1] > _LARGEST:
        raise ConfigError("sizes", f"messages have at most {_LARGEST:g} bytes, not {wanted[-1]:g}")
    network = network_of(found, map(Choice, COLLECTIVES))
    for count in ranks:
        pricer = Pricer(gpu_of(found.gpu), None, network, {"all": range(count)})
        for kind in kinds:
            yield from (_message(pricer, kind, count, size) for size in wanted)


def _message(pricer: Pricer, kind: str, ranks: int, size: float) -> Message:
    span = pricer.collective(kind, Collective(kind, size, "all"))  # type: ignore[arg-type]
    idle = ranks * pricer.gpu.power.idle * span.seconds
    return Message(kind, ranks, size, span, ranks * span.joules + idle, idle)

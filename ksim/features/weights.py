"""Weights in host memory: each GPU keeps `cpu_offload_gb` of its share there, and its kernels read them over PCIe.

vLLM maps them into the GPU's address space (0.33, model_executor/offloader/uva.py), so each step reads them anew, and
nothing overlaps with that.  Here a step waits for them before its first layer, and reads them from its own memory, too:
it is too long by what that takes, a few per cent of the copy.
"""

from collections.abc import Iterator

from attrs import evolve, frozen

from ksim.compute.graph import HostCopy, Op
from ksim.compute.model import Model
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import GIB
from ksim.network.routes import PCIE, Machines, SystemLinks
from ksim.scenario.cache_layout import Memory
from ksim.scenario.sizing import shards_of
from ksim.simulation.features import WiredFeature
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Shard

__all__ = ["FEATURE"]


@frozen
class HostWeights:
    """Reads `bytes` of weights at `rate` bytes/s, on each GPU."""

    bytes: float
    rate: float
    label: str = "host_weights"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        yield Op(self.label, HostCopy(self.bytes, self.rate))


class WeightsFeature(WiredFeature):
    """An engine some of whose weights stay in host memory."""

    def model(self, model: Model, serve: EngineSettings, gpu: Gpu, system: System) -> Model:
        """*model* with the copy; raises ConfigError for more bytes than there are."""
        held = min(model.weights(shard) for shard in shards_of(model, serve)) / GIB
        if serve.cpu_offload_gb > held:
            raise ConfigError("serve.cpu_offload_gb", f"{serve.cpu_offload_gb:g} GiB are more than the {held:.1f} GiB"
                                                      f" of weights that a GPU has; set at most {held:.1f}")
        node = min(serve.gpus * serve.data_parallel_size, system.gpus_per_node) * serve.cpu_offload_gb
        if system.memory is not None and node * GIB > system.memory:
            raise ConfigError("serve.cpu_offload_gb", f"the GPUs of a node would keep {node:g} GiB in host memory, and"
                                                      f" {system.name} has {system.memory / GIB:.4g} GiB; set less")
        copy = HostWeights(serve.cpu_offload_gb * GIB, SystemLinks(Machines(system, gpu)).by_kind[PCIE].capacity)
        return evolve(model, decoder=evolve(model.decoder, inputs=(*model.decoder.inputs, copy)))

    def memory(self, rank: Memory, model: Model, shard: Shard, serve: EngineSettings) -> Memory:
        return evolve(rank, weights=rank.weights - serve.cpu_offload_gb * GIB)


FEATURE = WeightsFeature()

"""What a model needs of each GPU, and how many tokens of KV cache that leaves: what fits where."""

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from ksim.compute.model import Model
from ksim.foundation.errors import KsimError
from ksim.foundation.units import GIB
from ksim.oracles import peak
from ksim.simulation.defaults import Defaults
from ksim.simulation.lookup import gpu_of, system_of
from ksim.simulation.sizing import RESERVED, Memory, memory, shards_of, usable
from ksim.specs.deployment import EngineSettings, Shard
from ksim.specs.engine import EngineVersion
from ksim.specs.hardware import Gpu, System

__all__ = ["Fit", "fits"]

#: Tensor-parallel sizes that are tried by default.
WAYS = (1, 2, 4, 8, 16, 32, 64)
#: Beyond so many GPUs, only until something fits.
USUAL = 8

#: What ranks need, by their shares of the model and the largest step.
Known = dict[tuple[tuple[Shard, ...], int | None, int | None], list[Memory]]


@frozen
class Fit:
    """A model on `tensor` GPUs: bytes of weights on the fullest, tokens of KV cache, and sequences of `length` tokens
    that they hold; or `why` it does not fit."""

    gpu: str
    tensor: int
    gpus: int
    length: int = 0
    weights: float = 0.0
    tokens: int = 0
    sequences: int = 0
    why: str = ""

    @property
    def fits(self) -> bool:
        return not self.why


def fits(model: Model, gpus: Sequence[str], settings: EngineSettings, version: EngineVersion,
         ways: Sequence[int] = ()) -> Iterator[Fit]:
    """How *model* fits each of *gpus* by *settings*, at tensor-parallel sizes *ways*, by default those of its system.

    Sizes that do not divide the model are left out where none are asked for.  Raises KsimError for a GPU that is none.
    """
    known: Known = {}
    for name in gpus:
        gpu, system, found = gpu_of(name), system_of(name), False
        for tensor in ways or [way for way in WAYS if way <= max(system.gpus, 1)]:
            if not ways and tensor > USUAL and found:
                break
            fit = _fit(model, name, gpu, system, evolve(settings, tensor_parallel_size=tensor), version, known)
            found |= fit.fits
            if ways or not fit.why.startswith("tensor_parallel_size"):
                yield fit


def _fit(model: Model, name: str, gpu: Gpu, system: System, settings: EngineSettings, version: EngineVersion,
         known: Known) -> Fit:
    needed = settings.gpus * settings.data_parallel_size
    failed = Fit(name, settings.tensor_parallel_size, needed)
    if needed > system.gpus:
        return evolve(failed, why=f"{system.name} has {system.gpus} GPU{'s' * (system.gpus > 1)}")
    try:
        serve = Defaults(settings, version, model, gpu).complete()
        peak(gpu, serve.precision.activations)
        ranks = _ranks(model, gpu, serve, known)
    except KsimError as error:
        return evolve(failed, why=str(error))
    assert serve.block_size and serve.max_model_len, "complete settings have both"
    length, size = serve.max_model_len, serve.block_size
    blocks = min(rank.blocks(size) for rank in ranks) - 1  # vLLM's null block is never handed out
    if serve.num_gpu_blocks_override is not None:
        blocks = serve.num_gpu_blocks_override - 1
    tokens, weights = max(blocks, 0) * size, max(rank.weights for rank in ranks)
    return Fit(name, serve.tensor_parallel_size, needed, length, weights, tokens, tokens // length,
               _shortage(ranks, tokens, length))


def _ranks(model: Model, gpu: Gpu, serve: EngineSettings, known: Known) -> list[Memory]:
    """The memory of one rank of each stage; what does not depend on the GPU is worked out once."""
    shards = tuple(shards_of(model, serve))
    key = shards, serve.max_num_batched_tokens, serve.max_num_seqs
    if key not in known:
        known[key] = [memory(model, shard, gpu, serve) for shard in shards]
    return [evolve(rank, usable=usable(gpu, serve)) for rank in known[key]]


def _shortage(ranks: Sequence[Memory], tokens: int, length: int) -> str:
    """Why *tokens* tokens of KV cache are too few, or ""."""
    if tokens >= length:
        return ""
    if tokens > 0:
        return f"KV cache has room for {tokens:,} tokens, fewer than max_model_len"
    missing = max(rank.weights + rank.activations + rank.states + RESERVED - rank.usable for rank in ranks)
    largest = max(ranks, key=lambda rank: rank.weights)
    if largest.weights > largest.usable:
        return f"weights exceed the {largest.usable / GIB:.1f} GiB that can be used"
    return f"{max(missing, 0.0) / GIB:.1f} GiB short of weights, activations and {RESERVED / GIB:.1f} GiB for CUDA"

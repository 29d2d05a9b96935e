"""Answers without a run: a model on one page, and how large a workload is.

A `ModelCard` has a model's parameters by part, its formats, its cache, and on which GPUs it fits.  A `WorkloadSize`
says what a run would take.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from attrs import asdict, evolve, frozen

from ksim.compute import drafters
from ksim.compute.adapters import slots_of
from ksim.compute.model import AttentionKind, Model, ModelPart
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.errors import KsimError
from ksim.foundation.units import GIB
from ksim.oracles import peak
from ksim.scenario.cache_layout import RESERVED, CacheLayout, Memory
from ksim.scenario.defaults import Defaults
from ksim.scenario.features import cache_layers, features_of
from ksim.scenario.hardware import engine_of, gpu_of, system_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import layout_of, memory, shards_of, usable
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings, EngineVersion
from ksim.specs.shard import Shard
from ksim.workload.arrivals import Arrivals
from ksim.workload.replay import Replay, Workload
from ksim.workload.synthetic import Synthetic

__all__ = ["Fit", "ModelCard", "fits_on", "kv_bytes_per_token", "WorkloadSize", "MANY_REQUESTS", "MANY_TOKENS"]


#: Tensor-parallel sizes that are tried by default.
TENSOR_SIZES = (1, 2, 4, 8, 16, 32, 64)
#: Larger sizes than this are tried only until one fits.
USUAL = 8

#: The memory of each stage's ranks, by what it depends on beside the GPU: shards and the size of a step.
MemoryByShards = dict[tuple[tuple[Shard, ...], int | None, int | None, str], list[Memory]]


@frozen
class ModelCard:
    """What `ksim model` shows; `settings` are complete but for those that depend on the GPU."""

    model: Model
    settings: EngineSettings
    parts: tuple[ModelPart, ...]
    kinds: tuple[AttentionKind, ...]
    fits: tuple["Fit", ...]
    #: Bytes of all slots for LoRA adapters on one GPU that holds the whole model.
    slots: float = 0.0

    @classmethod
    def of(cls, name: str, gpus: Sequence[str], settings: EngineSettings, engine: str,
           tensor_sizes: Sequence[int] = ()) -> "ModelCard":
        """The card of the model called *name* on *gpus*, or on all of the catalogue's, at these *tensor_sizes*.

        Raises KsimError for an unknown model, GPU or release, and for settings that the model cannot have.
        """
        model, version, gpus = model_of(name), engine_of(engine), gpus or catalog.entries("gpus")
        complete = Defaults(settings, version, model, gpu_of(gpus[0])).complete()
        shard = Shard(precision=complete.precision)
        slots = slots_of(_served(model, complete, gpu_of(gpus[0]), system_of(gpus[0])), shard)
        return cls(model, complete, tuple(model.parts(shard)), tuple(model.attention_kinds(shard)),
                   tuple(fits_on(gpus, model, settings, version, tensor_sizes)), slots)

    @cached_property
    def layout(self) -> CacheLayout:
        """How all layers, with those of a drafter, share the KV blocks of a rank among `tensor_parallel_size`."""
        shard = Shard(tensor=self.settings.tensor_parallel_size, precision=self.settings.precision,
                      drafts=self.settings.drafted)
        return CacheLayout.of([cache_layers(self.model, self.settings, shard)], self.settings)

    @cached_property
    def further(self) -> dict[str, Any]:
        """What there is to say of its vision encoder, and of the drafter that the settings ask for."""
        return {key: value for feature in features_of(self.model, self.settings)
                for key, value in feature.card(self.model, self.settings).items()}

    @property
    def weights(self) -> float:
        """Bytes of all weights but the vision encoder's, stored once."""
        return sum(part.bytes for part in self.parts)

    @property
    def cache(self) -> float:
        """Bytes of KV cache that a token takes, over all layers."""
        return sum(kind.bytes_per_token for kind in self.kinds)

    @property
    def state(self) -> float:
        """Bytes that a sequence of any length takes beside its KV cache."""
        return sum(kind.bytes_per_sequence for kind in self.kinds)

    def table(self) -> dict[str, Any]:
        """The card as plain keys and values, in bytes and tokens."""
        decoder, precision = self.model.decoder, self.settings.precision
        return {
            "model": self.model.name, "layers": self.model.layers, "max_model_len": self.settings.max_model_len,
            "longest_context": self.model.max_length,
            "parameters": self.model.parameters(), "active_parameters": self.model.active_parameters(),
            "experts": decoder.sizes.get("E", 0), "experts_per_token": decoder.top_k,
            "mtp_modules": len(decoder.mtp), "mtp_parameters": drafters.parameters(self.model),
            "drafter": self.further.get("drafter"),
            "tied_embeddings": decoder.tied, "parts": [asdict(part) for part in self.parts],
            "quantization": self.settings.quantization, "weight_format": str(precision.weights),
            "activation_format": str(precision.activations), "kv_cache_format": str(precision.cache),
            **({"expert_formats": [str(each) for each in precision.experts]} if precision.experts else {}),
            "parts_in_bf16": list(precision.kept), "weight_bytes": self.weights,
            "kv_cache_bytes_per_token": self.cache, "state_bytes_per_sequence": self.state,
            "attention": [asdict(kind) for kind in self.kinds],
            "kv_cache_groups": self.layout.table(), "kv_cache_block_bytes": self.layout.block_bytes[0],
            **({"vision_encoder": self.further["vision_encoder"]} if "vision_encoder" in self.further else {}),
            **({"adapter_slot_bytes": self.slots} if self.slots else {}),
            "fits": [{**asdict(fit), "fits": fit.fits} for fit in self.fits],
        }


def kv_bytes_per_token(name: str, settings: EngineSettings) -> float:
    """Bytes of KV that the GPUs of an engine keep of a token, all together, if no layer forgets any.

    Raises KsimError for an unknown model, and for settings that it cannot have.
    """
    model = model_of(name)
    complete = Defaults(settings, engine_of("vllm-0.33"), model, gpu_of("h100")).complete()
    ranks = complete.tensor_parallel_size
    return ranks * model.cache_per_token(Shard(tensor=ranks, precision=complete.precision))


@frozen
class Fit:
    """A model on `tensor` GPUs, and `why` it does not fit there, if it does not.

    `weights` are the bytes on the GPU that has most of them, `tokens` the room of the KV cache, and `sequences` how
    many sequences of `length` tokens that is.
    """

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


def fits_on(gpus: Sequence[str], model: Model, settings: EngineSettings, version: EngineVersion,
            tensor_sizes: Sequence[int] = ()) -> Iterator[Fit]:
    """How *model* fits each of *gpus* with *settings*, at *tensor_sizes* or by default at those of the GPU's system.

    A default size that does not divide the model is left out.  Raises KsimError for an unknown GPU.
    """
    known: MemoryByShards = {}
    for name in gpus:
        gpu, system, some_fit = gpu_of(name), system_of(name), False
        for tensor in tensor_sizes or [size for size in TENSOR_SIZES if size <= max(system.gpus, 1)]:
            if not tensor_sizes and tensor > USUAL and some_fit:
                break
            fit = _fit(model, name, gpu, system, evolve(settings, tensor_parallel_size=tensor), version, known)
            some_fit |= fit.fits
            if tensor_sizes or not fit.why.startswith("tensor_parallel_size"):
                yield fit


def _fit(model: Model, name: str, gpu: Gpu, system: System, settings: EngineSettings, version: EngineVersion,
         known: MemoryByShards) -> Fit:
    needed = settings.gpus * settings.data_parallel_size
    failed = Fit(name, settings.tensor_parallel_size, needed)
    if needed > system.gpus:
        return evolve(failed, why=f"{system.name} has {system.gpus} GPU{'s' * (system.gpus > 1)}")
    try:
        serve = Defaults(settings, version, model, gpu).complete()
        peak(gpu, serve.precision.activations)
        ranks = _ranks(_served(model, serve, gpu, system), gpu, serve, known)
    except KsimError as error:
        return evolve(failed, why=str(error))
    assert serve.max_num_seqs and serve.max_model_len, "complete settings have both"
    length, layout = serve.max_model_len, layout_of(ranks, serve)
    blocks = layout.blocks([rank.free for rank in ranks], serve.max_num_seqs) - 1  # the null block is never handed out
    if serve.num_gpu_blocks_override is not None:
        blocks = serve.num_gpu_blocks_override - 1
    tokens, weights = layout.room(max(blocks, 0), length), max(rank.weights for rank in ranks)
    return Fit(
        gpu=name, tensor=serve.tensor_parallel_size, gpus=needed, length=length, weights=weights, tokens=tokens,
        sequences=tokens // length, why=_shortage(ranks, layout, serve.max_num_seqs, tokens, length))


def _served(model: Model, serve: EngineSettings, gpu: Gpu, system: System) -> Model:
    """*model* as an engine with complete settings runs it."""
    for feature in features_of(model, serve):
        model = feature.model(model, serve, gpu, system)
    return model


def _ranks(model: Model, gpu: Gpu, serve: EngineSettings, known: MemoryByShards) -> list[Memory]:
    """The memory of a rank of each stage; only what depends on the GPU is worked out for each."""
    shards = tuple(shards_of(model, serve))
    key = shards, serve.max_num_batched_tokens, serve.max_num_seqs, gpu.architecture
    if key not in known:
        known[key] = [memory(model, shard, gpu, serve) for shard in shards]
    return [evolve(rank, usable=usable(gpu, serve)) for rank in known[key]]


def _shortage(ranks: Sequence[Memory], layout: CacheLayout, sequences: int, tokens: int, length: int) -> str:
    """Why a KV cache of *tokens* tokens is too small for one sequence, or ""."""
    if tokens >= length:
        return ""
    if tokens > 0:
        return f"KV cache has room for {tokens:,} tokens, fewer than max_model_len"
    missing = max(states * sequences - rank.free for rank, states in zip(ranks, layout.set_aside, strict=True))
    largest = max(ranks, key=lambda rank: rank.weights)
    if largest.weights > largest.usable:
        return f"weights exceed the {largest.usable / GIB:.1f} GiB that can be used"
    return f"{max(missing, 0.0) / GIB:.1f} GiB short of weights, activations and {RESERVED / GIB:.1f} GiB for CUDA"


#: How many synthetic requests are sampled for the mean output.
SAMPLE = 1000
#: Bytes that a run in memory takes: in any case, for each request, and for each output token.  Within 3 % of the peaks
#: of runs of 5,000 to 50,000 requests with 50 to 230 output tokens each, all files written (362 MB to 1.75 GB).
BASE, PER_REQUEST, PER_TOKEN = 300e6, 9.4e3, 80.0
#: CPU seconds of the same runs for each request and output token (0.31 ms and 2.5 us on a 2-core cloud machine).
SECONDS_PER_REQUEST, SECONDS_PER_TOKEN = 3e-4, 2.5e-6
#: With more requests or output tokens than these, a run in memory takes 0.8 to 1.6 GB.
MANY_REQUESTS, MANY_TOKENS = 50_000, 10_000_000


@frozen
class WorkloadSize:
    """How many `requests` a workload has, and about how many output `tokens` in all.

    `span` is the time between the first and the last recorded arrival, in seconds; 0 where arrivals are not recorded.
    """

    requests: int
    tokens: int
    span: float = 0.0

    @classmethod
    def of(cls, scenario: Scenario) -> "WorkloadSize":
        """Measure the workload of *scenario*: a trace is read to its end, a synthetic workload is sampled.

        Raises what reading the workload raises.
        """
        workload, seed = scenario.workload, scenario.seed
        sizes = [cls._of_trace(source.replay, seed) for source in workload.sources.values() if source.replay]
        for name, load in ((key.split(".")[-2], load) for key, load in workload.syntheses.items()):
            share = workload.shares.get(name, 1.0) / (sum(workload.shares.values()) or 1.0)
            requests = load.requests(seed, workload.times_of(name, seed))
            sizes.append(cls._of_synthetic(load, workload.common(name), share, requests))
        return cls(sum(size.requests for size in sizes), sum(size.tokens for size in sizes),
                   max(size.span for size in sizes))

    @classmethod
    def _of_synthetic(cls, load: Synthetic, common: tuple[Arrivals, int] | None, share: float,
                      requests: Iterator[Request]) -> "WorkloadSize":
        """The size of a *load* with these *requests*, or of its *share* of *common* arrivals, so many at most."""
        sample = [*islice(requests, SAMPLE)]
        # Sessions arrive, and have several turns.
        arriving = len({request.session or request.id for request in sample})
        arrivals, most = common or (load.arrivals, load.most)
        turns = len(sample) / max(1, arriving)
        count = round(share * min(most, arrivals.expected) * turns if common else min(most, arrivals.expected * turns))
        return cls(count, round(count * sum(request.output for request in sample) / max(1, len(sample))))

    @classmethod
    def _of_trace(cls, replay: Replay, seed: int) -> "WorkloadSize":
        requests = tokens = 0
        last = 0.0
        for request in _as_recorded(replay).requests(seed):
            requests, tokens, last = requests + 1, tokens + request.output, request.arrival
        return cls(requests, tokens, last if replay.rate is None else 0.0)

    @property
    def is_long(self) -> bool:
        """Whether a run should write its rows while it runs."""
        return self.requests > MANY_REQUESTS or self.tokens > MANY_TOKENS

    @property
    def memory(self) -> float:
        """About how many bytes a run in memory takes."""
        return BASE + PER_REQUEST * self.requests + PER_TOKEN * self.tokens

    @property
    def seconds(self) -> float:
        """About how many CPU seconds a run takes; it varies with the load of the engines, and with the machine."""
        return SECONDS_PER_REQUEST * self.requests + SECONDS_PER_TOKEN * self.tokens


def _as_recorded(replay: Replay) -> Workload:
    """*replay* without what needs a further pass over the file and changes no row: spread arrivals, and a rate where
    the file has times."""
    return Workload(evolve(replay, rate=None if replay.clock() else replay.rate, spread=False))

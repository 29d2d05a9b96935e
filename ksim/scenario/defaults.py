"""A deployment: a scenario with every name looked up and every setting that it leaves open filled in.

`Defaults` derives settings as the engine does, each with its source; among them are the batch sizes for which it
captures CUDA graphs.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from math import lcm
from typing import Any

from attrs import evolve, frozen

from ksim.compute.graph import LayerCache
from ksim.compute.model import Model
from ksim.cost.graphs import Graphs
from ksim.cost.pricer import Overlap
from ksim.cost.step import Passes, StepTimer, Timer
from ksim.flow.batch import Batch
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import GIB, DType
from ksim.network.network import Network
from ksim.oracles import peak
from ksim.results.numbers import CostRates
from ksim.scenario.cache_layout import CacheLayout, has_one_table, kept_layers, state_block_tokens
from ksim.scenario.checks import check_gpus, check_quantized, on_gpu, remarks
from ksim.scenario.features import features_of
from ksim.scenario.hardware import (
    beside,
    engine_of,
    fused,
    gpu_of,
    host_of,
    network_of,
    oracle_choice,
    rates_of,
    system_of,
)
from ksim.scenario.models import model_of
from ksim.scenario.routing import routing_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sglang import SglangServer, check_followed, check_scheduler, decode_graphs, lacking
from ksim.scenario.sizing import (
    check_step,
    kv_blocks,
    layout_of,
    limits,
    longest_request,
    memory,
    shards_of,
    utilization,
)
from ksim.specs.hardware import Gpu, System
from ksim.specs.host import Host
from ksim.specs.settings import EngineSettings, EngineVersion
from ksim.specs.sglang import SglangSettings
from ksim.specs.shard import PARTS, QUANTIZATIONS, Routing, Shard

__all__ = ["capture_sizes", "graphs", "Derived", "Defaults", "Deployment"]


def graphs(settings: EngineSettings, prompts: tuple[int, ...] | None = None) -> Graphs:
    """The CUDA graphs that an engine with complete *settings* captures; those of *prompts* may have sizes of their own.

    Full graphs of steps that only decode hold at most `max_num_seqs` sequences, as in vLLM, and whole ones where each
    verifies drafted tokens (v1/worker/gpu/cudagraph_utils.py, 0.33).  FULL means full graphs of any step, as
    FlashAttention 3 has them, whose attention takes any batch in a graph.
    """
    mode, seqs, width = settings.cudagraph_mode, settings.max_num_seqs, 1 + settings.drafted
    assert mode is not None and seqs is not None and settings.cudagraph_capture_sizes is not None, "complete them first"
    sizes = tuple(sorted({*settings.cudagraph_capture_sizes}))
    most = min(seqs * width, max(sizes, default=0))
    decodes = tuple(sorted({rounded for size in sizes if (rounded := -(-size // width) * width) <= most}))
    return Graphs(
        full=decodes if mode.startswith("FULL") else (),
        piecewise=() if not mode.endswith("PIECEWISE") else sizes if prompts is None else prompts,
        mixed=sizes if mode == "FULL" else (),
        eager=settings.enforce_eager, width=width,
    )


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int, largest: int | None = None,
                  width: int = 1, most: int = 512) -> tuple[int, ...]:
    """The batch sizes for which vLLM captures CUDA graphs (config/vllm.py): 1, 2, 4, then by 8 and from 256 by 16.

    The largest is *largest*, or else twice `max_num_seqs` and at most *most*.  `max_num_batched_tokens` bounds them,
    and is a size itself where it does.  Where decodes have *width* tokens, so do as many sequences, if they fit.
    """
    sequences = min(max_num_seqs, most)
    wide = [*_sizes(sequences), sequences] if width > 1 and largest is None else []
    largest = min(largest or min(2 * max_num_seqs * width, most), max_num_batched_tokens)
    bound = {max_num_batched_tokens} if max_num_batched_tokens <= largest else set()
    return tuple(sorted({*_sizes(largest), *(size for number in wide if (size := number * width) <= largest)} | bound))


def _sizes(largest: int) -> list[int]:
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]


#: The largest fused all-reduce in MiB, by architecture and number of GPUs
#: (vllm/compilation/passes/fusion/allreduce_rms_fusion.py; since 0.19, B300 has twice as much among four and eight).
FUSED_MOST = {"hopper": {2: 64.0, 4: 2.0, 8: 0.5}, "blackwell": {2: 64.0, 4: 32.0, 8: 1.0}}


@frozen
class Derived:
    """A setting's value and where it comes from."""

    setting: str
    value: Any
    source: str


@frozen
class Defaults:
    """What *version* fills in for *model* on *gpu* where `settings` leave a value open."""

    settings: EngineSettings
    version: EngineVersion
    model: Model
    gpu: Gpu

    def complete(self) -> EngineSettings:
        """The settings with every value filled in; raises ConfigError for what the engine would refuse."""
        self._check()
        of_sglang = self.version.scheduler == "sglang"
        complete = _with(self.settings if of_sglang else evolve(self.settings, sglang=None), self.explain())
        if of_sglang:
            check_followed(self.settings, complete)
        check_quantized(self.model, complete, self.gpu, self.version)
        return complete

    def explain(self) -> list[Derived]:
        """Every setting that may be left open, with its value and source; `sglang.KEY` are of SGLang's scheduler."""
        if self.version.scheduler == "sglang":
            return self._of_sglang()
        usage, memory = self.settings.usage_context, f"{self.gpu.memory / GIB:.1f} GiB of GPU memory"
        step = self.version.step(usage, self.gpu.name, self.gpu.memory)
        length = self.settings.max_model_len or self.model.max_length
        whole = not self.settings.enable_chunked_prefill and length > step.tokens
        tokens = self.settings.max_num_batched_tokens or (length if whole else step.tokens)
        by_gpu = f"{self.version.name}, {usage}, {memory}"
        rows = [
            *self._formats(),
            self._row("max_model_len", length, f"{self.model.name}: longest context of its config.json"),
            self._row("max_num_batched_tokens", tokens, "max_model_len: without chunked prefill a prompt must fit"
                      if whole else by_gpu),
            self._row("max_num_seqs", min(step.sequences, tokens), by_gpu if step.sequences <= tokens else
                      "max_num_batched_tokens: no more sequences than tokens"),
            self._prefix_caching(),
            self._block_size(),
            *self._graphs(self.settings.max_num_seqs or min(step.sequences, tokens), tokens),
            *self._fused(),
            self._row("scheduler_reserve_full_isl", self.version.scheduler_reserve_full_isl, self.version.name),
        ]
        return [*self._within_cache([*rows, self._utilization(rows)])]

    def _of_sglang(self) -> list[Derived]:
        """The settings of an engine with SGLang's scheduler, and those that follow from them."""
        formats = self._formats()
        server = SglangServer(_with(self.settings, formats), self.version, self.model, self.gpu)
        rows = [*formats, *(Derived(*row) for row in server.rows())]
        return [*rows, *self._decodes(server), *self._fused(),
                self._row("scheduler_reserve_full_isl", self.version.scheduler_reserve_full_isl, self.version.name)]

    def _decodes(self, server: SglangServer) -> list[Derived]:
        """The graphs of an engine of SGLang's: of decodes, by numbers of sequences, but on prefill servers; and of
        prompts."""
        settings, width = self.settings, 1 + self.settings.drafted
        none = settings.enforce_eager or server.role == "prefill"
        usual = ("NONE", "PIECEWISE") if none else ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
        mode = settings.cudagraph_mode or usual[bool(server.prompt_graphs)]
        if settings.enforce_eager and mode != "NONE":
            raise ConfigError("serve.cudagraph_mode", f"{mode} is not possible with enforce_eager; leave one out")
        why = "as set" if settings.cudagraph_mode else "enforce_eager" if settings.enforce_eager else self.version.name
        sizes = settings.cudagraph_capture_sizes or tuple(
            size * width for size in decode_graphs(server.largest_graph, settings.drafted))
        source = "as set" if settings.cudagraph_capture_sizes else f"{self.version.name}: up to" \
            f" {server.largest_graph} sequences"
        return [Derived("cudagraph_mode", mode, why),
                Derived("cudagraph_capture_sizes", () if mode == "NONE" or none else sizes, source)]

    def _within_cache(self, rows: Sequence[Derived]) -> Iterator[Derived]:
        """*rows* with no longer context than the KV cache holds, where the engine starts with less."""
        complete = evolve(self.settings, **{row.setting: row.value for row in rows})
        most = None
        if self.version.starts_with_less_cache and self.settings.max_model_len is None:
            most = longest_request(self.model, self.gpu, complete)
        for row in rows:
            shorter = row.setting == "max_model_len" and most is not None and 1 < most < row.value
            yield Derived(row.setting, most, f"{self.version.name}: what the KV cache holds") if shorter else row

    def _utilization(self, others: Sequence[Derived]) -> Derived:
        """The share of the memory to use, which some engines work out from the *others*."""
        if self.settings.gpu_memory_utilization is not None:
            return self._row("gpu_memory_utilization", None, "")
        complete = evolve(self.settings, **{row.setting: row.value for row in others})
        return Derived("gpu_memory_utilization", *utilization(self.version, self.model, self.gpu, complete))

    def _prefix_caching(self) -> Derived:
        """Whether prompts share what they begin with."""
        shared = self.version.state_prefix_caching or not any(
            layer.sequence_bytes for layer in self._layers())
        return self._row("enable_prefix_caching", shared, self.version.name if shared else
                         f"{self.version.name}: not where layers have states")

    def _layers(self) -> list[LayerCache]:
        """What the layers of one rank keep."""
        formats = {derived.setting: derived.value for derived in self._formats()}
        precision = evolve(self.settings, **formats).precision
        return kept_layers(self.model, Shard(tensor=self.settings.tensor_parallel_size, precision=precision), self.gpu)

    def _block_size(self) -> Derived:
        """The tokens of a block; where layers have states, as many as make room for one."""
        row, layers = self._row("block_size", self.version.block_size, f"{self.version.name}, CUDA"), self._layers()
        if not any(layer.sequence_bytes for layer in layers) or has_one_table(layers, self.settings):
            return row
        size = state_block_tokens(layers, lcm(row.value, 128) if self.model.attends_latently else row.value,
                                  self._prefix_caching().value)
        return row if size == row.value else Derived(row.setting, size, f"{self.version.name}: a block of attention has"
                                                                        " room for a state")

    def _graphs(self, sequences: int, tokens: int) -> list[Derived]:
        """The CUDA graphs of steps of at most so many *sequences* and *tokens*; none with `enforce_eager`."""
        settings, eager = self.settings, self.settings.enforce_eager
        mode = settings.cudagraph_mode or ("NONE" if eager else "FULL_AND_PIECEWISE")
        if eager and mode != "NONE":
            raise ConfigError("serve.cudagraph_mode", f"{mode} is not possible with enforce_eager; leave one out")
        sizes, why = ((), "cudagraph_mode") if mode == "NONE" else self._captured(sequences, tokens)
        rows = [self._row("cudagraph_mode", mode, "enforce_eager" if eager else self.version.name),
                Derived("cudagraph_capture_sizes", sizes, why)]
        if mode != "NONE" and not sizes:
            rows[0] = Derived("cudagraph_mode", "NONE", "cudagraph_capture_sizes: all are above max_num_batched_tokens")
        if settings.max_cudagraph_capture_size is not None and sizes:
            rows.append(Derived("max_cudagraph_capture_size", sizes[-1], "as set; the largest that is captured"))
        return rows

    def _captured(self, sequences: int, tokens: int) -> tuple[tuple[int, ...], str]:
        """The captured sizes, and why these (vllm/config/vllm.py, `_set_cudagraph_sizes`)."""
        settings = self.settings
        given, largest = settings.cudagraph_capture_sizes, settings.max_cudagraph_capture_size
        if given is None:
            width = 1 + settings.drafted
            twice = f"twice max_num_seqs{f' of {width} tokens' if width > 1 else ''}"
            most = self.version.budget(self.gpu.name, self.gpu.memory).graph(settings)
            why = f"{twice}, at most {most} ({self.version.name})" if largest is None else "max_cudagraph_capture_size"
            sizes = capture_sizes(sequences, tokens, largest, width, most)
            exact = self.version.graph_of_max_num_seqs and width == 1 and largest is None and sequences <= sizes[-1]
            return tuple(sorted({*sizes, *([sequences] if exact else [])})), f"{why}; at most max_num_batched_tokens"
        if not given:
            raise ConfigError("serve.cudagraph_capture_sizes", "is empty; name at least one size, leave it out, or set"
                                                               " cudagraph_mode = 'NONE'")
        sizes = tuple(sorted({size for size in given if size <= tokens}))
        if largest not in (None, max(sizes, default=0)):
            raise ConfigError("serve.max_cudagraph_capture_size",
                              f"{largest} is not the largest of cudagraph_capture_sizes, which is"
                              f" {max(sizes, default=0)} within max_num_batched_tokens = {tokens}; leave one out")
        return sizes, "as set" if len(sizes) == len({*given}) else "as set, but for those above max_num_batched_tokens"

    def _fused(self) -> list[Derived]:
        """The largest all-reduce that FlashInfer fuses with the norm after it, if it fuses any."""
        if not self.settings.fuse_allreduce_rms:
            return []
        ranks = self.settings.tensor_parallel_size
        most = FUSED_MOST.get(self.gpu.architecture, {}).get(ranks)
        return [self._row("fi_allreduce_fusion_max_size_mb", most, f"vLLM, {ranks} GPUs of {self.gpu.architecture}")]

    def _formats(self) -> list[Derived]:
        """The quantization, the parts it leaves out, and the KV cache's format: the checkpoint's unless others are set.

        The parts that a checkpoint leaves out are those of its own format only.
        """
        settings, checkpoint = self.settings, self.model.decoder
        config = f"{self.model.name}: config.json"
        asked = {"quantization": settings.quantization, "kv_cache_dtype": settings.kv_cache_dtype}
        name, cache = (Derived(key, getattr(checkpoint, key), config) if value == "auto" else
                       Derived(key, value, "as set") for key, value in asked.items())
        parts, source = checkpoint.unquantized, config
        if QUANTIZATIONS[name.value].weights is not QUANTIZATIONS[checkpoint.quantization].weights:
            parts, source = QUANTIZATIONS[name.value].kept, f"usual for {name.value}"
        if (served := on_gpu(name.value, self.gpu, self.version)) != name.value:
            name = Derived("quantization", served, f"{name.value} ({name.source}), which {self.gpu.name} does not"
                                                   f" multiply in: {self.version.name}, Marlin")
        row = self._row("unquantized", parts, source)
        own = {getattr(op, "part", "").removesuffix("_inputs") for layer in checkpoint.layers for op in layer
               if getattr(op, "quantized", False)}
        if QUANTIZATIONS[name.value].weights is not DType.BF16 and own <= {*row.value}:
            raise ConfigError("serve.quantization",
                              f"{name.value} leaves {self.model.name} as it is: it does not quantize"
                              f" {', '.join(part for part in PARTS if part in own)}, and there is nothing else; leave"
                              f" it out, or choose one that does, such as 'fp8'")
        return [name, row, cache]

    def _row(self, setting: str, value: Any, source: str) -> Derived:
        given = getattr(self.settings, setting)
        return Derived(setting, value, source) if given is None else Derived(setting, given, "as set")

    def _check(self) -> None:
        if self.settings.sglang is not None or self.version.scheduler != "vllm":
            check_scheduler(self.settings, self.version)
        length, longest = self.settings.max_model_len, self.model.max_length
        if length is not None and length > longest:
            raise ConfigError("serve.max_model_len", f"{length} is more than the {longest} tokens of {self.model.name}")
        for setting in ("enable_eplb", "enable_expert_parallel"):
            if getattr(self.settings, setting) and not self.model.decoder.top_k:
                raise ConfigError(f"serve.{setting}", f"{self.model.name} has no experts, and {self.version.name}"
                                                      " refuses to start without any; leave it out")
        if (stages := self.settings.pipeline_parallel_size) > self.model.layers:
            raise ConfigError("serve.pipeline_parallel_size", f"{stages} stages are more than the {self.model.layers}"
                                                              f" layers of {self.model.name}")
        self._check_blocks()
        self._check_known()

    def _check_blocks(self) -> None:
        size, multiple = self.settings.block_size, self.version.block_multiple
        if size is not None and size % multiple:
            raise ConfigError("serve.block_size", f"{size} is no multiple of {multiple}, and {self.version.name} has no"
                                                  f" attention kernel for it; set {multiple}, {2 * multiple} or"
                                                  f" {4 * multiple}")

    def _check_known(self) -> None:
        plain = EngineSettings()
        for setting in self.version.unknown_settings:
            if getattr(self.settings, setting) != getattr(plain, setting):
                raise ConfigError(f"serve.{setting}", f"{self.version.name} has no such setting")


def _with(settings: EngineSettings, rows: Sequence[Derived]) -> EngineSettings:
    """*settings* with the values of *rows*."""
    own = {row.setting.removeprefix("sglang."): row.value for row in rows if row.setting.startswith("sglang.")}
    values = {row.setting: row.value for row in rows if not row.setting.startswith("sglang.")}
    if own:
        values["sglang"] = evolve(settings.sglang or SglangSettings(), **own)
    return evolve(settings, **values)


@frozen
class Deployment:
    """What the engines of a scenario have in common.

    `scenario` has every setting filled in.  Where it `skips`, an engine may compute several steps ahead of the clock;
    the results are the same.  `features` are what the engines have beside plain ones (`ksim.scenario.features`).
    """

    scenario: Scenario
    model: Model
    gpu: Gpu
    system: System
    network: Network
    oracle: Any
    host: Host
    version: EngineVersion
    routing: Routing = Routing()
    rates: CostRates = CostRates()
    skips: bool = True
    features: tuple[Any, ...] = ()

    @classmethod
    def of(cls, scenario: Scenario) -> "Deployment":
        """Look up all that *scenario* names and derive the settings that it leaves open.

        No request of its workload is read.  Raises KsimError for a scenario that cannot be deployed.
        """
        model = model_of(scenario.model, scenario.serve.hf_overrides)
        system = system_of(scenario.gpu, scenario.system, scenario.nodes)
        gpu = gpu_of(scenario.gpu or system.gpu)
        gpu = evolve(gpu, power=gpu.power.with_data(scenario.power.data))
        version = engine_of(scenario.engine)
        features, serve = features_of(model, scenario.serve, scenario), scenario.serve
        for feature in features:
            serve = feature.settings(serve)
        serve = Defaults(serve, version, model, gpu).complete()
        check_gpus(serve, system)
        for feature in features:
            model = feature.model(model, serve, gpu, system)
            feature.check(model, serve, scenario.workload)
        network = network_of(system, (*fused(serve), *map(Choice, scenario.collectives)), gpu)
        oracle = oracle_choice(scenario.oracle, system.gpu)
        named = evolve(scenario.gpu, name=system.gpu) if isinstance(scenario.gpu, Choice) else system.gpu
        resolved = evolve(scenario, gpu=named, system=scenario.system or beside(gpu.system, system.gpu) or None,
                          serve=serve, oracle=oracle)
        priced = _prices(plugin("oracles", oracle), version, scenario.kernel_errors, network)
        return cls(
            scenario=resolved, model=model, gpu=gpu, system=system, network=network, oracle=priced,
            host=host_of(scenario.host), version=version, routing=routing_of(scenario.routing, model),
            rates=rates_of(scenario.energy, system), features=tuple(features))

    @property
    def serve(self) -> EngineSettings:
        """The engine's settings, complete."""
        return self.scenario.serve

    def explain(self, serve: EngineSettings) -> list[Derived]:
        """What it has filled in of the settings *serve* of its scenario, which do not say what its pool does."""
        asked = evolve(serve, kv_transfer_config=self.serve.kv_transfer_config)
        return Defaults(asked, self.version, self.model, self.gpu).explain()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What users should know of the GPU, and of what is priced without measurements."""
        return remarks(self)

    @property
    def shards(self) -> list[Shard]:
        """One rank's share of the model in each pipeline stage."""
        return shards_of(self.model, self.serve, self.routing)

    @property
    def kv_blocks(self) -> int:
        """How many KV blocks each rank has; raises DoesNotFit where there are too few."""
        return kv_blocks(self.model, self.shards, self.gpu, self.serve, self.system)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the KV cache; SGLang's cache has pages of one token where vLLM's scheduler uses it."""
        assert self.serve.block_size is not None, "settings are derived before engines are built"
        of_tokens = self.serve.prefix_cache == "sglang" and self.approximated
        return 1 if of_tokens else self.serve.block_size

    @cached_property
    def approximated(self) -> tuple[str, ...]:
        """Why vLLM's scheduler makes the schedules of this engine; () for one that has SGLang's."""
        return lacking(self.model, self.serve) if self.version.scheduler == "sglang" else ("another scheduler",)

    @cached_property
    def layout(self) -> CacheLayout:
        """How the layers of all stages share the KV blocks."""
        return layout_of([memory(self.model, shard, self.gpu, self.serve) for shard in self.shards], self.serve)

    def check_memory(self) -> None:
        """Raise DoesNotFit where the weights and the KV cache of one whole sequence do not fit into memory."""
        _ = self.kv_blocks

    def check_plain(self) -> None:
        """Raise the KsimError that building an engine of plain settings would: for memory, limits, formats."""
        _ = self.kv_blocks, self.layout
        limits(self.serve, self.version)
        peak(self.gpu, self.serve.precision.activations)

    def check_step(self, batch: Batch) -> None:
        """Raise DoesNotFit where a GPU cannot hold its weights and the KV cache of *batch*'s sequences."""
        check_step(self.model, self.shards, self.gpu, self.serve, self.system, batch)

    def groups(self, stage: int, first: int, firsts: Sequence[int] = ()) -> dict[str, tuple[int, ...]]:
        """The GPUs of each rank group of a pipeline stage.

        *first* is the first GPU of its engine; *firsts* are those of all engines of the data-parallel group, which by
        default lie one after the other from GPU 0 on.
        """
        serve = self.serve
        width = serve.tensor_parallel_size
        start = first + stage * width
        begins = firsts or range(0, serve.gpus * serve.data_parallel_size, serve.gpus)
        replicas = tuple(gpu + stage * width for gpu in begins)
        return {"tensor": tuple(range(start, start + width)), "pipeline": (start, start + width), "data": replicas,
                "expert": tuple(gpu + rank for gpu in replicas for rank in range(width))}

    def patterns(self, groups: Mapping[str, Sequence[int]]) -> Hashable:
        """What decides how long collectives of *groups* take: () for an engine that has none."""
        if self.serve.gpus == 1 and self.shards[0].data == 1:
            return ()
        return tuple((name, self.network.pattern(ranks)) for name, ranks in sorted(groups.items())
                     if name != "pipeline" or self.serve.pipeline_parallel_size > 1)

    def timers(self, first: int = 0, firsts: Sequence[int] = ()) -> list[Timer]:
        """A step timer for each pipeline stage of the engine whose first GPU is *first*; *firsts* are as of `groups`.
        """
        serve = self.serve
        server = SglangServer(serve, self.version, self.model, self.gpu) if self.version.prefill_graphs else None
        captured = graphs(serve, None if server is None else server.prompt_graphs)
        overlap = Overlap(serve.overlap_stages, serve.overlap_sms) if serve.overlap_stages > 1 else None
        timers = [StepTimer(
            model=self.model, shard=shard, gpu=self.gpu, oracle=self.oracle, network=self.network,
            groups=self.groups(stage, first, firsts), graphs=captured, host=self.host, overlap=overlap,
            average=self.scenario.detail == "rank", single_batch=serve.enable_single_batch_overlap,
            dual_stream=self.version.dual_stream if self.model.keeps_latents else 0)
                  for stage, shard in enumerate(self.shards)]
        for timer in timers[1:]:
            timers[0].share_with(timer)
        for feature in self.features:
            timers = [feature.timer(timer, serve) for timer in timers]
        further = [[one for feature in self.features for one in feature.passes(timer, serve)] for timer in timers]
        return [Passes(timer, passes) if passes else timer for timer, passes in zip(timers, further, strict=True)]


def _prices(oracle: Any, version: EngineVersion, errors: int | None, network: Network) -> Any:
    """*oracle* with its times scaled to the kernels that *version* launches, and with the draw *errors* of its errors,
    which *network* has, too."""
    if not version.paces and not version.ceilings and errors is None:
        return oracle
    from ksim.oracles.efficiency.drawn import DrawnOracle, ScaledOracle, deviation  # vLLM's usual prices need none

    if version.paces or version.ceilings:
        oracle = ScaledOracle(oracle, version.paces, version.ceilings)
    if errors is not None:
        oracle, network.deviation = DrawnOracle(oracle, errors), deviation(errors, "collectives")
    return oracle

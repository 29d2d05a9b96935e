"""The candidates of a plan: every deployment of a model that some engine serves on the GPUs that may be had.

A `Family` has engines whose steps have the same prices; its variants differ by the limits of a step alone.  What does
not fit, or no engine serves, is left out, and the reason is counted.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import combinations as combined
from itertools import product
from typing import Any

from attrs import evolve, field, fields, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import DoesNotFit, KsimError, UnknownName
from ksim.foundation.units import DType
from ksim.results.numbers import CostRates
from ksim.scenario.defaults import Defaults, Deployment
from ksim.scenario.hardware import engine_of, gpu_of, system_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.specs.hardware import Gpu
from ksim.specs.sglang import SglangSettings
from ksim.specs.shard import QUANTIZATIONS, WEIGHT_ONLY
from ksim.study.experiment import scenario_at
from ksim.study.grid import Settings, SettingValues, combinations

#: Formats that vLLM makes of a BF16 checkpoint as it loads it (`--quantization fp8`).
_ONLINE = ("fp8",)
#: Public checkpoints in other formats, by model, as of November 2026 on huggingface.co.
CHECKPOINTS: Mapping[str, Mapping[str, str]] = {
    "llama-3.1-8b": {"nvfp4": "nvidia/Llama-3.1-8B-Instruct-FP4"},
    "llama-3.3-70b": {"nvfp4": "nvidia/Llama-3.3-70B-Instruct-FP4"},
    "llama-3.1-405b": {"nvfp4": "nvidia/Llama-3.1-405B-Instruct-FP4"},
    "deepseek-v3": {"nvfp4": "nvidia/DeepSeek-V3-0324-FP4"},
    "deepseek-r1": {"nvfp4": "nvidia/DeepSeek-R1-FP4"},
    "qwen3-8b": {"nvfp4": "nvidia/Qwen3-8B-FP4"},
    "qwen3-14b": {"nvfp4": "nvidia/Qwen3-14B-FP4"},
    "qwen3-32b": {"awq": "Qwen/Qwen3-32B-AWQ"},
    "qwen3-30b-a3b": {"nvfp4": "nvidia/Qwen3-30B-A3B-FP4"},
    "qwen3-235b-a22b": {"nvfp4": "nvidia/Qwen3-235B-A22B-FP4"},
}
#: Drafters of public checkpoints, by model, of which it is known how many drafts are accepted.  DeepSeek-V3 in SGLang
#: gets 2.18 tokens of a step with two drafts (LMSYS, July 2025, Accelerating SGLang with Multiple Token Prediction);
#: how both share 1.18 is assumed.
DRAFTERS: Mapping[str, Mapping[str, Any]] = {
    "deepseek-v3": {"method": "mtp", "num_speculative_tokens": 2,
                    "acceptance": {"name": "by_position", "rates_by_position": [0.75, 0.43]}}}
#: By scheduler, the limits of a step, and what is tried of them beside the engine's own: of tokens, of sequences.
_LIMITS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "vllm": {"serve.max_num_batched_tokens": (2048, 4096, 8192, 16384), "serve.max_num_seqs": (128, 256)},
    "sglang": {"serve.sglang.chunked_prefill_size": (2048, 4096, 8192, 16384),
               "serve.sglang.max_running_requests": (128, 256)}}
#: The keys of all of them.
LIMITS = tuple(key for limits in _LIMITS.values() for key in limits)
_FORMAT, CACHE, _ENGINE = "serve.quantization", "serve.kv_cache_dtype", "engine"
DRAFTER, ROUTER = "serve.speculative_config", "router"
_TENSOR, _STAGES, _DATA, _EXPERTS = (f"serve.{name}" for name in (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"))
_WAYS = (_TENSOR, _STAGES, _DATA, _EXPERTS)
#: The most GPUs of an engine inside a node, and the most nodes of its pipeline stages.
_WIDEST, _DEEPEST = 8, 4


@frozen
class GpuKind:
    """GPUs that may be had: their name in the catalogue, and how many there are at most, None for any number."""

    name: str
    most: int | None = None


@frozen(eq=False)
class EngineFamily:
    """Engines on GPUs of one `kind` that differ by the limits of a step alone: `variants` are their deployments.

    `shared` are the settings that they share, by dotted key, and `own` those of each variant.
    """

    kind: GpuKind
    shared: Settings
    own: tuple[Settings, ...]
    variants: tuple[Deployment, ...] = field(repr=False)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        serve = self.variants[0].serve
        return serve.gpus * serve.data_parallel_size

    @property
    def rates(self) -> CostRates:
        """What a joule and a GPU-second cost."""
        return self.variants[0].rates

    @property
    def single(self) -> bool:
        """Whether a replica is one engine without stages: such engines may prefill and decode apart."""
        serve = self.variants[0].serve
        return serve.data_parallel_size == 1 and serve.pipeline_parallel_size == 1


@frozen(eq=False)
class Candidates:
    """The families that can be deployed, and how often each reason left something out."""

    families: tuple[EngineFamily, ...]
    left_out: Mapping[str, int]

    @cached_property
    def count(self) -> int:
        """How many deployments there are in all: each variant, and each two families that serve apart."""
        single = [family for family in self.families if family.single]
        pairs = sum(apart(prefill, decode) for prefill in single for decode in single)
        mixed = sum(mixes(one, other) for one, other in combined(self.families, 2))
        return pairs + mixed + sum(len(family.variants) for family in self.families)


#: The settings that a prefill engine and a decode engine may have of their own.
OWN = (_TENSOR,)


def apart(prefill: EngineFamily, decode: EngineFamily) -> bool:
    """Whether engines of one family may prefill for those of the other: all but the GPUs and the tensor parallelism is
    the same, blocks of KV as well."""
    blocks = {family.variants[0].block_tokens for family in (prefill, decode)}
    return _rest(prefill, OWN) == _rest(decode, OWN) and len(blocks) == 1


def mixes(one: EngineFamily, other: EngineFamily) -> bool:
    """Whether engines of two families may serve side by side: on two kinds of GPUs, each shared in its own way."""
    return (one.kind != other.kind and ROUTER not in {**one.shared, **other.shared}
            and _rest(one, (*_WAYS, *LIMITS)) == _rest(other, (*_WAYS, *LIMITS)))


def _rest(family: EngineFamily, own: Sequence[str]) -> Settings:
    return {key: value for key, value in family.shared.items() if key not in (*own, "gpu", "nodes")}


def candidates(scenario: Scenario, kinds: Sequence[GpuKind], over: Sequence[SettingValues] = ()) -> Candidates:
    """All families of *scenario*'s model on *kinds* of GPUs; values of *over* stand in place of those tried for a key.

    What the scenario itself sets stays.  Raises UnknownName for an unknown name, and KsimError where nothing can be
    deployed.
    """
    families, left_out, networks = list[EngineFamily](), Counter[str](), dict[Hashable, Deployment]()
    refused: KsimError | None = None
    for kind in kinds:
        for settings in _shared(scenario, kind, over):
            if _needless(settings, families):
                continue
            try:
                families.append(_family(scenario, kind, settings, over, networks))
            except UnknownName:
                raise
            except DoesNotFit:
                left_out["does not fit into the memory"] += 1
            except KsimError as error:
                left_out[_short(error)] += 1
                refused = error
    if not families:
        if refused is not None and len(left_out) == 1:
            raise refused
        reasons = "; ".join(f"{reason} ({count} times)" for reason, count in left_out.most_common(3))
        raise KsimError(f"no candidate can be deployed: {reasons or 'there are too few GPUs'}; name other GPUs with"
                        " --gpu, or more of them")
    return Candidates(tuple(families), dict(left_out.most_common()))


def drafting(scenario: Scenario, families: Sequence[EngineFamily], over: Sequence[SettingValues] = ()
             ) -> Iterator[tuple[EngineFamily, EngineFamily]]:
    """Each of *families*, and the same engines with the drafter that is known of the model: those that there can be."""
    config = DRAFTERS.get(scenario.model)
    if config is None or scenario.serve.speculative_config is not None or DRAFTER in values_of(over):
        return
    for family in families:
        with suppress(DoesNotFit):
            yield family, _family(scenario, family.kind, {**family.shared, DRAFTER: config}, over, {})


def routed(family: EngineFamily, router: str) -> EngineFamily:
    """*family* behind this *router*."""
    return evolve(family, shared={**family.shared, ROUTER: router})


def _needless(settings: Settings, families: Sequence[EngineFamily]) -> bool:
    """Whether *settings* have pipeline stages where one of *families* with the same formats does with fewer."""
    def rest(some: Settings) -> Settings:
        return {key: value for key, value in some.items() if key not in (*_WAYS, "nodes")}

    stages = settings.get(_STAGES, 1)
    return stages > 1 and any(one.shared.get(_STAGES, 1) < stages and rest(one.shared) == rest(settings)
                              for one in families)


def _short(error: KsimError) -> str:
    """The first clause of *error*, which is alike for alike reasons."""
    return re.split(r"[;:,]|, | but ", str(error).partition(": ")[2] or str(error))[0]


def _shared(scenario: Scenario, kind: GpuKind, over: Sequence[SettingValues]) -> Iterator[Settings]:
    """The settings of each family: formats, how GPUs share the model, and what *over* names besides."""
    model, gpu, named = model_of(scenario.model, scenario.serve.hf_overrides), gpu_of(kind.name), values_of(over)
    axes = {_ENGINE: engines(scenario), _FORMAT: _formats(scenario, gpu), CACHE: _caches(scenario, gpu),
            **{key: values for key, values in named.items() if key not in (*LIMITS, *_WAYS)}}
    node = system_of(kind.name, None, None).gpus_per_node
    for way in _ways(node, bool(model.decoder.top_k)):
        gpus = way.get(_TENSOR, 1) * way.get(_STAGES, 1) * way.get(_DATA, 1)
        if ((kind.most is not None and gpus > kind.most)
                or any(way.get(key, 1) not in values for key, values in named.items() if key in _WAYS)):
            continue
        nodes = {"nodes": -(-gpus // node)} if gpus > node else {}
        for settings in combinations([SettingValues(*axis) for axis in axes.items()]):
            yield {"gpu": kind.name, **nodes, **way, **settings}


def values_of(over: Sequence[SettingValues]) -> dict[str, tuple[Any, ...]]:
    """The values of each key of *over*."""
    return {axis.key: axis.values for axis in over}


def engines(scenario: Scenario) -> tuple[str, ...]:
    """The engine that *scenario* names, if it is not the usual one; else the newest release of each engine whose own
    scheduler ksim has."""
    if scenario.engine != fields(Scenario).engine.default:
        return (scenario.engine,)
    newest = dict[str, tuple[int, ...]]()
    for match in map(_RELEASE.fullmatch, catalog.entries("engines")):
        if match is not None:
            number = tuple(map(int, match["number"].split(".")))
            newest[match["engine"]] = max(number, newest.get(match["engine"], ()))
    names = (f"{engine}-{'.'.join(map(str, number))}" for engine, number in sorted(newest.items(), reverse=True))
    return tuple(name for name in names if name.startswith(f"{engine_of(name).scheduler}-"))


_RELEASE = re.compile(r"(?P<engine>[a-z]+)-(?P<number>\d+(\.\d+)*)")


def _formats(scenario: Scenario, gpu: Gpu) -> tuple[str, ...]:
    """The quantizations that there are of the model: its checkpoint's, what the engine makes of it, public ones."""
    own = scenario.serve.quantization
    checkpoint = model_of(scenario.model, scenario.serve.hf_overrides).decoder.quantization
    if own != "auto" or QUANTIZATIONS[checkpoint].weights is not DType.BF16:
        return (own,)
    others = (*_ONLINE, *CHECKPOINTS.get(scenario.model, {}))
    return (own, *(name for name in others if WEIGHT_ONLY.get(name, (name, DType.BF16))[1] in gpu.flops))


def _caches(scenario: Scenario, gpu: Gpu) -> tuple[str, ...]:
    own = scenario.serve.kv_cache_dtype
    return (own,) if own != "auto" or DType.FP8 not in gpu.flops else (own, "fp8")


def _ways(node: int, experts: bool) -> Iterator[Settings]:
    """How GPUs may share a model: tensor parallelism inside a node of so many GPUs, pipeline stages of whole nodes, and
    of a mixture of experts data-parallel attention with all experts apart."""
    widths = [width for width in (1, 2, 4, 8) if width <= min(node, _WIDEST)]
    yield from ({_TENSOR: width} for width in widths)
    yield from ({_TENSOR: widths[-1], _STAGES: stages} for stages in range(2, _DEEPEST + 1, 2))
    if experts:
        yield from ({_TENSOR: width, _EXPERTS: True} for width in widths[1:])
        yield from ({_TENSOR: width, _DATA: widths[-1] // width, _EXPERTS: True} for width in widths[:-1])


def _family(scenario: Scenario, kind: GpuKind, shared: Settings, over: Sequence[SettingValues],
            networks: dict[Hashable, Deployment]) -> EngineFamily:
    """The family with *shared* settings; raises KsimError where none of its variants can be deployed.

    Families on the same links share the network of one of *networks*, with its prices of collectives.
    """
    asked = scenario_at(scenario, shared)
    first = Deployment.of(asked)
    alike = (first.system, *first.network.algorithms)
    first = evolve(first, network=networks.setdefault(alike, first).network)
    first.check_plain()
    limits = _limits(asked, first, values_of(over))
    own = [dict(zip(limits, values, strict=True)) for values in product(*limits.values())]
    tokens, sequences = limits
    own = [one for one in own if one[sequences] <= one[tokens] or first.version.scheduler == "sglang"]
    usual = {key: _value(first, key) for key in limits}
    said = [{key: value for key, value in one.items() if value != usual[key]} for one in own]
    return EngineFamily(kind, shared, tuple(said), tuple(_variant(asked, first, one) for one in said))


def _limits(asked: Scenario, first: Deployment, named: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The limits of a step that are tried; those of the engine's own choice come first, and are not written down."""
    own, tried = _LIMITS[first.version.scheduler], dict[str, tuple[Any, ...]]()
    ranks = first.serve.data_parallel_size if first.version.scheduler == "sglang" else 1
    for (key, values), plain in zip(own.items(), _LIMITS["vllm"], strict=True):
        usual = _value(first, key)
        others = named.get(key) or tuple(ranks * value for value in named.get(plain, ()))
        open_ = getattr(asked.serve.sglang or SglangSettings(), key.rpartition(".")[2]) is None if key != plain else (
            getattr(asked.serve, key.rpartition(".")[2]) is None)
        tried[key] = others or ((usual, *(value for value in values if value != usual)) if open_ else (usual,))
    return tried


def _value(deployment: Deployment, key: str) -> Any:
    """The value of one of `LIMITS` that *deployment* has."""
    *_, part, name = key.split(".")
    return getattr(deployment.serve.sglang if part == "sglang" else deployment.serve, name)


def _variant(asked: Scenario, first: Deployment, own: Settings) -> Deployment:
    """*first*, of the scenario that was *asked* for, with limits of its *own*, and what follows from them."""
    if not own:
        return first
    changes = {key.rpartition(".")[2]: value for key, value in own.items()}
    if first.version.scheduler == "sglang":
        serve = evolve(asked.serve, sglang=evolve(asked.serve.sglang or SglangSettings(), **changes),
                       kv_transfer_config=first.serve.kv_transfer_config)
        serve = Defaults(serve, first.version, first.model, first.gpu).complete()
    else:
        serve = evolve(first.serve, **changes)
    return evolve(first, scenario=evolve(first.scenario, serve=serve))

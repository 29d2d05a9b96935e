"""The features that a deployment may have beside a plain engine, such as LoRA adapters, and what each adds to it.

A feature is a module of `ksim.features`, which is imported where its condition in `WANTED` holds and nowhere else: a
run pays nothing for what it does not use.  This contract is what a feature adds to a deployment;
`ksim.simulation.features` has what it adds to engines and fleets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from ksim.compute.graph import LayerCache
from ksim.compute.model import Model
from ksim.cost.step import Pass, StepTimer
from ksim.foundation import catalog
from ksim.scenario.cache_layout import Memory
from ksim.scenario.scenario import Scenario
from ksim.specs.hardware import Gpu, RankSettings, System
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Shard
from ksim.workload.replay import Workload

__all__ = ["WANTED", "Feature", "cache_layers", "draws_experts", "features_of", "load_feature"]


class Feature:
    """What a feature adds to a deployment; a method that it does not define adds nothing."""

    def settings(self, serve: EngineSettings) -> EngineSettings:
        """*serve* as the engine's arguments are understood, before defaults are filled in."""
        return serve

    def check(self, model: Model, serve: EngineSettings, workload: Workload) -> None:
        """Raise KsimError for complete settings, or a load, that the engine would refuse."""

    def model(self, model: Model, serve: EngineSettings, gpu: Gpu, system: System) -> Model:
        """*model* as the engine runs it."""
        return model

    def memory(self, rank: Memory, model: Model, shard: Shard, serve: EngineSettings) -> Memory:
        """The memory of a *rank*, which has *shard* of the model."""
        return rank

    def layers(self, model: Model, serve: EngineSettings, shard: Shard) -> Sequence[LayerCache]:
        """What each further layer on a rank keeps of a sequence."""
        return ()

    def timer(self, timer: StepTimer, serve: EngineSettings) -> StepTimer:
        """What prices the target's pass in place of *timer*, which is that of a pipeline stage."""
        return timer

    def passes(self, timer: StepTimer, serve: EngineSettings) -> Sequence[Pass]:
        """What runs beside the pass of *timer*, which is that of a pipeline stage."""
        return ()

    def unmeasured(self, workload: Workload) -> Sequence[str]:
        """Kernels of its own that are priced by physics alone, since no measurement of them ships."""
        return ()

    def remarks(self, model: Model, serve: EngineSettings) -> Iterator[str]:
        """What users of a run should know of it."""
        yield from ()

    def card(self, model: Model, serve: EngineSettings) -> Mapping[str, Any]:
        """What `ksim model` shows of it, as keys and values."""
        return {}


def _takes_images(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    """Whether the model has a vision encoder, or the settings are about one."""
    encoder = model.decoder.encoder
    return (encoder is not None and encoder.images is not None) or any((
        serve.limit_mm_per_prompt, serve.mm_processor_kwargs, serve.disable_chunked_mm_input,
        serve.language_model_only))


def _speculates(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    return serve.speculative_config is not None


def _has_adapters(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    return serve.enable_lora or (scenario is not None and any(
        load.adapters is not None for load in scenario.workload.syntheses.values()))


def _cuts_steps(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    return serve.enable_dbo


def _offloads_weights(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    return serve.cpu_offload_gb > 0


def _moves_kv(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    return any(value is not None for value in (serve.kv_transfer_config, serve.kv_offloading_size,
                                               serve.kv_offloading_backend))


def _samples(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    """Whether a synthetic load asks for beams, or for log-probabilities of prompts."""
    return scenario is not None and any(load.beam_width or load.prompt_logprobs is not None
                                        for load in scenario.workload.syntheses.values())


def _sets_power(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    return scenario is not None and bool(scenario.power)


def _gates(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    """Whether somebody may hold requests back, or refuse them, before an engine has them."""
    if scenario is None:
        return False
    folder, router = ("cluster.pair_routers", scenario.pair_router) if scenario.pair_router else (
        "cluster.routers", scenario.router)
    return (scenario.flow_control is not None or hasattr(catalog.find(folder, router.name), "refusal")
            or _scales(model, serve, scenario))


def _scales(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    """Whether replicas start and go; *scenario* is that of one pool."""
    return scenario is not None and (scenario.autoscaler is not None
                                     or scenario.lifecycle.rolling_update.at is not None or bool(scenario.drains))


def draws_experts(model: Model, serve: EngineSettings, ranks: RankSettings) -> bool:
    """Whether the rows of experts are drawn, as several groups of GPUs hold whole ones."""
    groups = serve.expert_parallel_size or serve.tensor_parallel_size * serve.data_parallel_size
    return bool(model.decoder.top_k) and ranks.experts == "drawn" and serve.enable_expert_parallel and groups > 1


def _has_unlike_ranks(model: Model, serve: EngineSettings, scenario: Scenario | None) -> bool:
    """Whether GPUs of an engine may differ, or meet those of other engines within a step."""
    if scenario is None or scenario.detail == "step":
        return False
    shared = bool(model.decoder.top_k) and serve.data_parallel_size > 1
    return scenario.ranks.differ or shared or draws_experts(model, serve, scenario.ranks)


#: What asks for each feature, by its module, in the order in which features apply.
WANTED: Mapping[str, Callable[[Model, EngineSettings, Scenario | None], bool]] = {
    "images": _takes_images, "drafts": _speculates, "adapters": _has_adapters, "dbo": _cuts_steps,
    "weights": _offloads_weights, "connectors": _moves_kv, "sampling": _samples, "power": _sets_power,
    "gateway": _gates, "autoscaling": _scales, "ranks": _has_unlike_ranks,
}


def load_feature(name: str) -> Any:
    """The feature of that *name*, imported if it was not."""
    return import_module(f"ksim.features.{name}").FEATURE


def features_of(model: Model, serve: EngineSettings, scenario: Scenario | None = None) -> list[Any]:
    """The features of an engine of *model* with these settings, and of the *scenario* around it where that is given."""
    return [load_feature(name) for name, wanted in WANTED.items() if wanted(model, serve, scenario)]


def cache_layers(model: Model, serve: EngineSettings, shard: Shard) -> list[LayerCache]:
    """What each layer on one rank keeps of a sequence: those of its stage of *model*, and those that features add."""
    return [*model.cache_by_layer(shard), *(layer for each in features_of(model, serve)
                                            for layer in each.layers(model, serve, shard))]

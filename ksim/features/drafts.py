"""Speculative decoding: the drafter that an engine's settings describe, its memory, its schedules and its passes.

A drafter has GPUs that share it, and takes memory there.  Its passes come after the target's, which check what it
proposed before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from ksim.compute import drafters
from ksim.compute.drafters import Drafter, eagle, eagle3, ngrams, verification
from ksim.compute.graph import LayerCache
from ksim.compute.model import Config, Decoder, FurtherModel, Model
from ksim.cost.graphs import Graphs
from ksim.cost.step import Pass, StepTimer
from ksim.features.sampling import rows
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.cache_layout import Memory
from ksim.scenario.defaults import Deployment
from ksim.scenario.models import model_of
from ksim.scenario.sizing import activations
from ksim.scheduling.acceptances import DrawnSpeculation
from ksim.scheduling.draft_scheduler import drafting
from ksim.scheduling.scheduler import Rules
from ksim.simulation.features import WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.configs import SpeculativeConfig
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import CACHE_DTYPES, QUANTIZATIONS, WEIGHT_ONLY, Precision, Shard
from ksim.workload.replay import Workload

__all__ = ["FEATURE", "drafter_of", "drafter_shard", "speculation_of"]


KEY = "serve.speculative_config"


def drafter_of(model: Model, settings: EngineSettings) -> Drafter | None:
    """The drafter of a target *model*; None without speculation, and for n-grams, which no model looks up.

    Raises UnknownName, DataError or ConfigError.
    """
    config = settings.speculative_config
    if config is None or config.method is None or config.method == "ngram":
        return None
    return _METHODS[config.method](model, config)


def drafter_shard(drafter: Drafter, settings: EngineSettings, shard: Shard) -> Shard:
    """One rank's share of *drafter*, on the GPUs of *shard*: the last stage's.

    Heads run on as many GPUs as their target, as in vLLM; a draft model may be whole on each.
    """
    config, tensor = settings.speculative_config, shard.tensor
    assert config is not None, "a drafter is asked for"
    if (asked := config.draft_tensor_parallel_size) not in (None, 1, settings.tensor_parallel_size):
        raise ConfigError(f"{KEY}.draft_tensor_parallel_size",
                          f"{asked} is neither 1 nor tensor_parallel_size = {settings.tensor_parallel_size}, and vLLM"
                          f" takes no other")
    tensor = 1 if config.method == "draft_model" and asked == 1 else tensor
    shared = shard.data if drafter.first.decoder.top_k else 1
    return evolve(shard, tensor=tensor, stage=0, stages=1, data=shared,
                  expert_parallel=shard.expert_parallel and bool(drafter.first.decoder.top_k),
                  precision=_precision(drafter.first.decoder, settings, config))


def _hidden_states(model: Model, drafter: Drafter, tokens: int) -> float:
    """Bytes of the target's hidden states of a step of so many *tokens*, which are kept for a head."""
    return tokens * model.decoder.sizes["m"] * DType.BF16.bytes if "O" in drafter.first.decoder.sizes else 0.0


def _precision(decoder: Decoder, settings: EngineSettings, config: SpeculativeConfig) -> Precision:
    """The formats of a drafter: its checkpoint's unless others are set, and the target's for modules of its own."""
    own = settings.precision
    asked = config.kv_cache_dtype
    cache = own.cache if asked is None else _named(CACHE_DTYPES, "kv_cache_dtype", asked)
    if config.method == "mtp" and config.quantization is None:
        return evolve(own, cache=cache)
    name = decoder.quantization if config.quantization is None else config.quantization
    chosen = _named(QUANTIZATIONS, "quantization", name)
    kept = decoder.unquantized if name == decoder.quantization else chosen.kept
    if config.quantization is None and WEIGHT_ONLY.get(name, ("",))[0] == settings.quantization:
        chosen = QUANTIZATIONS[settings.quantization]  # as of the target: the GPU does not multiply in the format
    return Precision(chosen.weights, chosen.activations, cache, kept, act_order=chosen.act_order,
                     experts=chosen.experts)


def _named(formats: Mapping[str, Any], key: str, name: str) -> Any:
    if name not in formats:
        raise ConfigError(f"{KEY}.{key}", f"{name!r} is none of {', '.join(formats)}")
    return formats[name]


def _mtp(model: Model, config: SpeculativeConfig) -> Drafter:
    source, tokens = model_of(config.model) if config.model else model, config.num_speculative_tokens
    count = len(source.decoder.mtp)
    if not count:
        raise ConfigError(f"{KEY}.method", f"{source.name} has no modules that predict further tokens, or none that"
                                            f" ksim knows (num_nextn_predict_layers in its config.json); choose another"
                                            f" method")
    if tokens > count and tokens % count:
        raise ConfigError(f"{KEY}.num_speculative_tokens", f"{tokens} must be divisible by the {count} modules of"
                                                            f" {source.name}, as in vLLM")
    return drafters.drafter(source, tokens)


def _head(make: Callable[[Config, Model], Drafter]) -> Callable[[Model, SpeculativeConfig], Drafter]:
    def head(model: Model, config: SpeculativeConfig) -> Drafter:
        assert config.model is not None, "settings without one are refused"
        return make(Config(config.model, catalog.load("drafters", config.model)), model)
    return head


def _draft_model(model: Model, config: SpeculativeConfig) -> Drafter:
    """A whole model; of every sequence, it reads the token after those that the target has read, too."""
    assert config.model is not None, "settings without one are refused"
    draft = model_of(config.model)
    own, vocabulary = (each.decoder.sizes["V"] for each in (draft, model))
    if own != vocabulary and not config.use_heterogeneous_vocab:
        raise ConfigError(f"{KEY}.model", f"{draft.name} has a vocabulary of {own} and {model.name} one of"
                                           f" {vocabulary}: target and draft model should have the same; choose another"
                                           f" draft model, or set use_heterogeneous_vocab")
    further = FurtherModel(draft.name, draft.decoder, prefix="draft.")
    return Drafter(further, further, more=1, captured=False)


_METHODS: Mapping[str, Callable[[Model, SpeculativeConfig], Drafter]] = {
    "mtp": _mtp, "eagle": _head(eagle), "eagle3": _head(eagle3), "draft_model": _draft_model}


def speculation_of(serve: EngineSettings, seed: int = 0) -> DrawnSpeculation | None:
    """What the scheduler of an engine with complete settings asks of speculation; None where it decodes plainly.

    Raises ConfigError for an acceptance that is none.
    """
    config = serve.speculative_config
    if config is None:
        return None
    drops = config.reads_hidden_states and not config.disable_eagle_block_drop
    ahead = drops and not config.disable_lookahead_block_hashes and serve.enable_prefix_caching is not False
    ahead = ahead and serve.kv_transfer_config is None  # vLLM's connectors know plain keys alone
    acceptance = plugin("scheduling.acceptances", config.acceptance or
                        Choice("by_position", {"rates_by_position": config.synthetic_rates}))
    return DrawnSpeculation(
        k=config.num_speculative_tokens, lookahead=config.num_speculative_tokens if config.keeps_cache else 0,
        drops_block=drops and not ahead, keys_ahead=ahead, input_slots=int(config.method == "draft_model"),
        acceptance=acceptance, match_rate=config.match_rate, ahead=serve.async_scheduling, seed=seed)


def _check(serve: EngineSettings) -> None:
    """Raise ConfigError for complete settings with which vLLM, or ksim, does not speculate."""
    config, tokens, k = serve.speculative_config, serve.max_num_batched_tokens or 0, serve.drafted
    assert config is not None, "a drafter is asked for"
    tensor = config.draft_tensor_parallel_size
    if tensor not in (None, 1, serve.tensor_parallel_size):
        raise ConfigError(f"{KEY}.draft_tensor_parallel_size", f"{tensor} cannot be other than 1 or the model's"
                                                               f" tensor_parallel_size, {serve.tensor_parallel_size}")
    if config.keeps_cache and tokens <= k:
        raise ConfigError(f"{KEY}.num_speculative_tokens", f"{k} slots of a sequence leave no token of"
                                                           f" max_num_batched_tokens = {tokens}; raise this or lower k")
    if serve.prefix_cache == "sglang" and serve.sglang is None:
        raise ConfigError("serve.prefix_cache", "'sglang' is not simulated with speculative decoding, which changes its"
                                                " keys; set 'vllm', or leave out speculative_config")
    speculation_of(serve)


def _verify(timer: StepTimer) -> Pass:
    """Rejection sampling, which takes the rows of logits that the target's pass has computed."""
    checked = FurtherModel(timer.model.name, verification(timer.model.decoder), prefix="verify.")
    return Pass(timer.beside(checked, timer.shard, Graphs()),
                lambda batch: [rows(batch.sequences)] if batch.drafts else [])


def _draft(timer: StepTimer, settings: EngineSettings) -> list[Pass]:
    """The passes of the drafter, in vLLM's graphs: the first in those of the target, the later in full ones."""
    config, drafter = settings.speculative_config, drafter_of(timer.model, settings)
    assert config is not None, "a drafter is asked for"
    if drafter is None:
        found = FurtherModel("n-grams", ngrams(timer.model.decoder), prefix="draft.")
        return [Pass(timer.beside(found, timer.shard, Graphs()), lambda batch: [evolve(batch, drafts=0)])]
    shard, tokens = drafter_shard(drafter, settings, timer.shard), config.num_speculative_tokens
    first, later = _graphs(drafter, timer.graphs, settings)

    def sequences(tokens_by_rank: Sequence[int], number: int) -> Sequence[int]:
        """The sequences of each data rank, as if all decoded: a token of each."""
        return tokens_by_rank if drafter.turns else [-(-count // (tokens + 1)) for count in tokens_by_rank]

    return [Pass(timer.beside(drafter.first, shard, first), lambda batch: [drafter.first_pass(batch)]),
            *([Pass(timer.beside(drafter.later, shard, later), lambda batch: drafter.later_passes(batch, tokens),
                    tokens_by_rank=sequences)] if tokens > 1 else [])]


def _graphs(drafter: Drafter, target: Graphs, settings: EngineSettings) -> tuple[Graphs, Graphs]:
    """The CUDA graphs of the first pass and of the later ones, by those of the target (vLLM 0.33, model runner V2).

    Later passes have no piecewise graphs, modules that take turns none either, and draft models none at all.
    """
    config = settings.speculative_config
    eager = target.eager or bool(config and config.enforce_eager)
    if not drafter.captured or eager:
        return Graphs(eager=eager), Graphs(eager=eager)
    if drafter.turns:
        return evolve(target, piecewise=()), evolve(target, piecewise=())
    sequences = tuple(size for size in settings.cudagraph_capture_sizes or () if size <= (settings.max_num_seqs or 0))
    return target, Graphs(full=tuple(sorted(sequences)) if target.full else ())


class DraftsFeature(WiredFeature):
    """An engine that decodes speculatively."""

    def check(self, model: Model, serve: EngineSettings, workload: Workload) -> None:
        if drafter := drafter_of(model, serve):
            drafter_shard(drafter, serve, Shard(tensor=serve.tensor_parallel_size))
        _check(serve)

    def memory(self, rank: Memory, model: Model, shard: Shard, serve: EngineSettings) -> Memory:
        """With the drafter's: its steps and the target's alternate, so the activations of one use the room of the
        other's."""
        drafter = drafter_of(model, serve) if shard.last else None
        if drafter is None:
            return rank
        tokens, sequences, own = serve.max_num_batched_tokens or 0, serve.max_num_seqs or 0, drafter_shard(
            drafter, serve, shard)
        needed = activations(drafter.first, Batch.of((tokens, 0)), min(sequences, tokens), own)
        return evolve(
            rank, weights=rank.weights + drafter.weights(own),
            activations=max(rank.activations, needed) + _hidden_states(model, drafter, tokens),
            layers=(*rank.layers, *drafter.cache_by_layer(own)))

    def layers(self, model: Model, serve: EngineSettings, shard: Shard) -> Sequence[LayerCache]:
        drafter = drafter_of(model, serve) if shard.last else None
        return drafter.cache_by_layer(drafter_shard(drafter, serve, shard)) if drafter else ()

    def passes(self, timer: StepTimer, serve: EngineSettings) -> Sequence[Pass]:
        return [_verify(timer), *_draft(timer, serve)] if timer.shard.last else []

    def unmeasured(self, workload: Workload) -> Sequence[str]:
        return "attention over drafted tokens", "rejection sampling"

    def card(self, model: Model, serve: EngineSettings) -> Mapping[str, Any]:
        """The drafter, stored once."""
        if (drafter := drafter_of(model, serve)) is None:
            return {}
        shard = drafter_shard(drafter, serve, Shard(precision=serve.precision))
        return {"drafter": {
            "name": drafter.name, "parameters": drafter.parameters(), "weight_bytes": drafter.weights(shard),
            "kv_cache_bytes_per_token": drafter.cache_per_token(shard)}}

    def rules(self, deployment: Deployment) -> Sequence[Rules]:
        speculation = speculation_of(deployment.serve, deployment.scenario.seed)
        return drafting(speculation) if speculation else ()

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        return {"drafted": pool.deployment.serve.drafted}


FEATURE = DraftsFeature()

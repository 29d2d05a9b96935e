"""Speculative decoding as an engine's settings describe it, and the passes of a step that it adds.

A drafter has GPUs that share it, and takes memory there.  Its passes come after the target's, which check what it
proposed before; a vision encoder's come first.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import evolve

from ksim.compute import drafters
from ksim.compute.drafters import Drafter, eagle, eagle3, ngrams, verification
from ksim.compute.graph import LayerCache
from ksim.compute.model import ROWS, Config, Decoder, FurtherModel, Model, prompt_logprobs
from ksim.cost.graphs import Graphs
from ksim.cost.step import Pass, Passes, StepTimer, Timer, without_inputs
from ksim.flow.batch import Batch, Contexts
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.models import model_of
from ksim.scenario.vision import encoder_passes
from ksim.scheduling.acceptances import DrawnSpeculation
from ksim.specs.configs import SpeculativeConfig
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import CACHE_DTYPES, QUANTIZATIONS, WEIGHT_ONLY, Precision, Shard

__all__ = ["check_drafter", "drafter_of", "drafter_shard", "hidden_states", "kept_layers", "speculation_of", "drafted",
           "check", "passes_of", "with_prompt_logprobs"]


_KEY = "serve.speculative_config"


def drafter_of(model: Model, settings: EngineSettings) -> Drafter | None:
    """The drafter of a target *model*; None without speculation, and for n-grams, which no model looks up.

    Raises UnknownName, DataError or ConfigError.
    """
    config = settings.speculative_config
    if config is None or config.method is None or config.method == "ngram":
        return None
    return _METHODS[config.method](model, config)


def check_drafter(model: Model, settings: EngineSettings) -> None:
    """Raise KsimError for a drafter that there is not, or that cannot draft for *model*."""
    if drafter := drafter_of(model, settings):
        drafter_shard(drafter, settings, Shard(tensor=settings.tensor_parallel_size))


def drafter_shard(drafter: Drafter, settings: EngineSettings, shard: Shard) -> Shard:
    """One rank's share of *drafter*, on the GPUs of *shard*: the last stage's.

    Heads run on as many GPUs as their target, as in vLLM; a draft model may be whole on each.
    """
    config, tensor = settings.speculative_config, shard.tensor
    assert config is not None, "a drafter is asked for"
    if (asked := config.draft_tensor_parallel_size) not in (None, 1, settings.tensor_parallel_size):
        raise ConfigError(f"{_KEY}.draft_tensor_parallel_size",
                          f"{asked} is neither 1 nor tensor_parallel_size = {settings.tensor_parallel_size}, and vLLM"
                          f" takes no other")
    tensor = 1 if config.method == "draft_model" and asked == 1 else tensor
    shared = shard.data if drafter.first.decoder.top_k else 1
    return evolve(shard, tensor=tensor, stage=0, stages=1, data=shared,
                  expert_parallel=shard.expert_parallel and bool(drafter.first.decoder.top_k),
                  precision=_precision(drafter.first.decoder, settings, config))


def kept_layers(model: Model, settings: EngineSettings, shard: Shard) -> list[LayerCache]:
    """What each layer on one rank keeps: those of its stage of *model*, and on the last one those of the drafter."""
    drafter = drafter_of(model, settings) if shard.last else None
    own = drafter.cache_by_layer(drafter_shard(drafter, settings, shard)) if drafter else []
    return [*model.cache_by_layer(shard), *own]


def hidden_states(model: Model, drafter: Drafter, tokens: int) -> float:
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
        raise ConfigError(f"{_KEY}.{key}", f"{name!r} is none of {', '.join(formats)}")
    return formats[name]


def _mtp(model: Model, config: SpeculativeConfig) -> Drafter:
    source, tokens = model_of(config.model) if config.model else model, config.num_speculative_tokens
    count = len(source.decoder.mtp)
    if not count:
        raise ConfigError(f"{_KEY}.method", f"{source.name} has no modules that predict further tokens, or none that"
                                            f" ksim knows (num_nextn_predict_layers in its config.json); choose another"
                                            f" method")
    if tokens > count and tokens % count:
        raise ConfigError(f"{_KEY}.num_speculative_tokens", f"{tokens} must be divisible by the {count} modules of"
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
        raise ConfigError(f"{_KEY}.model", f"{draft.name} has a vocabulary of {own} and {model.name} one of"
                                           f" {vocabulary}: target and draft model should have the same; choose another"
                                           f" draft model, or set use_heterogeneous_vocab")
    further = FurtherModel(draft.name, draft.decoder, prefix="draft.")
    return Drafter(further, further, more=1, captured=False)


_METHODS: Mapping[str, Callable[[Model, SpeculativeConfig], Drafter]] = {
    "mtp": _mtp, "eagle": _head(eagle), "eagle3": _head(eagle3), "draft_model": _draft_model}


KEY = "serve.speculative_config"


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


def drafted(serve: EngineSettings) -> int:
    """How many tokens are drafted for each sequence and step."""
    return serve.speculative_config.num_speculative_tokens if serve.speculative_config else 0


def check(serve: EngineSettings) -> None:
    """Raise ConfigError for complete settings with which vLLM, or ksim, does not speculate."""
    config = serve.speculative_config
    if config is None:
        return
    tokens, tensor, k = serve.max_num_batched_tokens or 0, config.draft_tensor_parallel_size, drafted(serve)
    if tensor not in (None, 1, serve.tensor_parallel_size):
        raise ConfigError(f"{KEY}.draft_tensor_parallel_size", f"{tensor} cannot be other than 1 or the model's"
                                                               f" tensor_parallel_size, {serve.tensor_parallel_size}")
    if config.keeps_cache and tokens <= k:
        raise ConfigError(f"{KEY}.num_speculative_tokens", f"{k} slots of a sequence leave no token of"
                                                           f" max_num_batched_tokens = {tokens}; raise this or lower k")
    if serve.prefix_cache == "sglang":
        raise ConfigError("serve.prefix_cache", "'sglang' is not simulated with speculative decoding, which changes its"
                                                " keys; set 'vllm', or leave out speculative_config")
    speculation_of(serve)


def passes_of(timer: StepTimer, settings: EngineSettings) -> list[Pass]:
    """What runs beside the pass of *timer*, which is that of a pipeline stage, with complete *settings*."""
    encoder = encoder_passes(timer, settings)
    if settings.speculative_config is None or not timer.shard.last:
        return encoder
    return [*encoder, _verify(timer), *_draft(timer, settings)]


def _verify(timer: StepTimer) -> Pass:
    """Rejection sampling, which takes the rows of logits that the target's pass has computed."""
    checked = FurtherModel(timer.model.name, verification(timer.model.decoder), prefix="verify.")
    return Pass(_beside(timer, checked, timer.shard, Graphs()),
                lambda batch: [_rows(batch.sequences)] if batch.drafts else [])


@lru_cache(maxsize=4096)
def _rows(count: int) -> Batch:
    """A token of each of *count* sequences."""
    return Batch(Contexts((0,) * count), (), count, count)


def with_prompt_logprobs(timer: Timer) -> Passes:
    """*timer*, which is that of the last pipeline stage, with the passes that log-probabilities of prompts take.

    An engine gets them with the first request that asks for these.
    """
    main, others = (timer.main, timer.others) if isinstance(timer, Passes) else (timer, [])
    return Passes(main, [*others, *(_prompt_logprobs(main, top) for top in (True, False))])


def _prompt_logprobs(timer: StepTimer, top: bool) -> Pass:
    """A pass for each chunk of rows of a step that looks for *top* tokens, or of one that does not."""
    scored = FurtherModel(timer.model.name, prompt_logprobs(timer.model.decoder, top), prefix="logprobs.")

    def chunks(batch: Batch) -> list[Batch]:
        if batch.prompt_logprobs is None or bool(batch.prompt_logprobs) is not top:
            return []
        whole, rest = divmod(batch.prompt_logits, ROWS)
        return [_rows(ROWS)] * whole + ([_rows(rest)] if rest else [])

    return Pass(_beside(timer, scored, timer.shard, Graphs()), chunks)


def _draft(timer: StepTimer, settings: EngineSettings) -> list[Pass]:
    """The passes of the drafter, in vLLM's graphs: the first in those of the target, the later in full ones."""
    config, drafter = settings.speculative_config, drafter_of(timer.model, settings)
    assert config is not None, "a drafter is asked for"
    if drafter is None:
        found = FurtherModel("n-grams", ngrams(timer.model.decoder), prefix="draft.")
        return [Pass(_beside(timer, found, timer.shard, Graphs()), lambda batch: [evolve(batch, drafts=0)])]
    shard, tokens = drafter_shard(drafter, settings, timer.shard), config.num_speculative_tokens
    first, later = _graphs(drafter, timer.graphs, settings)

    def sequences(tokens_by_rank: Sequence[int], number: int) -> Sequence[int]:
        """The sequences of each data rank, as if all decoded: a token of each."""
        return tokens_by_rank if drafter.turns else [-(-count // (tokens + 1)) for count in tokens_by_rank]

    return [Pass(_beside(timer, drafter.first, shard, first), lambda batch: [drafter.first_pass(batch)]),
            *([Pass(_beside(timer, drafter.later, shard, later), lambda batch: drafter.later_passes(batch, tokens),
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


def _beside(timer: StepTimer, model: FurtherModel, shard: Shard, graphs: Graphs) -> StepTimer:
    """A timer of a further pass on the GPUs of *timer*."""
    more: Mapping[str, Any] = {"model": model, "shard": shard, "graphs": graphs, "host": without_inputs(timer.host)}
    return evolve(timer, **more)

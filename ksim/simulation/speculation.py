"""Speculative decoding as an engine's settings describe it, and what an engine refuses to speculate with."""

from ksim.foundation.errors import ConfigError
from ksim.foundation.plugins import plugin
from ksim.scheduling.acceptances.by_position import ByPosition
from ksim.scheduling.drawn_speculation import DrawnSpeculation
from ksim.specs.settings import EngineSettings

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
    acceptance = (ByPosition((*config.synthetic_rates,)) if config.acceptance is None else
                  plugin("scheduling.acceptances", config.acceptance))
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

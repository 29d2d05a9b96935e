"""A scenario for one engine of several: the same limits under the names that its scheduler has for them.

Studies that vary `engine` compare engines under the same settings.  Those of `[serve.sglang]` count for engines with
SGLang's scheduler alone; those of `[serve]` that SGLang calls otherwise count for it, too, where they mean the same.
"""

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from ksim.scenario.hardware import engine_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sglang import VLLM_KEYS, is_complete
from ksim.specs.settings import EngineSettings
from ksim.specs.sglang import SglangSettings

__all__ = ["with_own_settings"]

#: Limits of one rank in vLLM, and of all ranks of data-parallel attention in SGLang.
_OF_ALL_RANKS = ("max_num_seqs", "max_num_batched_tokens")
#: Settings with the same values in both, and switches that SGLang turns off where vLLM turns them on.
_SAME, _SWITCHES = ("max_model_len", "block_size"), ("enable_prefix_caching", "async_scheduling")


def with_own_settings(scenario: Scenario) -> Scenario:
    """*scenario* with the settings of its engine's scheduler alone, those of the other one under its names for them.

    Where both are set, that of the engine's own scheduler counts.  A setting of vLLM's that SGLang lacks stays, and is
    refused when the engine is built.
    """
    of_sglang = engine_of(scenario.engine).scheduler == "sglang"
    return evolve(scenario, serve=_for_sglang(scenario.serve) if of_sglang else _for_vllm(scenario.serve))


def _for_sglang(serve: EngineSettings) -> EngineSettings:
    given, plain, usual = serve.sglang or SglangSettings(), EngineSettings(), SglangSettings()
    if is_complete(serve.sglang):
        return serve
    named, taken = {}, {}
    for key, other in VLLM_KEYS.items():
        value = getattr(serve, key)
        if value == getattr(plain, key):
            continue
        if getattr(given, other) != getattr(usual, other):
            taken[key] = getattr(plain, key)
        elif key in (*_OF_ALL_RANKS, *_SAME, *_SWITCHES):
            taken[key], named[other] = getattr(plain, key), _translated(key, value, serve.data_parallel_size)
    return evolve(serve, **taken, sglang=evolve(given, **named) if named else serve.sglang)


def _for_vllm(serve: EngineSettings) -> EngineSettings:
    return evolve(serve, **dict(_of_sglang(serve)), sglang=None)


def _of_sglang(serve: EngineSettings) -> Iterator[tuple[str, Any]]:
    """What `serve.sglang` says under vLLM's names, for what `serve` leaves open."""
    given, plain, usual = serve.sglang or SglangSettings(), EngineSettings(), SglangSettings()
    for key in (*_OF_ALL_RANKS, *_SAME, *_SWITCHES):
        value = getattr(given, VLLM_KEYS[key])
        if getattr(serve, key) == getattr(plain, key) and value not in (getattr(usual, VLLM_KEYS[key]), -1):
            yield key, _translated(key, value, 1 / serve.data_parallel_size)


def _translated(key: str, value: Any, ranks: float) -> Any:
    """The *value* of vLLM's *key* for SGLang; the other way round with the inverse of the *ranks*."""
    if key in _OF_ALL_RANKS:
        return max(1, int(value * ranks))
    return not value if key in _SWITCHES else value

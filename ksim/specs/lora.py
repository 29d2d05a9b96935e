"""LoRA adapters, as vLLM's settings describe them (0.33, vllm/config/lora.py and lora/peft_helper.py)."""

from collections.abc import Sequence
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import gt, le

#: The ranks that vLLM allows for `max_lora_rank`.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LORA_DTYPES = ("auto", "bfloat16", "float16")
#: Bytes of a number in any of them: the models' own is BF16.
LORA_BYTES = 2
#: More than any server holds.
_MOST = 10**6


@frozen
class LoraModule:
    """An adapter that is served, or `count` equal ones: an entry of ``--lora-modules``.

    vLLM reads `rank` and `target_modules` from the adapter's adapter_config.json.
    """

    name: str = field()
    """What requests call it; with a `count`, adapters are called name-0, name-1 and so on."""
    rank: int = field(default=16, validator=(gt(0), le(max(RANKS))))
    """Rank of its matrices; `r` in adapter_config.json. Unit: none. Source: PEFT."""
    target_modules: tuple[str, ...] | None = None
    """Modules that it adapts, by their names in the checkpoint. Default: all that `serve.lora_target_modules` allows.
    Source: PEFT. Example: ["q_proj", "v_proj"]."""
    count: int | None = field(default=None, validator=lambda _, at, value: _counted(at, value))
    """Number of equal adapters, for synthetic loads. Unit: adapters. Default: one, called by its name. Source: ksim.
    Example: 64."""

    path: str | None = None
    """Folder of an adapter, relative to the scenario, with an adapter_config.json, from which `rank` and
    `target_modules` are read. Default: none. Source: vLLM. Example: "adapters/sql"."""

    def __attrs_post_init__(self) -> None:
        if not self.name:
            raise ValueError("an adapter needs a name")
        if self.target_modules is not None and not self.target_modules:
            raise ValueError("target_modules is empty; name at least one module, or leave it out")

    @property
    def names(self) -> tuple[str, ...]:
        """What requests call these adapters."""
        return (self.name,) if self.count is None else tuple(f"{self.name}-{place}" for place in range(self.count))


def _counted(attribute: "Attribute[int | None]", value: int | None) -> None:
    if value is not None and not 0 < value <= _MOST:
        raise ValueError(f"{attribute.name!r} must be from 1 to {_MOST:,}, not {value}")


def ranked(_: object, attribute: "Attribute[int]", value: int) -> None:
    """Check a setting that is one of vLLM's ranks."""
    if value not in RANKS:
        raise ValueError(f"{attribute.name!r} must be one of {', '.join(map(str, RANKS))}, not {value}")


def check_lora(settings: Any) -> None:
    """Raise ValueError for what vLLM refuses of an engine's LoRA settings."""
    if not settings.enable_lora:
        if settings.lora_modules:
            raise ValueError("lora_modules are adapters, which need enable_lora; set it, or leave them out")
        return
    if settings.max_cpu_loras is not None and settings.max_cpu_loras < settings.max_loras:
        raise ValueError(f"max_cpu_loras = {settings.max_cpu_loras} must be at least max_loras = {settings.max_loras}:"
                         f" what is on the GPU is kept in host memory too")
    ranks = settings.tensor_parallel_size
    if settings.fully_sharded_loras and settings.max_lora_rank % ranks:
        raise ValueError(f"fully_sharded_loras divides max_lora_rank = {settings.max_lora_rank} among"
                         f" tensor_parallel_size = {ranks} GPUs; choose a rank that it divides")
    _check_modules(settings.lora_modules, settings.max_lora_rank)


def _check_modules(modules: Sequence[LoraModule], most: int) -> None:
    for module in modules:
        if module.rank > most:
            raise ValueError(f"adapter {module.name!r} of rank {module.rank} is beyond max_lora_rank = {most}; set it"
                             f" to {min(rank for rank in RANKS if rank >= module.rank)} or more")
    names = [name for module in modules for name in module.names]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"lora_modules has two adapters called {twice!r}")

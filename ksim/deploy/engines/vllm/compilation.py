"""`--compilation-config` and `-O`: CUDA graphs, and the fusion of all-reduces."""

from collections.abc import Mapping
from typing import Any

from ksim.deploy.flags.given import Given
from ksim.deploy.flags.json_tables import table_of
from ksim.deploy.flags.meaning import Handler, Reading
from ksim.deploy.launches import Note
from ksim.foundation.errors import ConfigError

_GRAPHS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
_PASSES = ("fuse_allreduce_rms", "fi_allreduce_fusion_max_size_mb")
_KERNELS = "how kernels are compiled; ksim's profiles are of those that vLLM compiles by default"
#: CUDA graphs by `-O`'s level, where they are not the default.
_LEVELS: Mapping[str, Mapping[str, Any]] = {"0": {"enforce_eager": True}, "1": {"cudagraph_mode": "PIECEWISE"},
                                            "2": {}, "3": {}}


def _compilation(reading: Reading, given: Given) -> None:
    if isinstance(given.value, int | str) and not isinstance(given.value, bool):
        return _level(reading, given)
    table = table_of(given)
    for key in _GRAPHS:
        if table.get(key) is not None:
            reading.serve[key] = _upper(table[key])
    passes = table.get("pass_config") or {}
    for key in _PASSES:
        if passes.get(key) is not None:
            reading.serve[key] = passes[key]
    _older(reading, table)
    others = [key for key in table if key not in (*_GRAPHS, "pass_config", "full_cuda_graph", "use_cudagraph")]
    for key in [*others, *(f"pass_config.{key}" for key in passes if key not in _PASSES)]:
        reading.idle.append(Note(given.where, f"{given.flag.name} {key}", _KERNELS))
    if str(table.get("mode", "")).upper() in ("0", "NONE") and not reading.serve.get("cudagraph_mode"):
        reading.serve["enforce_eager"] = True


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _older(reading: Reading, table: Mapping[str, Any]) -> None:
    """Keys of releases before `cudagraph_mode`."""
    if table.get("full_cuda_graph"):
        reading.serve.setdefault("cudagraph_mode", "FULL")
    if table.get("use_cudagraph") is False:
        reading.serve.setdefault("cudagraph_mode", "NONE")


def _level(reading: Reading, given: Given) -> None:
    """`-O2`: settings that a level leaves at their defaults stay open."""
    level = str(given.value).removeprefix("O")
    if level not in _LEVELS:
        raise ConfigError(given.where, f"{given.said}: there are levels 0 to 3")
    for key, value in _LEVELS[level].items():
        reading.serve.setdefault(key, value)
    if not _LEVELS[level]:
        reading.pass_over(given, "CUDA graphs and compilation as by default")


HANDLERS: Mapping[str, Handler] = {"compilation_config": _compilation, "optimization_level": _level}

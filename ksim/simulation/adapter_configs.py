"""Adapters as PEFT saves them: what vLLM reads of their adapter_config.json (0.33, vllm/lora/peft_helper.py)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError
from ksim.foundation.files import LONGEST, regular_file

__all__ = ["with_configs"]

#: What vLLM refuses of an adapter where it is set.
REFUSED = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens", "use_qalora")
#: What PEFT calls all modules.
ALL = "all-linear"


def with_configs(table: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A scenario's *table* with the rank and the modules of adapters that it names by `path`, relative to *folder*.

    The path is left out, so that a run's own scenario does not need the files.  Raises ConfigError or DataError for a
    config that vLLM would refuse, or that cannot be read.
    """
    pools = {name: with_configs(pool, folder) if isinstance(pool, Mapping) else pool
             for name, pool in table["pools"].items()} if isinstance(table.get("pools"), Mapping) else {}
    table = {**table, "pools": pools} if pools else table
    serve = table.get("serve")
    modules = serve.get("lora_modules") if isinstance(serve, Mapping) else None
    if not isinstance(modules, list) or not any(isinstance(each, Mapping) and "path" in each for each in modules):
        return table
    read = [_read(each, folder) if isinstance(each, Mapping) and isinstance(each.get("path"), str) else each
            for each in modules]
    return {**table, "serve": {**serve, "lora_modules": read}} if isinstance(serve, Mapping) else table


def _read(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An entry with what its config says, in the place of its `path`."""
    path = folder / entry["path"] / "adapter_config.json"
    try:
        config = json.loads(regular_file(path, LONGEST).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(str(path), "is not a JSON object")
    for key in REFUSED:
        if config.get(key):
            raise ConfigError(f"{path}: {key}", f"is {config[key]!r}, and vLLM refuses adapters with it")
    if config.get("rank_pattern"):
        raise ConfigError(f"{path}: rank_pattern", "gives modules ranks of their own, which ksim does not know")
    found = {"rank": config.get("r"), **_targets(config.get("target_modules", ALL), path)}
    return {**{key: value for key, value in found.items() if value is not None},
            **{key: value for key, value in entry.items() if key != "path"}}


def _targets(modules: Any, path: Path) -> dict[str, list[str]]:
    """The `target_modules`; none where they are all."""
    if modules in (ALL, None):
        return {}
    if not isinstance(modules, list):
        raise ConfigError(f"{path}: target_modules", f"is {modules!r}; ksim reads lists of names, and {ALL!r}")
    return {"target_modules": sorted({str(module).rpartition(".")[2] for module in modules})}

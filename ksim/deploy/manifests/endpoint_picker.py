"""llm-d's endpoint picker, as ConfigMaps and Helm values have it: the scenario's `router` or `pair_router`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ksim.cluster.llm_d.assembly import picker_of
from ksim.cluster.llm_d.cycle import Chance
from ksim.cluster.llm_d.endpoint_picker import HANDLERS
from ksim.cluster.llm_d.epp_config import EndpointPickerConfig
from ksim.deploy.texts import Embedded, Entry, documents
from ksim.foundation.errors import ConfigError

__all__ = ["KIND", "router_of_maps", "router_of_text"]

KIND = "EndpointPickerConfig"
_CONFIG_FILE = re.compile(r"--config-?[fF]ile[=\s]+\S*?([^/\s]+)$")


def router_of_maps(documents: Sequence[Entry]) -> dict[str, Any]:
    """The router that the endpoint picker's configuration in a ConfigMap stands for, if there is one."""
    configs = {key: entry for document in documents for key, entry in _texts(document)}
    if not configs:
        return {}
    used = [name for document in documents for name in _named(document) if name in configs]
    if len(configs) > 1 and len({*used}) != 1:
        places = ", ".join(entry.where for entry in configs.values())
        raise next(iter(configs.values())).error(f"is one of several configurations of an endpoint picker ({places});"
                                               " leave the one that is used")
    entry = configs[used[0] if used else min(configs)]
    return router_of_text(entry, entry.text)


def _texts(document: Entry) -> Iterator[tuple[str, Entry]]:
    """The texts of a ConfigMap that are an EndpointPickerConfig, by their keys."""
    kind, data = document.get("kind"), document.get("data")
    if kind is None or kind.text != "ConfigMap" or data is None:
        return
    for key, entry in data.table.items():
        if not entry.is_null and re.search(rf"(?m)^kind:\s*{KIND}\s*$", entry.text):
            yield key, entry


def _named(document: Entry) -> Iterator[str]:
    """The files that containers of *document* name as their configuration."""
    for container in document.each("spec", "template", "spec", "containers"):
        if match := _CONFIG_FILE.search(" ".join(item.text for item in container.each("args")).strip()):
            yield match[1]
        for first, second in zip(container.each("args"), container.each("args")[1:], strict=False):
            if first.text.lower() in ("--config-file", "--configfile"):
                yield second.text.rpartition("/")[2]


def router_of_text(entry: Entry, text: str) -> dict[str, Any]:
    """`router` or `pair_router`, as the YAML *text* at *entry* says; raises ConfigError for what is not simulated."""
    read = documents(Embedded(text, "", entry.pasted.folder, entry))
    if len(read) != 1:
        raise entry.error(f"holds {len(read)} documents, and an {KIND} is one")
    return router_of_table(entry.where, read[0].plain)


def router_of_table(where: str, config: Any) -> dict[str, Any]:
    """The same for the table *config* that stands at *where*."""
    config = _with_decider(config)
    read = EndpointPickerConfig.of(config, where)
    splits = any(plugin.type in HANDLERS for plugin in read.plugins)
    picker_of(read, Chance(0), splits=splits)
    return {"pair_router" if splits else "router": {"name": "llm_d", "config": _without_null(config)}}


def _with_decider(config: Any) -> Any:
    """*config*, with the decider that a pd-profile-handler of early 2026 had inside: it splits all, or by a threshold.
    """
    plugins = config.get("plugins") if isinstance(config, Mapping) else None
    if not isinstance(plugins, list) or not all(isinstance(plugin, Mapping) for plugin in plugins):
        return config
    handler = next((plugin for plugin in plugins if plugin.get("type") == "pd-profile-handler"), None)
    if handler is None or any(str(plugin.get("type")).endswith("decider") for plugin in plugins):
        return config
    if not isinstance(handler.get("parameters") or {}, Mapping):
        return config
    parameters = dict(handler.get("parameters") or {})
    tokens = parameters.get("threshold") or 0
    decider: dict[str, Any] = {"type": "always-disagg-pd-decider"}
    if tokens:
        decider = {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": tokens}}
    made = {**handler, "parameters": {**parameters, "deciderPluginName": decider["type"]}}
    return {**config, "plugins": [*(made if plugin is handler else plugin for plugin in plugins), decider]}


def _without_null(value: Any) -> Any:
    """*value* without keys that have no value: TOML has no null, and to llm-d they are as if they were not there."""
    if isinstance(value, Mapping):
        return {str(key): _without_null(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        if any(inner is None for inner in value):
            raise ConfigError("EndpointPickerConfig", "has a list with an empty item")
        return [_without_null(inner) for inner in value]
    return value

"""Values of the Helm chart llm-d-modelservice to pods, and an EndpointPickerConfig to `router` or `pair_router`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ksim.cluster.llm_d import assembly
from ksim.deploy.commands import Note
from ksim.deploy.manifests import fields
from ksim.deploy.manifests.containers import POOL, Pods
from ksim.deploy.manifests.fields import listed, tabled, text, texts
from ksim.deploy.texts import Embedded, Entry, documents
from ksim.foundation.errors import ConfigError

_PARALLELISM = ("tensor", "data", "dataLocal", "workers")
_COMMANDS = ("vllmServe", "imageDefault", "custom")
_TEMPLATE = re.compile(r"\{\{-?\s*\.Values\.([\w.]+)\s*-?\}\}")


def engines(values: Entry) -> Iterator[Pods]:
    """The pods of both sides; raises ConfigError for values that the chart does not know, and for other accelerators.
    """
    for chart in ("llm-d-modelservice", "modelservice"):
        if (inner := values.get(chart)) is not None and inner.is_table:
            yield from engines(inner)
    if values.get("modelArtifacts") is None or _is(values, "enabled", "false"):
        return
    notes = fields.notes(values, "model_service")
    _check(values)
    prefills = _runs(values.get("prefill"), 0)
    for side in ("prefill", "decode"):
        table = values.get(side)
        if table is not None and _runs(table, 1 if side == "decode" else 0):
            notes += fields.notes(table, "model_service_side")
            yield _pods(values, table, side if prefills else "both", notes)
            notes = []


def _is(table: Entry, key: str, text_: str) -> bool:
    return table.text_of(key).lower() == text_


def _runs(side: Entry | None, default: int) -> bool:
    """Whether a side has engines."""
    return side is not None and not _is(side, "create", "false") and side.count_of("replicas", usual=default) > 0


def _check(values: Entry) -> None:
    for key in ("requester", "encode"):
        enabled = values.get(key, "enable") or values.get(key, "enabled") or values.get(key, "create")
        if enabled is not None and enabled.flag:
            raise enabled.error(f"{key} is not simulated")


def _check_accelerator(values: Entry, side: Entry) -> None:
    """Raise ConfigError for other accelerators than NVIDIA's; the type of a *side* overrides that of all."""
    kind = side.get("accelerator", "type") or values.get("accelerator", "type")
    if kind is not None and kind.text != "nvidia":
        raise kind.error(f"{kind.text!r} is no accelerator that ksim simulates: expected nvidia")


def _pods(values: Entry, side: Entry, role: str, notes: list[Note]) -> Pods:
    _check_accelerator(values, side)
    sizes = _sizes(side)
    containers = side.each("containers")
    if not containers:
        raise side.error("has no containers")
    first = _container(values, side, containers[0], sizes)
    others = [_without(container, "modelCommand") for container in containers[1:]]
    spec = {**_placement(side), "containers": listed(side, [first, *others])}
    if (volumes := side.get("volumes")) is not None:
        spec["volumes"] = volumes
    template = tabled(side, {"spec": tabled(side, spec)})
    variables = {"LWS_GROUP_SIZE": str(sizes["workers"]), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader",
                 "TP_SIZE": str(sizes["tensor"]), "DP_SIZE": str(sizes["data"]),
                 "DP_SIZE_LOCAL": str(sizes["dataLocal"])}
    pool = side.text_of("podAnnotations", POOL, usual="engines" if role == "both" else role)
    return Pods(pool, template, side.count_of("replicas"), sizes["workers"], role, variables, tuple(notes))


def _sizes(side: Entry) -> dict[str, int]:
    """The parallel sizes: what is not said follows from the others, as in the chart."""
    table = side.get("parallelism")
    if table is not None:
        fields.notes(table, "model_service_parallelism")
    said = {key: value.count for key in _PARALLELISM if table is not None and (value := table.get(key)) is not None}
    said = {key: value for key, value in said.items() if value}
    data, local, workers = (said.get(key) for key in ("data", "dataLocal", "workers"))
    total = data or (local or 1) * ((workers or 1) if local else 1)
    here = local or (total // workers if data and workers and total % workers == 0 else 1 if workers else total)
    nodes = workers or (total // here if data and local else 1)
    if table is not None and total % here:
        raise table.error(f"data {total} is no multiple of dataLocal {here}")
    return {"tensor": said.get("tensor", 1), "data": total, "dataLocal": here, "workers": nodes}


def _placement(side: Entry) -> dict[str, Entry]:
    """Which nodes the pods go to."""
    extra = side.get("extraConfig")
    placed = {key: value for key in ("nodeSelector", "affinity")
              if (value := side.get(key) or (extra.get(key) if extra is not None else None)) is not None}
    label = side.get("acceleratorTypes", "labelKey")
    values = side.get("acceleratorTypes", "labelValues")
    if label is not None and label.text and values is not None:
        expression = tabled(label, {"key": label, "operator": text(label, "In"), "values": values})
        term = tabled(label, {"matchExpressions": listed(label, [expression])})
        inner = tabled(label, {"nodeSelectorTerms": listed(label, [term])})
        required = tabled(label, {"requiredDuringSchedulingIgnoredDuringExecution": inner})
        placed.setdefault("affinity", tabled(label, {"nodeAffinity": required}))
    return placed


def _container(values: Entry, side: Entry, container: Entry, sizes: Mapping[str, int]) -> Entry:
    """The engine's container, with the command and the GPUs that the chart gives it."""
    kind = container.get("modelCommand")
    way = container.text_of("modelCommand", usual="custom")
    if way not in _COMMANDS:
        raise container.need("modelCommand").error(f"expected {', '.join(_COMMANDS)}, not {way!r}")
    made = {key: entry for key, entry in container.table.items() if key not in _CHART_ONLY}
    near = kind or container
    if way != "custom":
        made["args"] = listed(near, [*_given(values, side, near, way, sizes), *container.each("args")])
    if way == "vllmServe":
        made["command"] = listed(near, texts(near, "vllm", "serve"))
    elif way == "imageDefault":
        made["command"] = listed(near, texts(near, "python3", "-m", "vllm.entrypoints.openai.api_server"))
    elif way == "custom" and not container.each("command"):
        raise container.error("has no command, which modelCommand: custom needs")
    gpu = text(side.get("parallelism") or side, str(sizes["tensor"] * sizes["dataLocal"]))
    made["resources"] = tabled(side, {"limits": tabled(side, {"nvidia.com/gpu": gpu})})
    return tabled(container, made)


_CHART_ONLY = ("modelCommand", "mountModelVolume", "extraConfig")


def _without(container: Entry, *keys: str) -> Entry:
    return tabled(container, {key: entry for key, entry in container.table.items() if key not in (*keys, *_CHART_ONLY)})


def _given(values: Entry, side: Entry, near: Entry, way: str, sizes: Mapping[str, int]) -> list[Entry]:
    """The arguments that the chart puts before those of the values."""
    model = [*(["--model"] if way == "imageDefault" else []), _model(values)]
    given = texts(values.need("modelArtifacts"), *model)
    parallel = side.get("parallelism") or near
    for flag, size in (("--tensor-parallel-size", sizes["tensor"]), ("--data-parallel-size", sizes["data"]),
                       ("--data-parallel-size-local", sizes["dataLocal"])):
        given += texts(parallel, flag, str(size)) if size > 1 else []
    name = values.get("modelArtifacts", "name")
    return given + (texts(name, "--served-model-name", name.text) if name is not None else [])


def _model(values: Entry) -> str:
    """The model that `modelArtifacts.uri` names."""
    name, uri = values.get("modelArtifacts", "name"), values.get("modelArtifacts", "uri")
    if uri is None:
        return values.need("modelArtifacts", "name").text
    protocol, separator, path = _filled(uri, values).partition("://")
    path = path.strip("\"'")
    if protocol == "hf":
        return path
    if protocol == "pvc+hf":
        return "/".join(path.split("/")[-2:])
    if protocol == "pvc" and name is not None:
        return name.text
    raise uri.error(f"expected hf://ORGANISATION/MODEL, pvc:// or pvc+hf://, not {uri.text!r}" if separator else
                    f"has no protocol such as hf://: {uri.text!r}")


def _filled(entry: Entry, values: Entry) -> str:
    """The text of *entry*, with the values that its templates name."""
    def value(match: "re.Match[str]") -> str:
        return values.need(*match[1].split(".")).text

    filled = _TEMPLATE.sub(value, entry.text)
    if "{{" in filled:
        raise entry.error(f"has a template that only Helm can fill in: {entry.text!r}")
    return filled


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
    splits = assembly.splits(config, where)
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

"""Helm values of the charts of llm-d and of vLLM's production stack: engines, and the router before them."""

import json
import re
from collections.abc import Iterator
from math import inf, nan
from typing import Any

from ksim.deploy.commands import Deployed, EngineLaunch, ImportOptions, Note
from ksim.deploy.manifests import containers, fields
from ksim.deploy.manifests.containers import Pods
from ksim.deploy.manifests.fields import listed, tabled, text, texts
from ksim.deploy.manifests.model_service import engines, router_of_text
from ksim.deploy.texts import RENDER, TEMPLATE, Entry, Pasted, documents
from ksim.foundation.errors import ConfigError

__all__ = ["LlmDValues", "ProductionStack"]


_ARTIFACTS = re.compile(r"(?m)^\s{0,4}[\"']?modelArtifacts[\"']?\s*:")
_ROUTER = re.compile(r"(?m)^\s{0,6}[\"']?(pluginsConfigFile|pluginsCustomConfig|inferenceExtension)[\"']?\s*:")
#: What the endpoint picker's chart has under this name where the values do not say (chart inferencepool 1.0 and later).
_DEFAULT_FILE = "default-plugins.yaml"
_DEFAULT: dict[str, Any] = {
    "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig",
    "plugins": [{"type": "queue-scorer"}, {"type": "kv-cache-utilization-scorer"}, {"type": "prefix-cache-scorer"}],
    "schedulingProfiles": [{"name": "default", "plugins": [
        {"pluginRef": "queue-scorer", "weight": 2}, {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
        {"pluginRef": "prefix-cache-scorer", "weight": 3}]}],
}


class LlmDValues:
    """Makes the pods that the chart makes of values, and reads those."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(_ARTIFACTS.search(pasted.text) or _ROUTER.search(pasted.text))

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines, and the router; raises ConfigError for values that the chart does not know."""
        parts: list[Deployed] = []
        scenario: dict[str, Any] = {}
        for values in documents(pasted):
            if not values.is_table:
                raise values.error(RENDER if TEMPLATE in pasted.text else "expected keys and values")
            parts += [containers.deployed(made, {}, wanted) for made in engines(values)]
            scenario |= _router(values)
        launches = [launch for part in parts for launch in part.launches]
        if launches and not scenario:
            scenario, remarks = _assumed(launches)
            parts.append(Deployed((), remarks=tuple(remarks)))
        return Deployed.of(parts, scenario)


def _assumed(launches: list[EngineLaunch]) -> tuple[dict[str, Any], list[Note]]:
    """llm-d's router with the defaults of its guides, where the values have none."""
    splits = any(launch.role == "prefill" for launch in launches)
    if not splits and sum(launch.replicas for launch in launches) < 2:
        return {}, []
    key = "pair_router" if splits else "router"
    why = "the values have no endpoint picker: it is that of llm-d's guide; give its values too, if they are others"
    return {key: "llm_d"}, [Note("", f'{key} = "llm_d"', why)]


def _router(values: Entry) -> dict[str, Any]:
    """The router of the endpoint picker's configuration, wherever the values of a chart have it."""
    for table in _tables(values):
        name, custom = table.get("pluginsConfigFile"), table.get("pluginsCustomConfig")
        if name is None and custom is None:
            continue
        texts = custom.table if custom is not None else {}
        chosen = name.text if name is not None else _DEFAULT_FILE
        if chosen in texts:
            return router_of_text(texts[chosen], texts[chosen].text)
        if chosen == _DEFAULT_FILE:
            return {"router": {"name": "llm_d", "config": _DEFAULT}}
        assert name is not None, "another name was given"
        raise name.error(f"{chosen!r} is none of pluginsCustomConfig ({', '.join(texts) or 'which is empty'}); give the"
                         " endpoint picker's configuration, too")
    return {}


def _tables(entry: Entry, depth: int = 4) -> Iterator[Entry]:
    """*entry* and the tables in it."""
    if entry.is_table:
        yield entry
        for inner in entry.table.values() if depth else ():
            yield from _tables(inner, depth - 1)


_STACK = re.compile(r"(?m)^\s{0,4}[\"']?servingEngineSpec[\"']?\s*:")
#: Keys that ask for a part of a GPU.
_SHARES = ("requestGPUMem", "requestGPUMemPercentage", "requestGPUCores", "limitGPUMem", "limitGPUMemPercentage",
           "limitGPUCores")
#: Keys of vllmConfig, and the flags that the chart makes of them.
_FLAGS = {"maxModelLen": "--max-model-len", "dtype": "--dtype", "tensorParallelSize": "--tensor-parallel-size",
          "maxNumSeqs": "--max-num-seqs", "gpuMemoryUtilization": "--gpu-memory-utilization",
          "maxLoras": "--max-loras", "runner": "--runner", "convert": "--convert"}
#: What the router is called here, by `routingLogic`.
_ROUTERS = {"roundrobin": "round_robin", "session": "session_affinity", "prefixaware": "prefix_aware",
            "kvaware": "prefix_aware"}
_SPLIT = ("disaggregated_prefill", "disaggregated_prefill_orchestrated")
_BY_PREFIX = "ksim's prefix_aware knows what engines have cached, and weighs their load, too"


class ProductionStack:
    """Makes the pods that the chart makes of values, and reads those."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(_STACK.search(pasted.text)) and "apiVersion" not in pasted.text

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines, and the router; raises ConfigError for values that the chart does not know."""
        parts: list[Deployed] = []
        scenario: dict[str, Any] = {}
        for values in documents(pasted):
            if not values.is_table:
                raise values.error(RENDER if TEMPLATE in pasted.text else "expected keys and values")
            stack = values.get("vllm-stack") or values
            parts += [containers.deployed(made, {}, wanted) for made in _engines_of_stack(stack)]
            router, remarks = _router_of_stack(stack)
            scenario |= router
            parts.append(Deployed((), remarks=(*remarks, *_transfers(stack))))
        deployed = Deployed.of(parts, scenario)
        if not deployed.launches:
            raise ConfigError(pasted.source or "the text", "servingEngineSpec.modelSpec has no model that is served")
        several = len(deployed.launches) > 1 or deployed.launches[0].replicas > 1
        return deployed if several else Deployed(deployed.launches, {}, deployed.idle, deployed.remarks)


def _engines_of_stack(values: Entry) -> Iterator[Pods]:
    """The pods of each model."""
    spec = values.get("servingEngineSpec")
    if spec is None or not spec.flag_of("enableEngine", usual=True):
        return
    for model in spec.each("modelSpec"):
        if (ray := model.get("raySpec")) is not None:
            raise ray.error("engines of Ray over several nodes are not read; import the line that Ray runs")
        name = model.need("name")
        template = tabled(model, {"spec": tabled(model, _pod(model, spec))})
        yield Pods(name.text, template, model.count_of("replicaCount"),
                   idle=tuple(fields.notes(model, "stack_model")))


def _pod(model: Entry, spec: Entry) -> dict[str, Entry]:
    command = [*texts(model, "vllm", "serve", model.need("modelURL").text), *_words(model)]
    env = [*spec.each("env"), *model.each("env")]
    image = f"{model.need('repository').text}:{model.text_of('tag', usual='latest')}"
    container = {"name": text(model, "vllm"), "image": text(model, image), "command": listed(model, command),
                 "resources": _resources(model), **({"env": listed(model, env)} if env else {})}
    pod = {"containers": listed(model, [tabled(model, container)])}
    if (terms := model.get("nodeSelectorTerms")) is not None:
        required = tabled(terms, {"nodeSelectorTerms": terms})
        pod["affinity"] = tabled(terms, {"nodeAffinity": tabled(terms, {
            "requiredDuringSchedulingIgnoredDuringExecution": required})})
    return pod


def _resources(model: Entry) -> Entry:
    """The GPUs that a model asks for; with LMCache's transfers between GPUs of a pod, by CUDA_VISIBLE_DEVICES."""
    if (whole := model.get("resources")) is not None:
        return whole
    if (part := next((entry for key in _SHARES if (entry := model.get(key)) is not None), None)) is not None:
        raise part.error("asks for a part of a GPU; ksim simulates whole ones")
    kind, count = model.text_of("requestGPUType", usual="nvidia.com/gpu"), model.get("requestGPU")
    devices = model.get("lmcacheConfig", "cudaVisibleDevices")
    if count is None and devices is not None:
        count = text(devices, str(len([device for device in devices.text.split(",") if device.strip()])))
    limits = {kind: count} if count is not None and count.count else {}
    return tabled(model, {"limits": tabled(model, limits)})


def _words(model: Entry) -> Iterator[Entry]:
    """The flags that the chart gives to vLLM."""
    if model.flag_of("enableLoRA"):
        yield text(model.need("enableLoRA"), "--enable-lora")
    config = model.get("vllmConfig")
    if config is not None:
        yield from _of_config(config)
    cache = model.get("lmcacheConfig")
    if cache is not None and cache.flag_of("enabled"):
        yield from texts(cache, "--kv-transfer-config", json.dumps(_transfer(cache)))


def _of_config(config: Entry) -> Iterator[Entry]:
    fields.notes(config, "stack_config")
    if config.text_of("v0") == "1":
        raise config.need("v0").error("vLLM's V0 engine is not simulated")
    chunked, caching = config.get("enableChunkedPrefill"), config.get("enablePrefixCaching")
    if chunked is not None:
        yield text(chunked, f"--{'' if chunked.flag else 'no-'}enable-chunked-prefill")
    # The chart switches prefix caching off where the values do not say.
    yield text(caching or config, f"--{'' if caching is not None and caching.flag else 'no-'}enable-prefix-caching")
    for key, flag in _FLAGS.items():
        if (value := config.get(key)) is not None and value.text:
            yield from texts(value, f"{flag}={value.text}")
    yield from config.each("extraArgs")


def _transfer(cache: Entry) -> dict[str, Any]:
    """LMCache as vLLM's connector: between engines that prefill and decode apart, or in front of host memory."""
    size = cache.get("cpuOffloadingBufferSize")
    config: dict[str, Any] = {"kv_connector": "LMCacheConnectorV1",
                              "kv_role": cache.text_of("kvRole", usual="kv_both")}
    if cache.flag_of("enablePD"):
        return {**config, "kv_connector": "NixlConnector"}
    if size is not None and size.text.strip() not in ("", "0"):
        config["kv_connector_extra_config"] = {"lmcache.max_local_cpu_size": _gigabytes(size)}
    return config


def _transfers(values: Entry) -> Iterator[Note]:
    """What differs where LMCache sends KV between engines."""
    for model in values.each("servingEngineSpec", "modelSpec"):
        if model.flag_of("lmcacheConfig", "enablePD"):
            yield Note(model.need("lmcacheConfig", "enablePD").where, "enablePD",
                       "KV goes as with NixlConnector; LMCache's buffers are not simulated")


def _gigabytes(size: Entry) -> float:
    try:
        number = float(size.text.strip().removesuffix("Gi"))
    except ValueError:
        number = nan
    if not 0 < number < inf:
        raise size.error(f"expected a number of GB, not {size.text!r}")
    return number


def _router_of_stack(values: Entry) -> tuple[dict[str, Any], list[Note]]:
    """The router by `routerSpec.routingLogic`, and what differs."""
    logic = values.get("routerSpec", "routingLogic")
    if logic is None or logic.text in _SPLIT or not values.flag_of("routerSpec", "enableRouter", usual=True):
        return {}, []
    if logic.text not in _ROUTERS:
        raise logic.error(f"{logic.text!r} is not simulated; there are {', '.join((*_ROUTERS, *_SPLIT))}")
    router = _ROUTERS[logic.text]
    said = Note(logic.where, f"routingLogic: {logic.text}", _BY_PREFIX)
    return {"router": router}, [said] if router == "prefix_aware" else []

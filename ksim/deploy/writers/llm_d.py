"""llm-d's Helm values: of the chart llm-d-modelservice for engines, of llm-d-router for the endpoint picker."""

from typing import Any

from ksim.deploy import exporting
from ksim.deploy.exporting import Outgoing, OutgoingPool, comments, documents, picker_config
from ksim.deploy.manifests.containers import POOL
from ksim.foundation.errors import ConfigError

__all__ = ["LlmD"]

_CHART = "# Values of the Helm chart llm-d-modelservice (llm-d-incubation).\n"
_ROUTER = "# Values of llm-d's Helm chart for the router, layered on those of its guides.\n"
_FILE = "ksim-plugins.yaml"
_PARALLEL = ("--tensor-parallel-size", "--data-parallel-size")


class LlmD:
    """One pool of engines that serve or decode, and one that prefills, as the chart has them."""

    def write(self, outgoing: Outgoing) -> dict[str, str]:
        """The values; raises ConfigError for more pools than the chart has."""
        exporting.check_vllm(outgoing, "llm-d's chart")
        config, missing = picker_config(outgoing)
        prefill = _only(outgoing, ("prefill",))
        decode = _only(outgoing, ("decode", "both"))
        if decode is None:
            raise ConfigError("pools", "no pool decodes")
        values = {**_model(outgoing), **_routing(splits=prefill is not None),
                  "multinode": any(pool.machines > 1 for pool in outgoing.pools), "decode": _side(decode),
                  "prefill": _side(prefill) if prefill is not None else {"create": False, "replicas": 0}}
        if values["multinode"]:
            values["multinodeEnableLeader"] = True
        notes = comments([*outgoing.missing, *exporting.unscaled(outgoing), *missing, *exporting.unlabelled(outgoing)])
        written = {"": _CHART + notes + documents([values])}
        if config is not None:
            written["-router"] = _ROUTER + documents([_router(outgoing, config)])
        return written


def _only(outgoing: Outgoing, roles: tuple[str, ...]) -> OutgoingPool | None:
    """The pool of one of these *roles*; None if there is none."""
    named = [pool for pool in outgoing.pools if pool.role in roles]
    if len(named) > 1:
        raise ConfigError("pools", f"{', '.join(pool.name for pool in named)} are several of role {' or '.join(roles)};"
                                   " the chart llm-d-modelservice has one: write them with --to kubernetes")
    return named[0] if named else None


def _labels(outgoing: Outgoing) -> dict[str, str]:
    return {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": exporting.app(outgoing)}


def _model(outgoing: Outgoing) -> dict[str, Any]:
    return {"modelArtifacts": {"name": outgoing.model, "uri": f"hf://{outgoing.model}", "size": "1Ti",
                               "authSecretName": "llm-d-hf-token", "labels": _labels(outgoing)},
            "accelerator": {"type": "nvidia"}}


def _routing(splits: bool) -> dict[str, Any]:
    """Engines that decode for others stand behind a sidecar, which asks an engine that prefills first."""
    proxy = {"enabled": True, "connector": "nixlv2", "targetPort": 8200} if splits else {"enabled": False}
    return {"routing": {"servicePort": exporting.PORT, "proxy": proxy}}


def _side(pool: OutgoingPool) -> dict[str, Any]:
    """The values of a pool.  The chart adds the parallel sizes that it knows to the arguments."""
    port = 8200 if pool.role == "decode" else exporting.PORT
    simple = pool.machines == 1 and pool.settings.pipeline_parallel_size == 1
    container: dict[str, Any] = {"name": "vllm", "image": exporting.image(pool)}
    container |= _serving(pool) if simple else _custom(pool, port)
    if variables := exporting.env(pool):
        container["env"] = variables
    container |= {"ports": [{"containerPort": port, "name": "metrics", "protocol": "TCP"}], **exporting.probes(port),
                  "mountModelVolume": True, "volumeMounts": exporting.mounts()}
    side: dict[str, Any] = {"create": True, "replicas": pool.replicas, "parallelism": _parallelism(pool, simple)}
    if pool.name:
        side["podAnnotations"] = {POOL: pool.name}
    for key, value in exporting.product(pool).items():
        side["acceleratorTypes"] = {"labelKey": key, "labelValues": [value]}
    side |= {"containers": [container], "volumes": exporting.volumes()}
    if pool.machines > 1:
        worker = {**container, "args": [*container["args"], "--headless"]}
        side["workerTemplate"] = {"containers": [{key: worker[key] for key in ("name", "image", "command", "args")}]}
    return side


def _parallelism(pool: OutgoingPool, simple: bool) -> dict[str, int]:
    """The sizes by which the chart counts a pod's GPUs: tensor x dataLocal, on so many workers."""
    if simple:
        data = pool.settings.data_parallel_size
        return {"tensor": pool.settings.tensor_parallel_size, "data": data, "dataLocal": data, "workers": 1}
    return {"tensor": pool.gpus // pool.machines, "data": 1, "dataLocal": 1, "workers": pool.machines}


def _serving(pool: OutgoingPool) -> dict[str, Any]:
    args = [word for flag in pool.line.flags if flag.name not in _PARALLEL for word in flag.words]
    return {"modelCommand": "vllmServe", "args": args}


def _custom(pool: OutgoingPool, port: int) -> dict[str, Any]:
    """A command of its own, where the chart would count GPUs by other sizes than the engine has."""
    spread = exporting.nodes_flags() if pool.machines > 1 else []
    return {"modelCommand": "custom", "command": ["vllm", "serve"],
            "args": [*pool.line.words[2:], "--port", str(port), *spread]}


def _router(outgoing: Outgoing, config: dict[str, Any]) -> dict[str, Any]:
    picker = {"pluginsConfigFile": _FILE, "pluginsCustomConfig": {_FILE: documents([config])}}
    return {"router": {"epp": picker, "modelServers": {"matchLabels": _labels(outgoing)}}}

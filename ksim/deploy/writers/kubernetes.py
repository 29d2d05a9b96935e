"""A Kubernetes manifest: a Deployment for each pool, or a LeaderWorkerSet where a replica needs several machines."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from ksim.deploy import exporting
from ksim.deploy.exporting import Outgoing, OutgoingPool, comments, documents, picker_config
from ksim.deploy.manifests.containers import POOL, ROLE
from ksim.foundation.config import plain
from ksim.specs.pools import RollingUpdateSettings

__all__ = ["Kubernetes"]


class Kubernetes:
    """Engines behind one Service; llm-d's endpoint picker is there as a ConfigMap."""

    def write(self, outgoing: Outgoing) -> dict[str, str]:
        """The manifest; what it cannot say is in comments before it."""
        exporting.check_vllm(outgoing, "a manifest")
        config, missing = picker_config(outgoing)
        app = exporting.app(outgoing)
        tables = [_workload(outgoing, pool, app) for pool in outgoing.pools]
        for table, pool in zip([*tables], outgoing.pools, strict=True):
            tables += [*_scaler(table, pool), *_budget(table, pool)]
        tables.append(_service(app, splits=outgoing.pair_router is not None))
        if config is not None:
            tables.append(_config_map(app, config))
            missing = ["the endpoint picker itself, which reads the ConfigMap: install it with llm-d's chart"]
        elif outgoing.router is not None:
            missing = [f"router = {outgoing.router.name!r}: a Service gives a connection to a pod at random"]
        elif outgoing.pair_router is not None:
            missing = [f"pair_router = {outgoing.pair_router.name!r}: a proxy before the pods pairs prefill and decode"]
        left = [*outgoing.missing, *exporting.unscaled(outgoing, tuple(_SCALERS)), *missing]
        return {"": comments([*left, *exporting.unlabelled(outgoing)]) + documents(tables)}


#: The kinds of documents that autoscalers are, and their versions.
_SCALERS = {"hpa": ("autoscaling/v2", "HorizontalPodAutoscaler"), "keda": ("keda.sh/v1alpha1", "ScaledObject")}


def _scaler(workload: Mapping[str, Any], pool: OutgoingPool) -> Iterator[dict[str, Any]]:
    """The autoscaler of the pool whose *workload* this is, if it is one of these."""
    if pool.autoscaler is None or pool.autoscaler.name not in _SCALERS:
        return
    version, kind = _SCALERS[pool.autoscaler.name]
    name = workload["metadata"]["name"]
    most = {"maxReplicaCount": pool.most} if kind == "ScaledObject" else {}  # KEDA's own default is another one
    yield {"apiVersion": version, "kind": kind, "metadata": {"name": name},
           "spec": {"scaleTargetRef": {"apiVersion": workload["apiVersion"], "kind": workload["kind"], "name": name},
                    **most, **plain(pool.autoscaler.options)}}


def _budget(workload: Mapping[str, Any], pool: OutgoingPool) -> Iterator[dict[str, Any]]:
    """The disruption budget of the pool whose *workload* this is; none where a replica has several pods, which are what
    Kubernetes counts."""
    budget = pool.lifecycle.disruption_budget
    if budget is not None and pool.machines == 1:
        rule = ({"minAvailable": budget.min_available} if budget.min_available is not None else
                {"maxUnavailable": budget.max_unavailable})
        yield {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
               "metadata": {"name": workload["metadata"]["name"]},
               "spec": {**rule, "selector": workload["spec"]["selector"]}}


def _ends(pool: OutgoingPool) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """How replicas of the pool end: keys of a Deployment, of its pods and of their container."""
    ends, update = pool.lifecycle, pool.lifecycle.rolling_update
    rules = {"rollingUpdate": {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}}
    grace, hook = ends.termination_grace_period, ends.pre_stop
    return ({"strategy": {"type": "RollingUpdate", **rules}} if update != RollingUpdateSettings() else {},
            {} if grace is None else {"terminationGracePeriodSeconds": ceil(grace)},
            {"lifecycle": {"preStop": {"sleep": {"seconds": ceil(hook)}}}} if hook else {})


def _workload(outgoing: Outgoing, pool: OutgoingPool, app: str) -> dict[str, Any]:
    name = exporting.name_of(outgoing, pool)
    labels = {"app": app, **({"engine": name, ROLE: pool.role} if pool.name else {})}
    meta = {"name": name, "labels": labels, **({"annotations": {POOL: pool.name}} if pool.name else {})}
    if pool.machines == 1:
        template = {"metadata": {"labels": labels}, "spec": _spec(pool, ["vllm", "serve"], [*pool.line.words[2:]])}
        spec: dict[str, Any] = {"replicas": pool.replicas, **_ends(pool)[0], "selector": {"matchLabels": labels},
                                "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    words = [*pool.line.words[2:], *exporting.nodes_flags()]
    leader = {"metadata": {"labels": {**labels, "part": "leader"}}, "spec": _spec(pool, ["vllm", "serve"], words)}
    worker = {"metadata": {"labels": {**labels, "part": "worker"}},
              "spec": _spec(pool, ["vllm", "serve"], [*words, "--headless"], serves=False)}
    group = {"size": pool.machines, "restartPolicy": "RecreateGroupOnPodRestart", "leaderTemplate": leader,
             "workerTemplate": worker}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": meta,
            "spec": {"replicas": pool.replicas, "leaderWorkerTemplate": group}}


def _spec(pool: OutgoingPool, command: list[str], args: list[str], serves: bool = True) -> dict[str, Any]:
    """A pod of the pool; one that does not serve has no port."""
    gpus = {"nvidia.com/gpu": str(pool.gpus // pool.machines)}
    container: dict[str, Any] = {"name": "vllm", "image": exporting.image(pool), "command": command, "args": args}
    if variables := exporting.env(pool):
        container["env"] = variables
    container["resources"] = {"limits": gpus, "requests": gpus}
    _, of_pod, of_container = _ends(pool)
    container |= of_container
    if serves:
        container |= {"ports": [{"name": "http", "containerPort": exporting.PORT}], **exporting.probes(exporting.PORT)}
    container["volumeMounts"] = exporting.mounts()
    selector = exporting.product(pool)
    return {**({"nodeSelector": selector} if selector else {}), **of_pod, "containers": [container],
            "volumes": exporting.volumes()}


def _service(app: str, splits: bool) -> dict[str, Any]:
    """The Service of all engines that clients may ask: all, or those that decode."""
    selector = {"app": app, **({ROLE: "decode"} if splits else {})}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": app, "labels": {"app": app}},
            "spec": {"selector": selector, "ports": [{"name": "http", "port": 80, "targetPort": exporting.PORT}]}}


def _config_map(app: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{app}-epp", "labels": {"app": app}},
            "data": {"epp-config.yaml": documents([config])}}

"""The kinds of a manifest's documents: those that make pods, those that are passed over by name, and all others."""

import re
from collections.abc import Callable, Iterator, Mapping

from attrs import evolve

from ksim.deploy.launches import Note
from ksim.deploy.manifests import fields
from ksim.deploy.manifests.pods import Pods
from ksim.deploy.texts.entries import RENDER, TEMPLATE, Entry
from ksim.foundation.errors import did_you_mean

__all__ = ["KINDS", "POOL", "config_maps", "idle_kind", "kind_of", "unlisted"]

#: The annotation in which `ksim export` keeps the name of a pool.
POOL = "ksim/pool"
_SCALES = "the number of engines stays as the manifest has it; ksim does not scale them"
_SERVES = "starts no engine"
#: Kinds that change nothing here, and why.
_IDLE = {
    **dict.fromkeys(("HorizontalPodAutoscaler", "ScaledObject", "VariantAutoscaling", "PodAutoscaler",
                     "DynamoGraphDeploymentScalingAdapter"), _SCALES),
    **dict.fromkeys((
        "ClusterIssuer", "ClusterRole", "ClusterRoleBinding", "ComputeDomain", "ConfigMap", "CronJob",
        "CustomResourceDefinition", "DestinationRule", "Gateway", "GatewayClass", "GCPBackendPolicy",
        "HealthCheckPolicy", "HTTPRoute", "InferenceModel", "InferenceObjective", "InferencePool", "Ingress", "Job",
        "LimitRange", "Namespace", "NetworkPolicy", "PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget",
        "PodMonitor", "PriorityClass", "PrometheusRule", "ResourceClaim", "ResourceClaimTemplate", "ResourceQuota",
        "Role", "RoleBinding", "Secret", "SealedSecret", "ExternalSecret", "Service", "ServiceAccount",
        "ServiceMonitor", "StorageClass", "VirtualService", "EndpointSlice", "Endpoints", "Route"), _SERVES),
}
_LISTS = re.compile(r"[A-Za-z]*List")
_READ_WORKLOAD = ("replicas", "template", "suspend")


def kind_of(document: Entry) -> str:
    """The kind of a *document*; empty where it is no object of Kubernetes."""
    if not document.is_table:
        return ""
    kind, version = document.get("kind"), document.get("apiVersion")
    return kind.text if kind is not None and version is not None and not kind.is_table else ""


def unlisted(documents: list[Entry]) -> Iterator[Entry]:
    """The *documents*, with the items of lists in place of those."""
    for document in documents:
        if _LISTS.fullmatch(kind_of(document)) and document.get("items") is not None:
            yield from unlisted(document.each("items"))
        else:
            yield document


def config_maps(documents: list[Entry]) -> dict[str, dict[str, str]]:
    """The data of ConfigMaps, by name."""
    tables = [(_name(document), document.get("data")) for document in documents if kind_of(document) == "ConfigMap"]
    return {name: {key: value.text for key, value in data.table.items() if not value.is_null}
            for name, data in tables if data is not None}


def idle_kind(document: Entry) -> Note:
    """The note on a *document* that starts no engine; raises ConfigError for an unknown kind."""
    kind = kind_of(document)
    if kind in _IDLE:
        return Note(document.where, f"{kind} {_name(document)}", _IDLE[kind])
    if kind == "Kustomization" or (not kind and document.get("resources") and document.get("patches")):
        raise document.error("is a kustomization; build it first: kubectl kustomize FOLDER > built.yaml")
    if kind == "Config" and document.get("clusters") is not None:
        raise document.error("is a kubeconfig, which says how to reach a cluster; give the manifest of what runs there:"
                             " kubectl get deployment NAME -o yaml")
    if not kind:
        raise document.error(f"{RENDER}" if TEMPLATE in document.pasted.text else "has no kind and apiVersion, so it is"
                             " no object of Kubernetes")
    raise document.need("kind").error(f"{kind!r} is no kind that ksim reads{did_you_mean(kind, [*KINDS, *_IDLE])};"
                                      f" engines are read from {', '.join(KINDS)}, DynamoGraphDeployment")


def _name(document: Entry) -> str:
    name = document.get("metadata", "annotations", POOL) or document.get("metadata", "name")
    return name.text if name is not None else "without a name"


def _workload(document: Entry) -> Iterator[Pods]:
    """A Deployment, StatefulSet or ReplicaSet."""
    spec = document.need("spec")
    yield Pods(_name(document), spec.need("template"), _replicas(spec),
               idle=tuple(fields.notes(spec, _READ_WORKLOAD, fields.WORKLOAD)))


def _pod(document: Entry) -> Iterator[Pods]:
    yield Pods(_name(document), document, 1)


def _leader_worker_set(document: Entry) -> Iterator[Pods]:
    yield _group(document.need("spec"), _name(document), 1)


def _disaggregated_set(document: Entry) -> Iterator[Pods]:
    """A DisaggregatedSet: `slices` times the LeaderWorkerSets of all roles."""
    spec = document.need("spec")
    slices = spec.get("slices")
    for role in spec.each("roles"):
        name = role.need("name").text
        group = _group(role.get("spec") or role, f"{_name(document)}-{name}", slices.count if slices else 1)
        yield evolve(group, role=name if name in ("prefill", "decode") else "")


def _group(spec: Entry, name: str, times: int) -> Pods:
    template = spec.need("leaderWorkerTemplate")
    size_entry = template.get("size")
    size = size_entry.count if size_entry is not None else 1
    if not size:
        raise template.need("size").error("a group has one pod or more")
    variables = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": f"{name}-0"}
    idle = [*fields.notes(spec, ("replicas", "leaderWorkerTemplate", "name"), fields.WORKLOAD),
            *fields.notes(template, ("size", "leaderTemplate", "workerTemplate"), fields.GROUP)]
    return Pods(name, template.get("leaderTemplate") or template.need("workerTemplate"), _replicas(spec) * times, size,
                "", variables, tuple(idle))


def _replicas(spec: Entry) -> int:
    replicas = spec.get("replicas")
    return replicas.count if replicas is not None else 1


#: The kinds that make pods.
KINDS: Mapping[str, Callable[[Entry], Iterator[Pods]]] = {
    "Deployment": _workload, "StatefulSet": _workload, "ReplicaSet": _workload, "Pod": _pod,
    "LeaderWorkerSet": _leader_worker_set, "DisaggregatedSet": _disaggregated_set,
}

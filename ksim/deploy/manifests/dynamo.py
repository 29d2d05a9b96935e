"""Dynamo's graphs: a DynamoGraphDeployment's frontend is the router, its workers are pools."""

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from ksim.deploy.commands.command import Word
from ksim.deploy.launches import Deployed, Launch, Note, Wanted
from ksim.deploy.manifests import fields, pods
from ksim.deploy.manifests.containers import Surroundings, environment, words_of
from ksim.deploy.manifests.frontend import Frontend
from ksim.deploy.manifests.made import listed, tabled, text
from ksim.deploy.texts.entries import Entry

__all__ = ["KIND", "deployed"]

KIND = "DynamoGraphDeployment"
_WHY = "how Dynamo starts and watches a component changes no schedule"
#: Fields of a component without effect: of v1alpha1, then of v1beta1.
_IDLE: Mapping[str, str] = {
    **dict.fromkeys((
        "annotations", "autoscaling", "checkpoint", "dynamoNamespace", "dynamoComponent", "envFromSecret",
        "extraPodMetadata", "globalDynamoNamespace", "ingress", "labels", "livenessProbe", "modelRef", "readinessProbe",
        "scalingAdapter", "serviceName", "sharedMemory", "topologyConstraint", "volumeMounts", "failover",
        "gpuMemoryService", "experimental", "minAvailable"), _WHY),
    **dict.fromkeys(("runtimeVersionOverride", "sharedMemorySize", "compilationCache", "frontendSidecar"), _WHY),
}
_READ = ("name", "type", "componentType", "subComponentType", "replicas", "multinode", "resources", "envs",
         "extraPodSpec", "podTemplate")
_SPEC = ("services", "components", "envs", "env", "backendFramework")
_SPEC_IDLE = dict.fromkeys(("annotations", "labels", "pvcs", "restart", "topologyConstraint", "experimental",
                            "priorityClassName", "backendFrameworkVersion"), _WHY)


@frozen
class _Component:
    """A component of a graph, by its `name`, `kind` and `role`."""

    name: str
    kind: str
    role: str
    entry: Entry
    pod: Entry


def deployed(graph: Entry, maps: Mapping[str, Mapping[str, str]], wanted: Wanted) -> Deployed:
    """The engines of all workers of *graph*, and the router that its frontend is."""
    spec = graph.need("spec")
    idle = fields.notes(spec, _SPEC, _SPEC_IDLE)
    launches: list[Launch] = []
    frontend = Frontend({"name": "round_robin"})
    for component in _components(spec):
        idle += fields.notes(component.entry, _READ, _IDLE)
        if component.kind == "frontend":
            frontend = _frontend(component.pod, maps)
        elif component.kind in ("worker", "main", "prefill", "decode", ""):
            part = pods.deployed(_pods(component), maps, wanted)
            launches += part.launches
            idle += part.idle
        else:
            idle.append(_other(component))
    launches = _with_roles(launches)
    splits = any(launch.role == "prefill" for launch in launches)
    router = {"pair_router": frontend.pair_router} if splits else {"router": dict(frontend.router)}
    several = len(launches) > 1 or any(launch.replicas > 1 for launch in launches)
    return Deployed(tuple(launches), router if several else {}, (*idle, *frontend.idle), frontend.remarks)


def _with_roles(launches: Sequence[Launch]) -> list[Launch]:
    """*launches*; where none prefills for others, those that are called decode workers serve requests alone."""
    if any(launch.role == "prefill" for launch in launches):
        return [*launches]
    return [evolve(launch, role="both") for launch in launches]


def _other(component: _Component) -> Note:
    """The note on a component that is neither frontend nor worker; raises ConfigError for one that would matter."""
    if component.kind == "epp":
        raise component.entry.error("an endpoint picker of Dynamo's is not simulated; take it out, and say which router"
                                    " stands for it in the scenario: router = \"dynamo_kv\"")
    if component.kind in ("encode", "encoder", "processor"):
        raise component.entry.error(f"a component of type {component.kind} is not simulated: ksim's engines encode"
                                    " images themselves")
    return Note(component.entry.where, component.name, f"a component of type {component.kind} starts no engine")


def _components(spec: Entry) -> Iterator[_Component]:
    shared = [*spec.each("envs"), *spec.each("env")]
    services = spec.get("services")
    for name, entry in (services.table.items() if services is not None else ()):
        yield _component(name, entry, _pod_of_service(entry, shared))
    for entry in spec.each("components"):
        yield _component(entry.need("name").text, entry, _pod_of_component(entry, shared))


def _component(name: str, entry: Entry, pod: Entry) -> _Component:
    kind = entry.get("componentType") or entry.get("type")
    sub = entry.get("subComponentType")
    said = kind.text.lower() if kind is not None else "frontend" if name.lower() == "frontend" else ""
    role = sub.text if sub is not None else said if said in ("prefill", "decode") else ""
    if role not in ("", "prefill", "decode"):
        raise entry.error(f"a worker of type {role} is not simulated; there are prefill and decode")
    return _Component(name, said, role, entry, pod)


def _pods(component: _Component) -> pods.Pods:
    replicas, count = component.entry.get("replicas"), component.entry.get("multinode", "nodeCount")
    size = max(count.count, 1) if count is not None else 1
    variables = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"}
    return pods.Pods(component.name, component.pod, replicas.count if replicas is not None else 1, size, component.role,
                     variables if size > 1 else {})


def _frontend(pod: Entry, maps: Mapping[str, Mapping[str, str]]) -> Frontend:
    around = Surroundings(maps)
    for container in pod.need("spec").each("containers"):
        said: dict[str, Word] = environment(container, around)
        return Frontend.of(words_of(container, pod, around, "dynamo.frontend"), said)
    return Frontend({"name": "round_robin"})


def _pod_of_service(service: Entry, shared: list[Entry]) -> Entry:
    """The pod of a service of v1alpha1, as its operator makes it of `extraPodSpec`, `envs` and `resources`."""
    extra, main = service.get("extraPodSpec"), service.get("extraPodSpec", "mainContainer")
    container = dict(main.table) if main is not None else {}
    variables = [*shared, *service.each("envs"), *(main.each("env") if main is not None else ())]
    if variables:
        container["env"] = listed(service, variables)
    if (resources := service.get("resources")) is not None and "resources" not in container:
        container["resources"] = resources
    container.setdefault("name", text(service, "main"))
    spec = {key: value for key, value in (extra.table if extra is not None else {}).items() if key != "mainContainer"}
    others = extra.each("containers") if extra is not None else []
    spec["containers"] = listed(service, [tabled(main or service, container), *others])
    return tabled(service, {"spec": tabled(service, spec)})


def _pod_of_component(component: Entry, shared: list[Entry]) -> Entry:
    """The pod of a component of v1beta1: its `podTemplate`, in which the first container is the component's."""
    template = component.get("podTemplate")
    spec = template.get("spec") if template is not None else None
    if template is None or spec is None or not spec.each("containers"):
        return tabled(component, {"spec": tabled(component, {"containers": listed(component, [])})})
    first, *others = spec.each("containers")
    container = {**first.table, "env": listed(first, [*shared, *first.each("env")])}
    inner = {**spec.table, "containers": listed(spec, [tabled(first, container), *others])}
    return tabled(template, {**template.table, "spec": tabled(spec, inner)})

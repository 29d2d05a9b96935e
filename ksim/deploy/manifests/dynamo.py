"""A DynamoGraphDeployment: its frontend is the router, as its variables and flags say, and its workers are pools."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from attrs import evolve, frozen

from ksim.deploy.commands import Deployed, EngineLaunch, ImportOptions, Maker, Note, Word
from ksim.deploy.manifests import containers, fields
from ksim.deploy.manifests.containers import Surroundings, environment, words_of
from ksim.deploy.manifests.fields import listed, tabled, text
from ksim.deploy.texts import Entry
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError


@cache
def _known() -> Mapping[str, Any]:
    """The flags of the frontend: ksim/data/flags/dynamo-frontend.toml."""
    return catalog.load("flags", "dynamo-frontend")


@frozen
class DynamoFrontend:
    """How requests are routed, and the words that have no part in it."""

    router: Mapping[str, Any]
    idle: tuple[Note, ...] = ()
    remarks: tuple[Note, ...] = ()

    @classmethod
    def of(cls, words: Sequence[Word], environment: Mapping[str, Word]) -> "DynamoFrontend":
        """The frontend that *words* start in *environment*; raises ConfigError for flags that are not known."""
        said, known = {**dict(_variables(environment)), **_flags(words)}, _known()
        mode = said.pop("router-mode", Word("round-robin", ""))
        modes: Mapping[str, str] = known["modes"]
        if mode.text not in modes:
            raise ConfigError(mode.where, f"router mode {mode.text!r} is not simulated; there are {', '.join(modes)}")
        options: dict[str, Any] = {}
        idle = []
        for flag, word in said.items():
            if flag in known["options"]:
                options[known["options"][flag]] = _number(flag, word)
            elif flag in known["events"]:
                options["use_kv_events"] = known["events"][flag] == (word.text.lower() not in ("false", "0"))
            elif flag in known["refused"]:
                raise ConfigError(word.where, f"--{flag} is not simulated: {known['refused'][flag]}")
            else:
                idle.append(Note(word.where, f"--{flag}", "how clients reach the frontend changes no routing"))
        router = modes[mode.text]
        if router != "dynamo_kv":
            idle += [Note(mode.where, key, f"has no effect with router mode {mode.text}") for key in options]
            options = {}
        return cls({"name": router, **options}, tuple(idle))

    @property
    def pair_router(self) -> dict[str, Any]:
        """The same for prefill and decode apart: by caches for prefill, by load for decode, as Dynamo does."""
        decode = dict(self.router)
        if decode["name"] == "dynamo_kv":
            decode |= {"overlap_score_credit": 0.0}
        return {"name": "each_side", "prefill": dict(self.router), "decode": decode}


def _variables(environment: Mapping[str, Word]) -> Iterator[tuple[str, Word]]:
    """The flags that variables such as DYN_ROUTER_MODE stand for."""
    known = _known()
    for name, word in environment.items():
        flag = name.removeprefix("DYN_").lower().replace("_", "-")
        if name.startswith("DYN_") and flag in (*known["options"], *known["events"], *known["refused"], "router-mode"):
            yield flag, word


def _flags(words: Sequence[Word]) -> dict[str, Word]:
    """Flags and their values, behind `python3 -m dynamo.frontend`."""
    flags, known = dict[str, Word](), _known()
    names = {*known["options"], *known["events"], *known["refused"], *known["idle"], "router-mode"}
    rest = [*words]
    while rest:
        word = rest.pop(0)
        if not word.text.startswith("--"):
            continue
        flag, equals, value = word.text[2:].partition("=")
        if flag not in names:
            raise ConfigError(word.where, f"--{flag} is no flag of Dynamo's frontend that ksim knows")
        if not equals and rest and not rest[0].text.startswith("--") and flag not in known["events"]:
            value = rest.pop(0).text
        flags[flag] = Word(value, word.where)
    return flags


def _number(flag: str, word: Word) -> float | int:
    text = word.text.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        raise ConfigError(word.where, f"--{flag}: expected a number, not {text!r}") from None


KIND = "DynamoGraphDeployment"
@frozen
class _Component:
    """A component of a graph, by its `name`, `kind` and `role`."""

    name: str
    kind: str
    role: str
    entry: Entry
    pod: Entry


def deployed(graph: Entry, maps: Mapping[str, Mapping[str, str]], wanted: ImportOptions) -> Deployed:
    """The engines of all workers of *graph*, and the router that its frontend is."""
    spec = graph.need("spec")
    idle = fields.notes(spec, "dynamo_graph")
    launches: list[EngineLaunch] = []
    others = {_adapter(graph, component.name) for component in _components(spec)}
    frontend = DynamoFrontend({"name": "round_robin"})
    for component in _components(spec):
        idle += fields.notes(component.entry, "dynamo_component")
        if component.kind == "frontend":
            frontend = _frontend(component.pod, maps)
        elif component.kind in ("worker", "main", "prefill", "decode", ""):
            part = containers.deployed(_pods(component, graph), maps, wanted)
            launches += part.launches
            idle += part.idle
        else:
            idle.append(_other(component))
    launches = _with_roles(launches)
    splits = any(launch.role == "prefill" for launch in launches)
    router = {"pair_router": frontend.pair_router} if splits else {"router": dict(frontend.router)}
    return Deployed(tuple(launches), {}, (*idle, *frontend.idle), frontend.remarks, others=frozenset(others),
                    of_fleet=router)


def _with_roles(launches: Sequence[EngineLaunch]) -> list[EngineLaunch]:
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
    said = kind.text.lower() if kind is not None else "frontend" if name.lower() == "frontend" else ""
    role = entry.text_of("subComponentType", usual=said if said in ("prefill", "decode") else "")
    if role not in ("", "prefill", "decode"):
        raise entry.error(f"a worker of type {role} is not simulated; there are prefill and decode")
    return _Component(name, said, role, entry, pod)


def _adapter(graph: Entry, name: str) -> tuple[str, str]:
    """The kind and the name of what autoscalers scale a component of *graph* by, which Dynamo's operator makes."""
    return "DynamoGraphDeploymentScalingAdapter", f"{graph.text_of('metadata', 'name')}-{name.lower()}"


def _pods(component: _Component, graph: Entry) -> containers.Pods:
    replicas = component.entry.get("replicas")
    maker = Maker(component.entry.where, *_adapter(graph, component.name), replicas.count if replicas else None)
    size = max(component.entry.count_of("multinode", "nodeCount"), 1)
    variables = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"}
    return containers.Pods(component.name, component.pod, component.entry.count_of("replicas"), size, component.role,
                           variables if size > 1 else {}, maker=maker)


def _frontend(pod: Entry, maps: Mapping[str, Mapping[str, str]]) -> DynamoFrontend:
    around = Surroundings(maps)
    for container in pod.need("spec").each("containers"):
        said: dict[str, Word] = environment(container, around)
        return DynamoFrontend.of(words_of(container, pod, around, "dynamo.frontend"), said)
    return DynamoFrontend({"name": "round_robin"})


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

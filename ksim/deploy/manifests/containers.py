"""Documents of Kubernetes to launches: kinds to pods, pods to containers, containers to commands that start engines."""

import re
from collections.abc import Callable, Iterator, Mapping

from attrs import evolve, field, frozen

from ksim.deploy.commands import (
    Deployed,
    EngineLaunch,
    ImportOptions,
    Maker,
    Note,
    ShellCommand,
    Word,
    launch_of,
    program_of,
    script_place,
)
from ksim.deploy.manifests import fields
from ksim.deploy.manifests.fields import gpu_of
from ksim.deploy.shell.script import Script, Simple
from ksim.deploy.texts import RENDER, TEMPLATE, Embedded, Entry, Pasted
from ksim.foundation.errors import did_you_mean


def commands_of_script(script: Entry, text: str, command: ShellCommand) -> Iterator[ShellCommand]:
    """The commands of *script*, whose *text* has the cluster's variables filled in, that start engines.

    They run as *command* does: in its environment, its image and with its files.
    """
    environment = {name: word.text for name, word in command.environment.items()}
    pasted = Embedded(text, "", command.folder, script)
    files = dict(command.files)
    for simple in Script(pasted, environment).commands():
        simple.keep_document(files)
        if _is_engine([word.text for word in simple.words]):
            yield _command_of_script(simple, pasted, evolve(command, files=dict(files)))


def lines_of_script(script: Entry, text: str, command: ShellCommand) -> Iterator[tuple[Word, ...]]:
    """The words of all commands of *script*, which runs as *command* does."""
    environment = {name: word.text for name, word in command.environment.items()}
    pasted = Embedded(text, "", command.folder, script)
    for simple in Script(pasted, environment).commands():
        yield simple.words


def _command_of_script(simple: Simple, pasted: Pasted, around: ShellCommand) -> ShellCommand:
    where = pasted.at(simple.line)
    simple.check_unconditional(where)
    environment = {**around.environment, **simple.exported, **simple.assigned}
    return evolve(around, words=simple.words, where=where, environment=environment)


def _is_engine(names: list[str]) -> bool:
    return program_of(ShellCommand.of(names, "")) is not None


#: The value of a variable that only the cluster knows, such as the address of a pod.
OUTSIDE = "<set-by-the-cluster>"
_BUILT = re.compile(r"(.*(?:llm-d|dynamo|lmcache)[^:@]*)[:@].*")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
#: Accelerators that ksim does not know, by the names of their resources.
_FOREIGN = re.compile(r"amd\.com/gpu|google\.com/tpu|gpu\.intel\.com/.+|intel\.com/.*gaudi|habana\.ai/.+|huawei\.com/.+"
                      r"|aws\.amazon\.com/neuron.*|rebellions\.ai/.+|furiosa\.ai/.+")


@frozen
class Surroundings:
    """What a container finds in its cluster: ConfigMaps by name, and variables that its controller sets."""

    maps: Mapping[str, Mapping[str, str]] = field(factory=dict)
    variables: Mapping[str, str] = field(factory=dict)


def commands(container: Entry, pod: Entry, around: Surroundings) -> Iterator[ShellCommand]:
    """The commands of *container*, one of *pod*, that start engines."""
    whole = _command(container, pod, around)
    words = [*container.each("command"), *container.each("args")]
    ran: Iterator[ShellCommand] = iter(())
    if (script := script_place([word.text for word in whole.words])) is not None:
        ran = commands_of_script(words[script], whole.words[script].text, whole)
    elif program_of(whole) is not None:
        ran = iter((whole,))
    for command in ran:
        own = {name: word for name, word in command.environment.items() if name not in around.variables}
        yield evolve(command, environment=own)


def words_of(container: Entry, pod: Entry, around: Surroundings, module: str) -> list[Word]:
    """The words behind `python -m` *module*, with which *container* starts something that is no engine."""
    whole = _command(container, pod, around)
    words = [*container.each("command"), *container.each("args")]
    lines = [list(whole.words)]
    if (script := script_place([word.text for word in whole.words])) is not None:
        lines = [list(words) for words in lines_of_script(words[script], whole.words[script].text, whole)]
    for line in lines:
        places = [index for index, word in enumerate(line) if word.text == module]
        if places:
            return line[places[0] + 1:]
    return [] if script is not None else lines[0]


def _command(container: Entry, pod: Entry, around: Surroundings) -> ShellCommand:
    variables = environment(container, around)
    values = {name: word.text for name, word in variables.items()}
    words = [Word(_referred(item.text, values), item.where)
             for item in (*container.each("command"), *container.each("args"))]
    return ShellCommand(tuple(words), container.where, variables, _image(container), _files(container, pod, around),
                        container.pasted.folder)


def _image(container: Entry) -> Word | None:
    """The image; of those that llm-d, Dynamo and LMCache build, the tag is their own release, and no engine's."""
    image = container.get("image")
    if image is None:
        return None
    text = image.text
    return Word(_BUILT.sub(r"\1", text) if _BUILT.match(text) else text, image.where)


def _referred(text: str, values: Mapping[str, str]) -> str:
    """*text* with `$(NAME)` filled in as Kubernetes does; a name without a value stays."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def environment(container: Entry, around: Surroundings) -> dict[str, Word]:
    """Variables by name; one whose value only the cluster knows is OUTSIDE."""
    known = {name: Word(value, container.where) for name, value in around.variables.items()}
    for source in container.each("envFrom"):
        if (reference := source.get("configMapRef", "name")) is not None:
            known |= {source.text_of("prefix") + key: Word(value, source.where)
                      for key, value in around.maps.get(reference.text, {}).items()}
    for variable in container.each("env"):
        name = variable.need("name").text
        value = _value(variable, around)
        if value is not None:
            known[name] = Word(_referred(value, {key: word.text for key, word in known.items()}), variable.where)
        else:
            known[name] = Word(OUTSIDE, variable.where)
    return known


def _value(variable: Entry, around: Surroundings) -> str | None:
    """The value of an entry of `env`, None where only the cluster knows it."""
    key = variable.get("valueFrom", "configMapKeyRef", "key")
    if key is not None:
        name = variable.need("valueFrom", "configMapKeyRef", "name").text
        return around.maps.get(name, {}).get(key.text)
    if variable.get("valueFrom") is not None:
        return None
    return variable.text_of("value")


def _files(container: Entry, pod: Entry, around: Surroundings) -> dict[str, str]:
    """The files of ConfigMaps that *container* mounts, by path."""
    volumes = {volume.need("name").text: volume for volume in pod.each("volumes")}
    files: dict[str, str] = {}
    for mount in container.each("volumeMounts"):
        volume = volumes.get(mount.need("name").text)
        path = mount.get("mountPath")
        name = volume.get("configMap", "name") if volume is not None else None
        if volume is None or name is None or path is None:
            continue
        contents = _shown(volume, around.maps.get(name.text, {}))
        if (part := mount.get("subPath")) is not None:
            contents = {"": contents[part.text]} if part.text in contents else {}
        files |= {f"{path.text.rstrip('/')}/{key}".rstrip("/"): text for key, text in contents.items()}
    return files


def _shown(volume: Entry, contents: Mapping[str, str]) -> Mapping[str, str]:
    """The files of a ConfigMap's volume: all of its keys, or its `items`."""
    items = volume.each("configMap", "items")
    if not items:
        return contents
    return {item.need("path").text: contents[item.need("key").text] for item in items
            if item.need("key").text in contents}


def gpus(container: Entry) -> int | None:
    """How many of NVIDIA's GPUs *container* asks for; None where it asks for none by number.

    Raises ConfigError for accelerators of others, and for parts of a GPU.
    """
    asked: int | None = None
    for kind in ("limits", "requests"):
        table = container.get("resources", kind)
        for name, amount in (table.table if table is not None else {}).items():
            if _FOREIGN.fullmatch(name):
                raise amount.error(f"asks for {name}; ksim simulates NVIDIA's GPUs")
            if name.startswith("nvidia.com/mig-") or name in ("nvidia.com/gpu.shared", "nvidia.com/gpumem"):
                raise amount.error(f"asks for {name}, a part of a GPU; ksim simulates whole ones")
            if name in ("nvidia.com/gpu", "gpu") and asked is None:
                asked = amount.count
    return asked


#: The label by which llm-d, and a manifest that `ksim export` wrote, tell engines that prefill from those that decode.
ROLE = "llm-d.ai/role"
_ROLES = {"prefill": "prefill", "decode": "decode", "both": "both", "prefill-decode": "both"}


@frozen
class Pods:
    """The pods that a document asks for: `replicas` engines, each of `size` pods."""

    name: str
    template: Entry
    """The leader's pod, with its `metadata` and `spec`."""
    replicas: int
    size: int = 1
    role: str = ""
    """prefill, decode or both; empty where the template's labels may say."""
    variables: Mapping[str, str] = field(factory=dict)
    """What the controller sets in their environment."""
    idle: tuple[Note, ...] = ()
    maker: Maker | None = None
    """What an autoscaler names to scale them; None for pods that nothing can scale."""

    @property
    def spec(self) -> Entry:
        return self.template.need("spec")


def deployed(pods: Pods, maps: Mapping[str, Mapping[str, str]], wanted: ImportOptions) -> Deployed:
    """The engines of *pods*, if they start any."""
    spec = pods.spec
    around = Surroundings(maps, pods.variables)
    idle = [*pods.idle, *fields.notes(spec, "pod")]
    launches: list[EngineLaunch] = []
    for container in spec.each("containers"):
        ran = [launch_of(command, wanted) for command in commands(container, spec, around)]
        asked = gpus(container)
        if ran:
            idle += fields.notes(container, "container")
            launches += [_placed(launch, container, asked, pods, wanted) for launch in ran]
        elif asked:
            raise container.error(_nothing(container, asked))
        else:
            name = container.text_of("name", usual="container")
            idle.append(Note(container.where, name, "starts no engine, and has no GPU"))
    if not launches:
        others = frozenset({(pods.maker.kind, pods.maker.name)}) if pods.maker is not None else frozenset()
        return Deployed((), idle=(Note(pods.template.where, pods.name, "its pods start no engine"),), others=others)
    if not pods.replicas and pods.maker is None:
        return Deployed((), idle=(Note(pods.template.where, pods.name, "has 0 replicas"),))
    first = evolve(launches[0], idle=(*launches[0].idle, *idle))
    return Deployed((first, *launches[1:]))


def _nothing(container: Entry, asked: int) -> str:
    image = container.text_of("image")
    command = " ".join([*(item.text for item in (*container.each("command"), *container.each("args")))][:3])
    said = f"runs {command[:60]!r}" if command else "has no command" + (f", and image {image}" if image else "")
    return (f"asks for {asked} GPUs, {said}, and starts no engine that ksim knows: expected `vllm serve MODEL`,"
            f" `python -m sglang.launch_server` or `trtllm-serve MODEL` in command and args")


def _placed(launch: EngineLaunch, container: Entry, asked: int | None, pods: Pods,
            wanted: ImportOptions) -> EngineLaunch:
    """*launch* as often as its pods are there, on their GPU; raises ConfigError where they have too few."""
    if asked is None and not pods.spec.each("resourceClaims"):
        raise container.error("asks for no GPU: resources.limits has no nvidia.com/gpu, and ksim simulates engines on"
                              " NVIDIA's GPUs")
    named = {} if wanted.gpu or wanted.system else gpu_of(pods.spec)
    remarks = list(_fits(launch, container, asked * pods.size, pods)) if asked is not None else []
    own = re.sub(r"[^A-Za-z0-9_-]", "-", pods.name)
    labels = pods.template.get("metadata", "labels") if pods.size == 1 else None
    maker = evolve(pods.maker, pod=pods.spec, container=container, labels=labels) if pods.maker is not None else None
    return evolve(launch, name=own, replicas=launch.replicas * pods.replicas, role=_role(pods) or launch.role,
                  hardware={**launch.hardware, **named}, remarks=(*launch.remarks, *remarks), maker=maker)


def _role(pods: Pods) -> str:
    label = pods.template.get("metadata", "labels", ROLE)
    if pods.role or label is None:
        return pods.role
    if label.text not in _ROLES:
        raise label.error(f"{label.text!r} is no role that ksim knows: {', '.join(_ROLES)}")
    return _ROLES[label.text]


def _fits(launch: EngineLaunch, container: Entry, there: int, pods: Pods) -> list[Note]:
    """Notes on the GPUs that are *there*; raises ConfigError if the engine needs more."""
    needed = launch.gpus
    if not launch.replicas or there == needed:
        return _apart(container, there, pods)
    sizes = " x ".join(f"{key} {value}" for key, value in launch.sizes.items()) or "one GPU"
    pod = f"{pods.size} pods have {there}" if pods.size > 1 else f"its pod has {there}"
    if there < needed:
        raise container.error(f"the engine needs {needed} GPUs ({sizes}), and {pod}: resources.limits.nvidia.com/gpu")
    return [Note(container.where, f"nvidia.com/gpu: {there}", f"the engine uses {needed} of them ({sizes})")]


def _apart(container: Entry, there: int, pods: Pods) -> list[Note]:
    """A remark where the pods of an engine have less than a node's GPUs each: ksim keeps such an engine together."""
    if pods.size == 1 or there // pods.size >= 4:
        return []
    return [Note(container.where, f"size: {pods.size}", f"ksim places the {there} GPUs of an engine in one node if they"
                                                        " fit; the pods may be on several")]


#: The annotation in which `ksim export` keeps the name of a pool.
POOL = "ksim/pool"
_LISTS = re.compile(r"[A-Za-z]*List")


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
    kind, idle = kind_of(document), fields.without_effect("kinds")
    if kind in idle:
        return Note(document.where, f"{kind} {_name(document)}", idle[kind])
    if kind == "Kustomization" or (not kind and document.get("resources") and document.get("patches")):
        raise document.error("is a kustomization; build it first: kubectl kustomize FOLDER > built.yaml")
    if kind == "Config" and document.get("clusters") is not None:
        raise document.error("is a kubeconfig, which says how to reach a cluster; give the manifest of what runs there:"
                             " kubectl get deployment NAME -o yaml")
    if not kind:
        raise document.error(f"{RENDER}" if TEMPLATE in document.pasted.text else "has no kind and apiVersion, so it is"
                             " no object of Kubernetes")
    raise document.need("kind").error(f"{kind!r} is no kind that ksim reads{did_you_mean(kind, [*KINDS, *idle])};"
                                      f" engines are read from {', '.join(KINDS)}, DynamoGraphDeployment")


def _name(document: Entry) -> str:
    name = document.get("metadata", "annotations", POOL) or document.get("metadata", "name")
    return name.text if name is not None else "without a name"


def _workload(document: Entry) -> Iterator[Pods]:
    """A Deployment, StatefulSet or ReplicaSet."""
    spec = document.need("spec")
    yield Pods(_name(document), spec.need("template"), spec.count_of("replicas"),
               idle=tuple(fields.notes(spec, "workload")), maker=_maker(document, spec.need("template")))


def _maker(document: Entry, template: Entry) -> Maker | None:
    """What scales with the `replicas` of *document*, by its own name; None where it has none."""
    name, replicas = document.get("metadata", "name"), document.get("spec", "replicas")
    stated = None if replicas is None else replicas.count
    return None if name is None else Maker(template.where, kind_of(document), name.text, stated,
                                           document.get("spec", "strategy"))


def _pod(document: Entry) -> Iterator[Pods]:
    yield Pods(_name(document), document, 1)


def _leader_worker_set(document: Entry) -> Iterator[Pods]:
    made = _group(document.need("spec"), _name(document), 1)
    yield evolve(made, maker=_maker(document, made.template))


def _disaggregated_set(document: Entry) -> Iterator[Pods]:
    """A DisaggregatedSet: `slices` times the LeaderWorkerSets of all roles."""
    spec = document.need("spec")
    for role in spec.each("roles"):
        name = role.need("name").text
        group = _group(role.get("spec") or role, f"{_name(document)}-{name}", spec.count_of("slices"))
        yield evolve(group, role=name if name in ("prefill", "decode") else "")


def _group(spec: Entry, name: str, times: int) -> Pods:
    template = spec.need("leaderWorkerTemplate")
    size = template.count_of("size")
    if not size:
        raise template.need("size").error("a group has one pod or more")
    variables = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": f"{name}-0"}
    idle = [*fields.notes(spec, "leader_worker_set"), *fields.notes(template, "leader_worker_template")]
    return Pods(name, template.get("leaderTemplate") or template.need("workerTemplate"),
                spec.count_of("replicas") * times, size, "", variables, tuple(idle))


#: The kinds that make pods.
KINDS: Mapping[str, Callable[[Entry], Iterator[Pods]]] = {
    "Deployment": _workload, "StatefulSet": _workload, "ReplicaSet": _workload, "Pod": _pod,
    "LeaderWorkerSet": _leader_worker_set, "DisaggregatedSet": _disaggregated_set,
}

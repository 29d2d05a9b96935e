"""Pods to launches: the engine that their containers start, how often, on which GPU, and whether it has enough of them.
"""

import re
from collections.abc import Mapping

from attrs import evolve, field, frozen

from ksim.deploy.commands.command import launch_of
from ksim.deploy.launches import Deployed, Launch, Note, Wanted
from ksim.deploy.manifests import fields
from ksim.deploy.manifests.containers import Surroundings, commands, gpus
from ksim.deploy.manifests.node_labels import gpu_of
from ksim.deploy.texts.entries import Entry

__all__ = ["Pods", "deployed"]

#: The label by which llm-d, and a manifest that `ksim export` wrote, tell engines that prefill from those that decode.
ROLE = "llm-d.ai/role"
_ROLES = {"prefill": "prefill", "decode": "decode", "both": "both", "prefill-decode": "both"}
_POD = ("containers", "nodeSelector", "affinity", "volumes", "resourceClaims")
_CONTAINER = ("name", "image", "command", "args", "env", "envFrom", "resources", "volumeMounts")


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

    @property
    def spec(self) -> Entry:
        return self.template.need("spec")


def deployed(pods: Pods, maps: Mapping[str, Mapping[str, str]], wanted: Wanted) -> Deployed:
    """The engines of *pods*, if they start any."""
    spec = pods.spec
    around = Surroundings(maps, pods.variables)
    idle = [*pods.idle, *fields.notes(spec, _POD, fields.POD)]
    launches: list[Launch] = []
    for container in spec.each("containers"):
        ran = [launch_of(command, wanted) for command in commands(container, spec, around)]
        asked = gpus(container)
        if ran:
            idle += fields.notes(container, _CONTAINER, fields.CONTAINER)
            launches += [_placed(launch, container, asked, pods, wanted) for launch in ran]
        elif asked:
            raise container.error(_nothing(container, asked))
        else:
            idle.append(Note(container.where, _named(container), "starts no engine, and has no GPU"))
    if not launches:
        return Deployed((), idle=(Note(pods.template.where, pods.name, "its pods start no engine"),))
    if not pods.replicas:
        return Deployed((), idle=(Note(pods.template.where, pods.name, "has 0 replicas"),))
    first = evolve(launches[0], idle=(*launches[0].idle, *idle))
    return Deployed((first, *launches[1:]))


def _named(container: Entry) -> str:
    name = container.get("name")
    return name.text if name is not None else "container"


def _nothing(container: Entry, asked: int) -> str:
    image = container.get("image")
    command = " ".join([*(item.text for item in (*container.each("command"), *container.each("args")))][:3])
    said = f"runs {command[:60]!r}" if command else "has no command" + (f", and image {image.text}" if image else "")
    return (f"asks for {asked} GPUs, {said}, and starts no engine that ksim knows: expected `vllm serve MODEL`,"
            f" `python -m sglang.launch_server` or `trtllm-serve MODEL` in command and args")


def _placed(launch: Launch, container: Entry, asked: int | None, pods: Pods, wanted: Wanted) -> Launch:
    """*launch* as often as its pods are there, on their GPU; raises ConfigError where they have too few."""
    if asked is None and not pods.spec.each("resourceClaims"):
        raise container.error("asks for no GPU: resources.limits has no nvidia.com/gpu, and ksim simulates engines on"
                              " NVIDIA's GPUs")
    named = {} if wanted.gpu or wanted.system else gpu_of(pods.spec)
    remarks = list(_fits(launch, container, asked * pods.size, pods)) if asked is not None else []
    own = re.sub(r"[^A-Za-z0-9_-]", "-", pods.name)
    return evolve(launch, name=own, replicas=launch.replicas * pods.replicas, role=_role(pods) or launch.role,
                  hardware={**launch.hardware, **named}, remarks=(*launch.remarks, *remarks))


def _role(pods: Pods) -> str:
    label = pods.template.get("metadata", "labels", ROLE)
    if pods.role or label is None:
        return pods.role
    if label.text not in _ROLES:
        raise label.error(f"{label.text!r} is no role that ksim knows: {', '.join(_ROLES)}")
    return _ROLES[label.text]


def _fits(launch: Launch, container: Entry, there: int, pods: Pods) -> list[Note]:
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

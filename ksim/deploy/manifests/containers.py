"""A container: its environment, its files, and the commands in it that start engines."""

import re
from collections.abc import Iterator, Mapping

from attrs import evolve, field, frozen

from ksim.deploy.commands.command import Command, Word, program_of, script_place
from ksim.deploy.manifests.scripts import commands_of_script, lines_of_script
from ksim.deploy.texts.entries import Entry

__all__ = ["Surroundings", "commands", "environment", "gpus", "words_of"]

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


def commands(container: Entry, pod: Entry, around: Surroundings) -> Iterator[Command]:
    """The commands of *container*, one of *pod*, that start engines."""
    whole = _command(container, pod, around)
    words = [*container.each("command"), *container.each("args")]
    ran: Iterator[Command] = iter(())
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
        places = [place for place, word in enumerate(line) if word.text == module]
        if places:
            return line[places[0] + 1:]
    return [] if script is not None else lines[0]


def _command(container: Entry, pod: Entry, around: Surroundings) -> Command:
    variables = environment(container, around)
    values = {name: word.text for name, word in variables.items()}
    words = [Word(_referred(item.text, values), item.where)
             for item in (*container.each("command"), *container.each("args"))]
    return Command(tuple(words), container.where, variables, _image(container), _files(container, pod, around),
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
            prefix = source.get("prefix")
            known |= {(prefix.text if prefix else "") + key: Word(value, source.where)
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
    value = variable.get("value")
    return value.text if value is not None else ""


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

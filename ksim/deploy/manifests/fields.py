"""Fields of a manifest's tables, entries that are made of others, the GPU of a node, and services of Docker Compose.

Entries made of others, as a chart makes pods of its values, keep their places in the text.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import yaml
from attrs import evolve

from ksim.deploy.commands import Note
from ksim.deploy.shell.variables import Variables, WordPiece
from ksim.deploy.texts import Entry
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, UnknownKey, nearest


@cache
def _table(kind: str) -> Mapping[str, Any]:
    """What ksim/data/manifests/fields.toml says of a *kind* of table."""
    table: Mapping[str, Any] = catalog.load("manifests", "fields")[kind]
    return table


@cache
def without_effect(kind: str) -> Mapping[str, str]:
    """The fields of a *kind* of table that change nothing here, and why (ksim/data/manifests/fields.toml)."""
    reasons: Mapping[str, Sequence[str]] = _table(kind).get("idle", {})
    return {field: why for why, fields in reasons.items() for field in fields}


def notes(table: Entry, kind: str) -> list[Note]:
    """Notes on the keys of *table*, of that *kind* in ksim/data/manifests/fields.toml, that have no effect.

    Raises UnknownKey for a key that is neither read nor without effect.
    """
    idle, said = without_effect(kind), []
    read: Sequence[str] = _table(kind).get("read", ())
    for key, entry in table.table.items():
        if key in idle:
            if not entry.is_null and not (entry.is_list and not entry.items):
                said.append(Note(entry.where, key, idle[key]))
        elif key not in read:
            known = sorted({*read, *idle})
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {nearest(key, known)}"
            raise UnknownKey(entry.where, f"there is no such field{hint}")
    return said


def tabled(near: Entry, values: Mapping[str, Entry]) -> Entry:
    """A table of *values*; it stands where *near* does."""
    rows = [(_scalar(value, key), value.node) for key, value in values.items()]
    node = yaml.MappingNode("tag:yaml.org,2002:map", rows, near.node.start_mark)
    return evolve(near, node=node, origins=_origins(near, [*values.values()]))


def listed(near: Entry, values: Sequence[Entry]) -> Entry:
    """A list of *values*."""
    node = yaml.SequenceNode("tag:yaml.org,2002:seq", [value.node for value in values], near.node.start_mark)
    return evolve(near, node=node, origins=_origins(near, values))


def _origins(near: Entry, values: Sequence[Entry]) -> Mapping[int, tuple[str, int]]:
    """Where the parts stand in the text."""
    inner = {node: origin for value in values for node, origin in value.origins.items()}
    return {**near.origins, **inner, **{id(value.node): (value.key, value.line) for value in values}}


def text(near: Entry, content: str) -> Entry:
    """A text that stands where *near* does."""
    return evolve(near, node=_scalar(near, content))


def texts(near: Entry, *contents: str) -> list[Entry]:
    return [text(near, content) for content in contents]


def _scalar(near: Entry, content: str) -> Any:
    return yaml.ScalarNode("tag:yaml.org,2002:str", content, near.node.start_mark)


@cache
def gpu_labels() -> Mapping[str, Any]:
    """The labels that say which GPU a node has, and their values: ksim/data/manifests/gpus.toml."""
    return catalog.load("manifests", "gpus")


def gpu_of(spec: Entry) -> dict[str, str]:
    """The `gpu` that the labels of *spec*'s nodes name; empty where no label does.

    Raises ConfigError for labels of a GPU that ksim does not know, or of two.
    """
    named: dict[str, Entry] = {}
    for key, values in _wanted_labels(spec):
        if key in gpu_labels()["labels"]:
            for value in values:
                named.setdefault(_gpu(key, value), value)
    if len(named) > 1:
        raise next(iter(named.values())).error(f"nodes may have {' or '.join(sorted(named))}, and a pool has one GPU;"
                                               f" name it: --gpu {min(named)}")
    return dict.fromkeys(("gpu",), min(named)) if named else {}


def _gpu(key: str, value: Entry) -> str:
    text = value.text.strip()
    products: Mapping[str, str] = gpu_labels()["products"]
    others: Mapping[str, str] = gpu_labels()["others"]
    for gpu, product in products.items():
        if text.lower() in (product.lower(), gpu, f"nvidia-{gpu}"):
            return gpu
    for pattern, gpu in others.items():
        if match := re.fullmatch(pattern, text.lower()):
            return match.expand(gpu)
    raise ConfigError(value.where, f"{text!r} of the label {key} is no GPU or machine that ksim knows for certain; name"
                                   f" the nearest: --gpu {' or '.join(('h100', 'h200'))} (see `ksim list gpus`)")


def _wanted_labels(spec: Entry) -> list[tuple[str, list[Entry]]]:
    """The labels that a pod's nodes must have, with the values that each may have."""
    selector = spec.get("nodeSelector")
    wanted = [(key, [value]) for key, value in selector.table.items()] if selector else []
    for term in spec.each("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
                          "nodeSelectorTerms"):
        for expression in term.each("matchExpressions"):
            if expression.need("operator").text == "In":
                wanted.append((expression.need("key").text, expression.need("values").items))
    return wanted


def container_of(service: Entry, known: Mapping[str, str]) -> Entry:
    """*service* as a container; variables in it are filled in from *known* ones."""
    variables = Variables(dict(known))
    parts: dict[str, Entry] = {}
    for key, into in (("entrypoint", "command"), ("command", "args")):
        if (value := service.get(key)) is not None:
            parts[into] = _words(value, variables)
    if (image := service.get("image")) is not None:
        parts["image"] = text(image, _filled(image, variables))
    parts["env"] = listed(service, [*_environment(service, variables)])
    return tabled(service, parts)


def _words(value: Entry, variables: Variables) -> Entry:
    """A command: a list of words, or one text that Compose divides as a shell does."""
    if value.is_list:
        return listed(value, [text(item, _filled(item, variables)) for item in value.items])
    try:
        words = shlex.split(_filled(value, variables))
    except ValueError as error:
        raise value.error(f"cannot be divided into words: {error}") from None
    return listed(value, texts(value, *words))


def _environment(service: Entry, variables: Variables) -> Iterator[Entry]:
    """The variables of a service: a table, or a list of NAME=VALUE; one without a value comes from outside."""
    given = service.get("environment")
    if given is None:
        return
    pairs = [(name, value) for name, value in given.table.items()] if given.is_table else [
        (item.text.partition("=")[0], text(item, item.text.partition("=")[2])) for item in given.items]
    for name, value in pairs:
        filled = "" if value.is_null else _filled(value, variables)
        yield tabled(value, {"name": text(value, name), "value": text(value, filled)})


def _filled(value: Entry, variables: Variables) -> str:
    """The text of *value* with `${NAME:-default}` filled in; `$$` is a dollar sign.

    A variable without a value stays: whoever reads a flag knows whether it needs one.
    """
    return "$".join(variables.filled([WordPiece(part, True, False)], None) for part in value.text.split("$$"))


def replicas_of(service: Entry) -> int:
    """How many containers run the service."""
    return service.count_of("deploy", "replicas", usual=service.count_of("scale"))

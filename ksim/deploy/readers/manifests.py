"""Manifests: objects of Kubernetes, parts of them as people cut them out, and services of Docker Compose."""

import re
from collections.abc import Iterator, Mapping

from attrs import evolve

from ksim.deploy.commands import Deployed, EngineLaunch, ImportOptions, Note, launch_of
from ksim.deploy.manifests import dynamo, fields
from ksim.deploy.manifests.autoscalers import SCALERS
from ksim.deploy.manifests.containers import (
    KINDS,
    Surroundings,
    commands,
    config_maps,
    deployed,
    idle_kind,
    kind_of,
    unlisted,
)
from ksim.deploy.manifests.fields import container_of, replicas_of, tabled
from ksim.deploy.manifests.model_service import router_of_maps
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation.errors import ConfigError

__all__ = ["Kubernetes", "PartsOfManifests", "Compose"]


_OBJECT = re.compile(r"(?m)^(?:- )?[\"']?(kind|apiVersion)[\"']?\s*:")
_JSON = re.compile(r"\"(kind|apiVersion)\"\s*:")


class Kubernetes:
    """Takes the documents of a manifest one by one; a Service, a Secret and the like are passed over by name."""

    def recognises(self, pasted: Pasted) -> bool:
        """Whether the text has a `kind` and an `apiVersion`."""
        keys = _JSON if re.match(r"\s*[{\[](?!\{)", pasted.text) else _OBJECT
        return {match[1] for match in keys.finditer(pasted.text)} == {"kind", "apiVersion"}

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines of all documents; raises ConfigError for a kind that is not known."""
        objects = [*unlisted(documents(pasted))]
        maps = config_maps(objects)
        parts = [_read(document, maps, wanted) for document in objects]
        scenario = router_of_maps(objects)
        for part in parts:
            scenario |= part.scenario
        return Deployed.of(parts, scenario)


def _read(document: Entry, maps: Mapping[str, Mapping[str, str]], wanted: ImportOptions) -> Deployed:
    kind = kind_of(document)
    if kind == dynamo.KIND:
        return dynamo.deployed(document, maps, wanted)
    if kind in SCALERS:
        return Deployed((), autoscalers=(document,))
    if kind == "PodDisruptionBudget":
        return Deployed((), budgets=(document,))
    if kind not in KINDS:
        named = (kind, document.text_of("metadata", "name"))
        return Deployed((), idle=(idle_kind(document),), others=frozenset({named}))
    return Deployed.of([deployed(pods, maps, wanted) for pods in KINDS[kind](document)], {})


#: Keys on the way from a pod to its containers.
_WAY = ("spec", "template", "containers")


class PartsOfManifests:
    """Finds the containers in YAML that is no whole object, and reads their commands."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(re.search(r"(?m)^[\s-]*(args|command)\s*:(\s|$)", pasted.text)) and "apiVersion" not in pasted.text

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines of all containers; raises ConfigError where there are none."""
        launches = tuple(launch_of(command, wanted) for document in documents(pasted)
                         for container in _containers(document)
                         for command in commands(container, container, Surroundings()))
        if not launches:
            raise ConfigError(pasted.source or "the text", "has no container that starts an engine; expected `vllm"
                                                           " serve MODEL` in command and args, or flags for the image"
                                                           " of vLLM")
        return Deployed(launches)


def _containers(part: Entry) -> Iterator[Entry]:
    if part.is_list:
        for item in part.items:
            yield from _containers(item)
    elif part.is_table and {"args", "command"} & {*part.table}:
        yield part
    elif part.is_table:
        for key in _WAY:
            if (inner := part.get(key)) is not None:
                yield from _containers(inner)


class Compose:
    """Reads `docker-compose.yml`; services that start no engine are passed over by name."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(re.search(r"(?m)^[\"']?services[\"']?\s*:\s*$", pasted.text)) and "apiVersion" not in pasted.text

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines of all services; raises ConfigError for keys that a service does not have."""
        launches: list[EngineLaunch] = []
        idle: list[Note] = []
        for document in documents(pasted):
            for name, service in document.need("services").table.items():
                said = fields.notes(_without_extensions(service), "compose_service")
                started = [*_launches(service, wanted)]
                launches += started
                idle += said if started else [Note(service.where, name, "starts no engine that ksim knows")]
        if not launches:
            raise ConfigError(pasted.source or "the text", "has no service that starts an engine: expected a command"
                                                           " such as `--model MODEL` for the image of vLLM, or"
                                                           " `vllm serve MODEL`")
        return Deployed(tuple(launches), idle=tuple(idle))


def _launches(service: Entry, wanted: ImportOptions) -> Iterator[EngineLaunch]:
    container = container_of(service, wanted.environment)
    for command in commands(container, container, Surroundings()):
        launch = launch_of(command, wanted)
        yield evolve(launch, replicas=launch.replicas * replicas_of(service))


def _without_extensions(service: Entry) -> Entry:
    return tabled(service, {key: value for key, value in service.table.items() if not key.startswith("x-")})

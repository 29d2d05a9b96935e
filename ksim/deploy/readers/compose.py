"""Docker Compose: services whose containers start engines."""

import re
from collections.abc import Iterator

from attrs import evolve

from ksim.deploy.commands import launch_of
from ksim.deploy.launches import Deployed, Launch, Note, Wanted
from ksim.deploy.manifests import fields
from ksim.deploy.manifests.containers import Surroundings, commands
from ksim.deploy.manifests.fields import IDLE, READ, container_of, replicas_of, tabled
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation.errors import ConfigError

__all__ = ["Compose"]


class Compose:
    """Reads `docker-compose.yml`; services that start no engine are passed over by name."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(re.search(r"(?m)^[\"']?services[\"']?\s*:\s*$", pasted.text)) and "apiVersion" not in pasted.text

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
        """The engines of all services; raises ConfigError for keys that a service does not have."""
        launches: list[Launch] = []
        idle: list[Note] = []
        for document in documents(pasted):
            for name, service in document.need("services").table.items():
                said = fields.notes(_without_extensions(service), READ, IDLE)
                started = [*_launches(service, wanted)]
                launches += started
                idle += said if started else [Note(service.where, name, "starts no engine that ksim knows")]
        if not launches:
            raise ConfigError(pasted.source or "the text", "has no service that starts an engine: expected a command"
                                                           " such as `--model MODEL` for the image of vLLM, or"
                                                           " `vllm serve MODEL`")
        return Deployed(tuple(launches), idle=tuple(idle))


def _launches(service: Entry, wanted: Wanted) -> Iterator[Launch]:
    container = container_of(service, wanted.environment)
    for command in commands(container, container, Surroundings()):
        launch = launch_of(command, wanted)
        yield evolve(launch, replicas=launch.replicas * replicas_of(service))


def _without_extensions(service: Entry) -> Entry:
    return tabled(service, {key: value for key, value in service.table.items() if not key.startswith("x-")})

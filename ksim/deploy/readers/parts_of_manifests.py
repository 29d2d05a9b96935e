"""A part of a Kubernetes manifest, as people cut it out: containers, or the `command` and `args` of one."""

import re
from collections.abc import Iterator

from ksim.deploy.commands import launch_of
from ksim.deploy.launches import Deployed, Wanted
from ksim.deploy.manifests.containers import Surroundings, commands
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation.errors import ConfigError

__all__ = ["PartsOfManifests"]

#: Keys on the way from a pod to its containers.
_WAY = ("spec", "template", "containers")


class PartsOfManifests:
    """Finds the containers in YAML that is no whole object, and reads their commands."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(re.search(r"(?m)^[\s-]*(args|command)\s*:(\s|$)", pasted.text)) and "apiVersion" not in pasted.text

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
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

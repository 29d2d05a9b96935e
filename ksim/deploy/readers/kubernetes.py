"""Kubernetes manifests: Deployments, StatefulSets, Pods, LeaderWorkerSets, Dynamo's graphs, and what is beside them."""

import re
from collections.abc import Mapping

from ksim.deploy.launches import Deployed, Wanted
from ksim.deploy.manifests import dynamo
from ksim.deploy.manifests.containers import KINDS, config_maps, deployed, idle_kind, kind_of, unlisted
from ksim.deploy.manifests.model_service import router_of_maps
from ksim.deploy.texts import Entry, Pasted, documents

__all__ = ["Kubernetes"]

_OBJECT = re.compile(r"(?m)^(?:- )?[\"']?(kind|apiVersion)[\"']?\s*:")
_JSON = re.compile(r"\"(kind|apiVersion)\"\s*:")


class Kubernetes:
    """Takes the documents of a manifest one by one; a Service, a Secret and the like are passed over by name."""

    def recognises(self, pasted: Pasted) -> bool:
        """Whether the text has a `kind` and an `apiVersion`."""
        keys = _JSON if re.match(r"\s*[{\[](?!\{)", pasted.text) else _OBJECT
        return {match[1] for match in keys.finditer(pasted.text)} == {"kind", "apiVersion"}

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
        """The engines of all documents; raises ConfigError for a kind that is not known."""
        objects = [*unlisted(documents(pasted))]
        maps = config_maps(objects)
        parts = [_read(document, maps, wanted) for document in objects]
        scenario = router_of_maps(objects)
        for part in parts:
            scenario |= part.scenario
        return Deployed.of(parts, scenario)


def _read(document: Entry, maps: Mapping[str, Mapping[str, str]], wanted: Wanted) -> Deployed:
    kind = kind_of(document)
    if kind == dynamo.KIND:
        return dynamo.deployed(document, maps, wanted)
    if kind not in KINDS:
        return Deployed((), idle=(idle_kind(document),))
    return Deployed.of([deployed(pods, maps, wanted) for pods in KINDS[kind](document)], {})

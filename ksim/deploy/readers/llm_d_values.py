"""llm-d's Helm values: engines by those of the chart llm-d-modelservice, the router by those of the endpoint picker."""

import re
from collections.abc import Iterator
from typing import Any

from ksim.deploy.launches import Deployed, Launch, Note, Wanted
from ksim.deploy.manifests import containers
from ksim.deploy.manifests.model_service import engines, router_of_text
from ksim.deploy.texts import RENDER, TEMPLATE, Entry, Pasted, documents

__all__ = ["LlmDValues"]

_ENGINES = re.compile(r"(?m)^\s{0,4}[\"']?modelArtifacts[\"']?\s*:")
_ROUTER = re.compile(r"(?m)^\s{0,6}[\"']?(pluginsConfigFile|pluginsCustomConfig|inferenceExtension)[\"']?\s*:")
#: What the endpoint picker's chart has under this name where the values do not say (chart inferencepool 1.0 and later).
_DEFAULT_FILE = "default-plugins.yaml"
_DEFAULT: dict[str, Any] = {
    "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig",
    "plugins": [{"type": "queue-scorer"}, {"type": "kv-cache-utilization-scorer"}, {"type": "prefix-cache-scorer"}],
    "schedulingProfiles": [{"name": "default", "plugins": [
        {"pluginRef": "queue-scorer", "weight": 2}, {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
        {"pluginRef": "prefix-cache-scorer", "weight": 3}]}],
}


class LlmDValues:
    """Makes the pods that the chart makes of values, and reads those."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(_ENGINES.search(pasted.text) or _ROUTER.search(pasted.text))

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
        """The engines, and the router; raises ConfigError for values that the chart does not know."""
        parts: list[Deployed] = []
        scenario: dict[str, Any] = {}
        for values in documents(pasted):
            if not values.is_table:
                raise values.error(RENDER if TEMPLATE in pasted.text else "expected keys and values")
            parts += [containers.deployed(made, {}, wanted) for made in engines(values)]
            scenario |= _router(values)
        launches = [launch for part in parts for launch in part.launches]
        if launches and not scenario:
            scenario, remarks = _assumed(launches)
            parts.append(Deployed((), remarks=tuple(remarks)))
        return Deployed.of(parts, scenario)


def _assumed(launches: list[Launch]) -> tuple[dict[str, Any], list[Note]]:
    """llm-d's router with the defaults of its guides, where the values have none."""
    splits = any(launch.role == "prefill" for launch in launches)
    if not splits and sum(launch.replicas for launch in launches) < 2:
        return {}, []
    key = "pair_router" if splits else "router"
    why = "the values have no endpoint picker: it is that of llm-d's guide; give its values too, if they are others"
    return {key: "llm_d"}, [Note("", f'{key} = "llm_d"', why)]


def _router(values: Entry) -> dict[str, Any]:
    """The router of the endpoint picker's configuration, wherever the values of a chart have it."""
    for table in _tables(values):
        name, custom = table.get("pluginsConfigFile"), table.get("pluginsCustomConfig")
        if name is None and custom is None:
            continue
        texts = custom.table if custom is not None else {}
        chosen = name.text if name is not None else _DEFAULT_FILE
        if chosen in texts:
            return router_of_text(texts[chosen], texts[chosen].text)
        if chosen == _DEFAULT_FILE:
            return {"router": {"name": "llm_d", "config": _DEFAULT}}
        assert name is not None, "another name was given"
        raise name.error(f"{chosen!r} is none of pluginsCustomConfig ({', '.join(texts) or 'which is empty'}); give the"
                         " endpoint picker's configuration, too")
    return {}


def _tables(entry: Entry, depth: int = 4) -> Iterator[Entry]:
    """*entry* and the tables in it."""
    if entry.is_table:
        yield entry
        for inner in entry.table.values() if depth else ():
            yield from _tables(inner, depth - 1)

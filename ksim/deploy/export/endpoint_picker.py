"""A scenario's router as the EndpointPickerConfig of llm-d."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ksim.cluster.routers.llm_d import BASELINE
from ksim.deploy.export.outgoing import Outgoing
from ksim.foundation.config import Choice
from ksim.foundation.errors import DataError

__all__ = ["picker_config"]

_HEAD = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}


def picker_config(outgoing: Outgoing) -> tuple[dict[str, Any] | None, list[str]]:
    """The configuration, and remarks; None for a router that the endpoint picker lacks."""
    for key in ("router", "pair_router"):
        choice: Choice | None = getattr(outgoing, key)
        if choice is None:
            continue
        if choice.name != "llm_d":
            return None, [f"{key} = {_shown(choice)}: llm-d's endpoint picker has no such router"]
        if config := choice.options.get("config"):
            return _read(config), []
        return (_options(choice) if key == "router" else _pair(choice)), []
    return None, []


def _shown(choice: Choice) -> str:
    return f"{choice.name!r} {dict(choice.options)}" if choice.options else repr(choice.name)


def _read(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    try:
        return dict(yaml.safe_load(Path(config).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise DataError(str(config), f"cannot be read: {error}") from None


def _options(choice: Choice) -> dict[str, Any]:
    """The configuration that the options of the router stand for."""
    scorers: Mapping[str, float] = choice.options.get("scorers", BASELINE)
    filters = [*choice.options.get("filters", ())]
    picker = choice.options.get("picker", "max-score-picker")
    parameters: Mapping[str, Any] = choice.options.get("parameters", {})
    names = [*dict.fromkeys([*parameters, *filters, *scorers, picker])]
    plugins = [{"type": name, **({"parameters": dict(parameters[name])} if parameters.get(name) else {})}
               for name in names]
    refs: list[dict[str, Any]] = [{"pluginRef": name} for name in filters]
    refs += [{"pluginRef": name, "weight": weight} for name, weight in scorers.items()]
    return {**_HEAD, "plugins": plugins,
            "schedulingProfiles": [{"name": "default", "plugins": [*refs, {"pluginRef": picker}]}]}


def _pair(choice: Choice) -> dict[str, Any]:
    """The same for two profiles and a decider, as of llm-d's guide pd-disaggregation."""
    options = {"threshold": 16, "prefix": 2.0, "queue": 1.0, "block_tokens": 64, **choice.options}
    producer = "precise-prefix-cache-producer"
    plugins = [
        {"type": producer}, {"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "queue-scorer"},
        {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": producer}},
        {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": options["threshold"],
                                                           "prefixMatchInfoProducerName": producer}},
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "prefix-based-pd-decider"}}},
    ]
    weights = [{"pluginRef": "prefix-cache-scorer", "weight": options["prefix"]},
               {"pluginRef": "queue-scorer", "weight": options["queue"]}]
    profiles = [{"name": side, "plugins": [{"pluginRef": f"{side}-filter"}, *weights]}
                for side in ("prefill", "decode")]
    return {**_HEAD, "plugins": plugins, "schedulingProfiles": profiles}

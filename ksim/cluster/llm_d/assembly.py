"""Assemble an endpoint picker from an EndpointPickerConfig.

Some of llm-d's types of plug-ins are parts here, some have no effect, and some are not simulated.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from attrs import field, fields_dict, frozen

from ksim.cluster.llm_d.cycle import APPROXIMATE, IN_FLIGHT, PRECISE, Bounded, Chance, SchedulerProfile
from ksim.cluster.llm_d.endpoint_picker import HANDLERS, EndpointPicker, Split
from ksim.cluster.llm_d.epp_config import EndpointPickerConfig, PluginRef, PluginSpec, SchedulingProfile, key_of, made
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

__all__ = ["INERT", "METHODS", "part_type", "picker_of", "splits"]


#: The method of each kind of part.
METHODS = {"scorers": "score", "filters": "keep", "pickers": "pick", "producers": "look", "deciders": "splits"}
_FOLDER = "cluster.llm_d.parts"
#: Types without effect here: metrics come as the scenario's `signals` say, tokens are known, requests are plain.
INERT = ("single-profile-handler", "metrics-data-source", "core-metrics-extractor", "endpoint-notification-source",
          "k8s-notification-source", "token-producer", "tokenizer", "openai-parser", "vllmgrpc-parser",
          "passthrough-parser", "vertexai-parser", "disagg-headers-handler", "prefill-header-handler",
          "request-attribute-reporter", "round-robin-fairness-policy", "global-strict-fairness-policy",
          "fcfs-ordering-policy", "edf-ordering-policy", "slo-deadline-ordering-policy", "static-usage-limit-policy",
          "concurrency-detector")
#: Types of llm-d's that ksim has no part for.
_NOT_SIMULATED = ("latency-scorer", "slo-headroom-tier-filter", "predicted-latency-producer", "latency-slo-admitter",
                  "probabilistic-admitter", "load-aware-picker", "lmetric-scorer", "context-length-aware", "by-label",
                  "by-label-selector", "encode-filter", "header-based-testing-filter", "mm-cache-affinity-scorer",
                  "topology-affinity-scorer", "topology-affinity-filter", "data-parallel-profile-handler",
                  "lora-load-state-scorer", "lora-residency-filter", "burst-prefix-cache-producer",
                  "p2p-source-producer", "decision-tree-filter", "session-affinity-filter", "metric-scorer",
                  "endpoint-attribute-scorer", "endpoint-attribute-filter", "always-disagg-mm-decider")


def splits(config: Any, where: str) -> bool:
    """Whether the EndpointPickerConfig *config*, which stands at *where*, has other engines prefill.

    Raises ConfigError for what is wrong in it, or not simulated.
    """
    read = EndpointPickerConfig.of(config, where)
    found = any(plugin.type in HANDLERS for plugin in read.plugins)
    picker_of(read, Chance(0), splits=found)
    return found


def part_type(name: str, where: str) -> tuple[str, type[Any]]:
    """The kind and class of the part of type *name*."""
    known = name if ":" in name else name.replace("-", "_")
    if ":" not in name and known not in catalog.names(_FOLDER):
        raise ConfigError(where, _absent(name))
    cls = catalog.find(_FOLDER, known)
    for kind, method in METHODS.items():
        if hasattr(cls, method):
            return kind, cls
    raise ConfigError(where, f"{name} has none of {', '.join(METHODS.values())}, so it is no part of llm-d")


def _absent(name: str) -> str:
    parts = {part.replace("_", "-"): catalog.find(_FOLDER, part) for part in catalog.names(_FOLDER)}
    known = {kind: [part for part, cls in parts.items() if hasattr(cls, method)] for kind, method in METHODS.items()}
    there = "; ".join(f"{kind}: {', '.join(types)}" for kind, types in known.items())
    if name in _NOT_SIMULATED:
        return f"llm-d's {name} is not simulated ({there})"
    close = get_close_matches(name, [each for types in known.values() for each in types], n=1)
    return f"there is no plugin {name!r}{f'; did you mean {close[0]!r}?' if close else ''} ({there})"


#: Parameters by which a part names a producer.
_READS = ("prefix_match_info_producer_name", "in_flight_load_producer_name")


@frozen
class _Made:
    """A part that was made: which kind it is of, and where it stands in the configuration."""

    kind: str
    part: Any
    where: str


@frozen
class _Assembly:
    config: EndpointPickerConfig
    made: dict[str, _Made] = field(factory=dict, init=False)

    def picker(self, chance: Chance, splits: bool) -> EndpointPicker:
        handler = self._make()
        self._complete()
        profiles = {profile.name: self._profile(profile) for profile in self._profiles()}
        split = self._split(handler, profiles) if splits or handler else None
        if split is None and len(profiles) != 1:
            raise ConfigError(self.config.where, f"has {len(profiles)} schedulingProfiles, and a router takes one")
        if handler and not splits:
            raise ConfigError(self.config.where, f"has a {handler[0].type}, which splits requests; name the file in"
                                                 " pair_router = {name = 'llm_d', config = ...}, with pools of roles")
        producers = sorted((made for made in self.made.values() if made.kind == "producers"),
                           key=lambda made: hasattr(made.part, "add_estimated_output_tokens"))
        used = [made.part for made in self.made.values() if made.kind != "producers"]
        return EndpointPicker(profiles, [made.part for made in producers],
                              [*(made.part for made in producers), *used], split, chance)

    def _make(self) -> tuple[PluginSpec, Any] | None:
        """Make all parts; returns the handler that splits requests, if there is one."""
        handlers = []
        for spec in self.config.plugins:
            where = self.config.place(spec)
            if spec.type in HANDLERS:
                handlers.append((spec, made(HANDLERS[spec.type], spec.parameters, f"{where}.parameters")))
            elif spec.type not in INERT:
                self._add(spec, where)
        if len(handlers) > 1:
            raise ConfigError(self.config.where, "has several profile handlers; one is allowed")
        return handlers[0] if handlers else None

    def _add(self, spec: PluginSpec, where: str) -> None:
        kind, cls = part_type(spec.type, f"{where}.type")
        parameters = dict(spec.parameters) if isinstance(spec.parameters, Mapping) else spec.parameters
        if spec.type == "prefix-cache-scorer" and isinstance(parameters, dict):
            self._own_index(spec.called, parameters, where)
        named = {"name": spec.called} if kind == "producers" else {}
        self.made[spec.called] = _Made(kind, made(cls, parameters, f"{where}.parameters", **named), where)

    def _own_index(self, name: str, parameters: dict[str, Any], where: str) -> None:
        """The index of a prefix scorer with the parameters of a producer, as in releases of llm-d before producers."""
        cls = part_type(APPROXIMATE, where)[1]
        keys = {key_of(attribute) for key, attribute in fields_dict(cls).items() if attribute.init and key != "name"}
        if "producer" in parameters:
            parameters["prefixMatchInfoProducerName"] = parameters.pop("producer")
        if own := {key: parameters.pop(key) for key in [*parameters] if key in keys}:
            index = f"{name} index"
            self.made[index] = _Made("producers", made(cls, own, f"{where}.parameters", name=index), where)
            parameters["prefixMatchInfoProducerName"] = index

    def _complete(self) -> None:
        """Make the producers that parts read and that the configuration leaves out, as llm-d does."""
        waiting = [*self.made.values()]
        while waiting:
            made_part = waiting.pop()
            for name in (getattr(made_part.part, key) for key in _READS if hasattr(made_part.part, key)):
                known = self.made.get(name)
                if known is None and name in (APPROXIMATE, PRECISE, IN_FLIGHT):
                    self._add(PluginSpec(name), made_part.where)
                    waiting.append(self.made[name])
                elif known is None or known.kind != "producers":
                    raise ConfigError(made_part.where, f"reads producer {name!r}, and plugins have none called that")

    def _profiles(self) -> Sequence[SchedulingProfile]:
        """The profiles; by default one with all filters, scorers and pickers."""
        if self.config.profiles:
            return self.config.profiles
        return [SchedulingProfile("default", [PluginRef(name) for name, made in self.made.items()
                                              if made.kind in ("scorers", "filters", "pickers")])]

    def _profile(self, profile: SchedulingProfile) -> SchedulerProfile:
        where = self.config.place_of_profile(profile.name)
        chosen: dict[str, list[tuple[float, Any]]] = {kind: [] for kind in METHODS}
        for ref in profile.plugins:
            if ref.plugin_ref in self.made:
                made_part = self.made[ref.plugin_ref]
                outside = made_part.kind == "scorers" and not type(made_part.part).__module__.startswith("ksim.")
                chosen[made_part.kind].append((ref.weight, Bounded(made_part.part) if outside else made_part.part))
            elif (spec := self._inert(ref.plugin_ref)) is None:
                raise ConfigError(where, f"pluginRef {ref.plugin_ref!r} names none of plugins:"
                                         f" {', '.join(spec.called for spec in self.config.plugins)}")
            elif spec.type == "concurrency-detector":
                raise ConfigError(where, "concurrency-detector is not simulated as a filter; leave it out here")
        _check_weights([weight for weight, _ in chosen["scorers"]], where)
        if len(chosen["pickers"]) > 1:
            raise ConfigError(where, "has several pickers; one is allowed")
        picker = chosen["pickers"][0][1] if chosen["pickers"] else self._any_picker()
        return SchedulerProfile([part for _, part in chosen["filters"]], chosen["scorers"], picker)

    def _inert(self, name: str) -> PluginSpec | None:
        return next((spec for spec in self.config.plugins if spec.called == name), None)

    def _any_picker(self) -> Any:
        """The picker of a profile without one: the first that there is, or else that of the best score."""
        pickers = [made.part for made in self.made.values() if made.kind == "pickers"]
        return pickers[0] if pickers else part_type("max-score-picker", "")[1]()

    def _split(self, handler: tuple[PluginSpec, Any] | None, profiles: Mapping[str, SchedulerProfile]) -> Split:
        if handler is None:
            raise ConfigError(self.config.where, "has no disagg-profile-handler, and a pair_router needs one among its"
                                                 " plugins")
        names = handler[1]
        for name in (names.decode_name, names.prefill_name):
            if name not in profiles:
                raise ConfigError(self.config.where, f"{handler[0].type} runs the profile {name!r}, and"
                                                     f" schedulingProfiles have {', '.join(profiles)}")
        decider = self.made.get(names.decider_name) if names.decider_name else None
        if names.decider_name and (decider is None or decider.kind != "deciders"):
            raise ConfigError(self.config.where, f"{handler[0].type} asks the decider {names.decider_name!r}, and"
                                                 " plugins have none called that")
        return Split(names.decode_name, names.prefill_name, decider.part if decider else None)


def picker_of(config: EndpointPickerConfig, chance: Chance, splits: bool = False) -> EndpointPicker:
    """The endpoint picker that *config* describes; one that *splits* chooses pairs of engines.

    Raises ConfigError for plug-ins that are not there or not simulated, for parameters that they do not take, and for
    weights that are all zero.
    """
    return _Assembly(config).picker(chance, splits)


def _check_weights(weights: Sequence[float], where: str) -> None:
    if any(weight < 0 for weight in weights):
        raise ConfigError(where, f"has a weight of {min(weights):g}; weights are 0 or more")
    if weights and not any(weights):
        raise ConfigError(where, "has only weights of 0, so its scorers decide nothing; give one a weight above 0")

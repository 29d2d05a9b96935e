"""The types of llm-d's plug-ins: those that there are parts for, those without effect, and those not simulated."""

from difflib import get_close_matches
from typing import Any

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

__all__ = ["INERT", "METHODS", "part_type"]

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

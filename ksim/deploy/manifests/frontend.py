"""Dynamo's frontend: how it routes, by its environment variables and its flags."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from ksim.deploy.commands.command import Word
from ksim.deploy.launches import Note
from ksim.foundation.errors import ConfigError

__all__ = ["Frontend"]

_MODES = {"round-robin": "round_robin", "round_robin": "round_robin", "random": "random", "kv": "dynamo_kv",
          "power-of-two": "power_of_two", "power_of_two": "power_of_two", "least-loaded": "least_outstanding",
          "least_loaded": "least_outstanding"}
#: Flags of the router that the option of `dynamo_kv` with that name has; each is a variable of the environment, too.
_OPTIONS = {
    "router-kv-overlap-score-credit": "overlap_score_credit", "kv-overlap-score-credit": "overlap_score_credit",
    "router-kv-overlap-score-credit-decay": "overlap_score_credit_decay",
    "router-prefill-load-scale": "prefill_load_scale",
    "router-kv-overlap-score-weight": "overlap_score_weight", "kv-overlap-score-weight": "overlap_score_weight",
    "router-host-cache-hit-weight": "host_cache_hit_weight", "router-disk-cache-hit-weight": "disk_cache_hit_weight",
    "router-temperature": "router_temperature", "router-ttl-secs": "router_ttl_secs", "router-ttl": "router_ttl_secs",
    "router-decode-active-request-weight": "decode_active_request_weight", "kv-cache-block-size": "block_size",
}
_EVENTS = {"no-kv-events": False, "no-router-kv-events": False, "router-kv-events": True, "use-kv-events": True,
           "kv-events": True}
#: Flags that change how requests are routed, and that ksim has nothing for.
_REFUSED = {
    "router-queue-threshold": "the router's own queue is not simulated", "router-queue-policy": "",
    "router-track-output-blocks": "blocks of outputs are not simulated",
    "busy-threshold": "requests that are refused when engines are busy: use the scenario's flow_control",
    "active-decode-blocks-threshold": "use the scenario's flow_control",
    "active-prefill-tokens-threshold": "use the scenario's flow_control",
    "active-prefill-tokens-threshold-frac": "use the scenario's flow_control",
    "admission-control": "use the scenario's flow_control",
}
_IDLE = ("http-port", "http-host", "port", "host", "namespace", "dyn-namespace", "model-name", "model-path",
         "interactive", "tls-cert-path", "tls-key-path", "request-plane", "event-plane", "discovery-backend",
         "store-kv", "grpc-port", "kserve-grpc-server", "metrics-prefix", "router-reset-states", "router-replica-sync",
         "router-durable-kv-events", "router-snapshot-threshold", "chat-processor", "dyn-chat-processor",
         "migration-limit", "namespace-prefix", "exp-python-factory", "enforce-disagg", "router-track-active-blocks",
         "no-router-track-active-blocks", "router-assume-kv-reuse", "router-max-tree-size",
         "router-prune-target-ratio", "router-event-threads", "dump-config-to", "custom-jinja-template",
         "enable-anthropic-api", "strip-anthropic-preamble", "tool-call-parser", "reasoning-parser",
         "dyn-tool-call-parser", "dyn-reasoning-parser", "router-valkey-url")
_WHY = "how clients reach the frontend changes no routing"


@frozen
class Frontend:
    """How requests are routed, and the words that have no part in it."""

    router: Mapping[str, Any]
    idle: tuple[Note, ...] = ()
    remarks: tuple[Note, ...] = ()

    @classmethod
    def of(cls, words: Sequence[Word], environment: Mapping[str, Word]) -> "Frontend":
        """The frontend that *words* start in *environment*; raises ConfigError for flags that are not known."""
        said = {**dict(_variables(environment)), **_flags(words)}
        mode = said.pop("router-mode", Word("round-robin", ""))
        if mode.text not in _MODES:
            raise ConfigError(mode.where, f"router mode {mode.text!r} is not simulated; there are {', '.join(_MODES)}")
        options: dict[str, Any] = {}
        idle = []
        for flag, word in said.items():
            if flag in _OPTIONS:
                options[_OPTIONS[flag]] = _number(flag, word)
            elif flag in _EVENTS:
                options["use_kv_events"] = _EVENTS[flag] == (word.text.lower() not in ("false", "0"))
            elif flag in _REFUSED:
                raise ConfigError(word.where, f"--{flag} is not simulated: {_REFUSED[flag] or 'it orders that queue'}")
            else:
                idle.append(Note(word.where, f"--{flag}", _WHY))
        router = _MODES[mode.text]
        if router != "dynamo_kv":
            idle += [Note(mode.where, key, f"has no effect with router mode {mode.text}") for key in options]
            options = {}
        return cls({"name": router, **options}, tuple(idle))

    @property
    def pair_router(self) -> dict[str, Any]:
        """The same for prefill and decode apart: by caches for prefill, by load for decode, as Dynamo does."""
        decode = dict(self.router)
        if decode["name"] == "dynamo_kv":
            decode |= {"overlap_score_credit": 0.0}
        return {"name": "each_side", "prefill": dict(self.router), "decode": decode}


def _variables(environment: Mapping[str, Word]) -> Iterator[tuple[str, Word]]:
    """The flags that variables such as DYN_ROUTER_MODE stand for."""
    for name, word in environment.items():
        flag = name.removeprefix("DYN_").lower().replace("_", "-")
        if name.startswith("DYN_") and flag in (*_OPTIONS, *_EVENTS, *_REFUSED, "router-mode"):
            yield flag, word


def _flags(words: Sequence[Word]) -> dict[str, Word]:
    """Flags and their values, behind `python3 -m dynamo.frontend`."""
    flags: dict[str, Word] = {}
    rest = [*words]
    while rest:
        word = rest.pop(0)
        if not word.text.startswith("--"):
            continue
        flag, equals, value = word.text[2:].partition("=")
        if flag not in (*_OPTIONS, *_EVENTS, *_REFUSED, *_IDLE, "router-mode"):
            raise ConfigError(word.where, f"--{flag} is no flag of Dynamo's frontend that ksim knows")
        if not equals and rest and not rest[0].text.startswith("--") and flag not in _EVENTS:
            value = rest.pop(0).text
        flags[flag] = Word(value, word.where)
    return flags


def _number(flag: str, word: Word) -> float | int:
    text = word.text.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        raise ConfigError(word.where, f"--{flag}: expected a number, not {text!r}") from None

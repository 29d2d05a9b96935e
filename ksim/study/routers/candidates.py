"""The routers of a comparison, by the texts that name them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ksim.foundation import catalog
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.foundation.plugins import plugin
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario, setting
from ksim.simulation.scenario_tables import pieces
from ksim.study.grid import value_text

#: The scenario's key of a router of engines, and that of one of pairs; each is the name of a folder of plug-ins.
ROUTER, PAIR_ROUTER = "router", "pair_router"
#: The router that sees the true state of every engine.
OMNISCIENT = "omniscient"
FLAG = "--routers"


def key_of(scenario: Scenario) -> str:
    """The key by which *scenario* names its router; raises ConfigError where there is one engine to choose from."""
    fleet = Fleet.of(scenario)
    if fleet.engines < 2:
        raise ConfigError("serve.data_parallel_size", "is 1, and a router needs several engines to choose from; set it"
                                                      " to more, or add pools")
    return PAIR_ROUTER if fleet.splits else ROUTER


def yardstick(key: str) -> Choice:
    """The router that others are held against."""
    if key == ROUTER or OMNISCIENT in catalog.names(_folder(key)):
        return Choice(OMNISCIENT)
    return Choice("each_side", {"prefill": OMNISCIENT, "decode": OMNISCIENT})


def is_yardstick(settings: Mapping[str, Any]) -> bool:
    """Whether the others of a comparison are held against the router of these *settings*."""
    key = ROUTER if ROUTER in settings else PAIR_ROUTER
    return bool(settings.get(key) == plain(yardstick(key)))


def candidates(scenario: Scenario, key: str, texts: Sequence[str] = ()) -> list[Choice]:
    """The routers that *texts* name, or all that fit, the yardstick first.  Raises ConfigError and UnknownName.

    A name without options has those of the scenario, if it is the scenario's own router.
    """
    own = Choice.of(scenario.pair_router or "" if key == PAIR_ROUTER else scenario.router)
    named = [parsed(text) for text in texts] or [Choice(name) for name in _fitting(scenario, key)]
    chosen = [own if choice == Choice(own.name) else choice for choice in named]
    labels = [label(plain(choice)) for choice in chosen]
    if twice := sorted({name for name in labels if labels.count(name) > 1}):
        raise ConfigError(FLAG, f"{twice[0]} comes twice")
    best = yardstick(key)
    return [best, *(choice for choice in chosen if choice != best)]


def listed(text: str) -> list[str]:
    """The texts of ``--routers``: those between commas that are not in quotes or brackets; raises ConfigError."""
    texts = [piece.strip() for piece in pieces(FLAG, ROUTER, text)]
    if not all(texts):
        raise ConfigError(FLAG, f"expected names with commas between, not {text!r}")
    return texts


def parsed(text: str) -> Choice:
    """The router that ``name``, ``name:option=value:option=value`` or ``package.module:Class`` means."""
    name, *options = _parts(text)
    return Choice(name, dict(setting(option) for option in options))


def label(value: str | Mapping[str, Any]) -> str:
    """A router's setting as `parsed` reads it."""
    if isinstance(value, str):
        return value
    return ":".join([value["name"], *(f"{key}={value_text(item)}" for key, item in value.items() if key != "name")])


def reads_stale(key: str, choice: Choice) -> bool:
    """Whether what the router *choice* sees of engines has an age; True for one that cannot be built."""
    try:
        signals = getattr(plugin(_folder(key), choice), "signals", _AGED)
    except Exception:  # the run will say it
        return True
    return not _AGED.isdisjoint(signals)


#: Signals that come from engines, by scrapes and events.
_AGED = frozenset({"metrics", "kv_events"})


def _fitting(scenario: Scenario, key: str) -> Iterator[str]:
    """All routers but those that do nothing of their own in *scenario*."""
    adapters = any(deployment.serve.enable_lora for deployment in Fleet.of(scenario).deployments)
    yield from (name for name in catalog.names(_folder(key)) if adapters or name != "lora_affinity")


def _folder(key: str) -> str:
    return f"cluster.{key}s"


def _parts(text: str) -> Iterator[str]:
    """The name, and each option; colons that no option follows belong to what is before them."""
    part = ""
    for piece in text.split(":"):
        before, equals, _ = piece.partition("=")
        if part and equals and before.strip().isidentifier():
            yield part
            part = piece
        else:
            part = f"{part}:{piece}" if part else piece
    yield part

"""What a comparison of routers runs: each router with signals of each age, each several times.

The routers of a comparison, by the texts that name them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen

from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario, pieces, setting
from ksim.simulation.fleet import Fleet
from ksim.study.grid import Axis, Settings, value_text
from ksim.study.rows import Row
from ksim.study.sweep import SweepPlan

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


#: The scenario's keys for the age of what routers see: how often metrics are scraped, and how late all signals arrive.
STALENESS, DELAY = "signals.scrape_interval", "signals.delay"


@frozen
class RoutersPlan(SweepPlan):
    """A sweep over the router, under the key that the scenario has for it, and the age of its signals.

    Metrics of some age are scraped as often, and they and KV events arrive as late.  Routers that see nothing with an
    age are run once, and not at each age.
    """

    kind: ClassVar[str] = "routers"
    #: The settings of routers for which the age counts.
    aged: Sequence[Any] = ()

    @classmethod
    def of(cls, scenario: Scenario, routers: Sequence[str] = (), staleness: Sequence[Any] = (), seeds: int = 1
           ) -> "RoutersPlan":
        """The comparison of these *routers*, or of all that there are; raises ConfigError and UnknownName."""
        if seeds < 1:
            raise ConfigError("--seeds", f"expected at least 1, not {seeds}")
        key = key_of(scenario)
        chosen = candidates(scenario, key, routers)
        axes = [Axis(key, tuple(plain(choice) for choice in chosen))]
        axes += [Axis(STALENESS, tuple(staleness))] if staleness else []
        return cls(scenario, tuple(axes), repeat=seeds,
                   aged=[plain(choice) for choice in chosen if reads_stale(key, choice)])

    @property
    def key(self) -> str:
        """The key of the router: `router` or `pair_router`."""
        return self.axes[0].key

    @property
    def yardstick(self) -> Any:
        """The setting of the router that others are held against."""
        return plain(yardstick(self.key))

    @property
    def points(self) -> list[Settings]:
        points: list[Settings] = []
        for settings in super().points:
            if settings[self.key] in self.aged:
                points.append({**settings, DELAY: settings[STALENESS]} if STALENESS in settings else settings)
            elif (alone := {self.key: settings[self.key]}) not in points:
                points.append(alone)
        return points

    @property
    def yardsticks(self) -> list[Row]:
        """The runs that others are held against, one for each seed."""
        return [row for row in self.rows if row.settings[self.key] == self.yardstick]


def ages(text: str) -> list[Any]:
    """The values of ``--staleness``; raises ConfigError."""
    return list(Axis.parse(f"{STALENESS}={text}", "--staleness").values)

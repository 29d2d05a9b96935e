"""What a comparison of routers runs: each router with signals of each age, each several times."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import frozen

from ksim.foundation.config import plain
from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario import Scenario
from ksim.study.grid import Axis, Settings
from ksim.study.routers.candidates import candidates, key_of, reads_stale, yardstick
from ksim.study.rows import Row
from ksim.study.sweep import SweepPlan

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

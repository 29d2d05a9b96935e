"""What a tuning looks for, in which space, and how."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from attrs import define

from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario import Scenario
from ksim.study.grid import Settings
from ksim.study.objectives import Objective, Requirement
from ksim.study.pareto import TOLERATED
from ksim.study.rows import Row
from ksim.study.samples import replication_seed
from ksim.study.tuning.space import Between, Listed, Space
from ksim.study.tuning.watch import Limit

Direction = Literal["minimize", "maximize"]

KIND = "tune"
#: Trials that are asked for together, before any of them is told of.
ROUND = 8


def objectives(minimize: Sequence[str], maximize: Sequence[str]) -> tuple[Objective, ...]:
    """What is looked for; raises UnknownName."""
    return (*map(Objective.parse, minimize), *(Objective.parse(f"max:{key}") for key in maximize))


def requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """What a trial must meet; raises ConfigError and UnknownName."""
    return tuple(Requirement.parse(text, "--subject-to") for text in texts)


@define(slots=False, frozen=True)
class TunePlan:
    """The best settings of `scenario` in a `space` are looked for: those with the least of what is `wanted`.

    A trial counts that meets what is `required`, keeps up with its load, and rejects at most the `tolerated` share of
    its requests.  A `sampler` proposes `round` trials at a time; each is run `repeat` times, and the means count.  With
    `prune`, a run that is certain to miss a requirement is stopped.
    """

    scenario: Scenario
    space: Space
    wanted: tuple[Objective, ...]
    required: tuple[Requirement, ...] = ()
    sampler: str = "tpe"
    seed: int = 0
    repeat: int = 1
    round: int = ROUND
    tolerated: float = TOLERATED
    prune: bool = True

    def __attrs_post_init__(self) -> None:
        if not self.wanted:
            raise ConfigError("--minimize", "names nothing to look for; give a number of summary.json, such as"
                                            " usd_per_million_tokens")
        if twice := [goal.key for goal in self.wanted if [other.key for other in self.wanted].count(goal.key) > 1]:
            raise ConfigError("--minimize", f"{twice[0]} comes twice; name each objective once")
        if self.repeat > 1 and "seed" in (axis.key for axis in self.space.dimensions):
            raise ConfigError("--space", "seed: --repeat varies the seed already; leave one of both out")

    @property
    def command(self) -> dict[str, Any]:
        """What tells this tuning of its scenario from another, for study.json; it may go on for more trials."""
        return {"objectives": [*map(str, self.wanted)], "require": [*map(str, self.required)],
                "space": {axis.key: list(axis.values) if isinstance(axis, Listed) else str(axis.range)
                          for axis in self.space.dimensions if isinstance(axis, Listed | Between)},
                "sampler": self.sampler, "seed": self.seed, "repeat": self.repeat, "round": self.round,
                "max_rejected": self.tolerated, "prune": self.prune}

    @cached_property
    def limits(self) -> list[Limit]:
        """What a run may be stopped for."""
        limits = [Limit.of(requirement, self.repeat) for requirement in self.required]
        return [limit for limit in limits if limit is not None]

    @property
    def keys(self) -> list[str]:
        """The numbers of a run that count."""
        return list(dict.fromkeys([*(goal.key for goal in self.wanted), *(bound.key for bound in self.required)]))

    @property
    def directions(self) -> list[Direction]:
        return ["maximize" if objective.maximise else "minimize" for objective in self.wanted]

    def rows(self, trial: int, settings: Settings) -> list[Row]:
        """The runs of trial number *trial*, from 1, which are not run yet."""
        seed = settings.get("seed")
        first = seed if isinstance(seed, int) else self.scenario.seed
        return [Row(trial, replication, replication_seed(first, replication), settings)
                for replication in range(self.repeat)]

    def corners(self) -> list[Settings]:
        """Settings in which each value of the space comes, and each end of a range."""
        return [{axis.key: value} for axis in self.space.dimensions
                for value in (axis.values if isinstance(axis, Listed) else [axis.setting(axis.at(0.0))])]

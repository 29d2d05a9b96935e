"""What it costs that GPUs differ: a run is played again without each cause, under the same random numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from ksim.foundation.errors import ConfigError
from ksim.results.numbers import OF_RANKS, Summary
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.specs.hardware import RankSettings, SlowGpu
from ksim.views.result import Result

__all__ = ["ALL", "RankCosts", "played", "rank_costs", "without"]

#: All causes that can be switched off, together.
ALL = "all of them"
#: What is switched off with each cause: of each slow GPU, and of all GPUs.
_OFF: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clock": ({"speed": 1.0, "clock": None, "watts": 0.0}, {"speed_spread": 0.0, "power_spread": 0.0}),
    "host": ({"delay": 0.0}, {"launch_jitter": 0.0}),
    "link": ({"link": 1.0}, {}),
    "experts": ({}, {"experts": "even"}),
    "processes": ({}, {"processes": ()}),
}


@frozen(eq=False)
class RankCosts:
    """The numbers `OF_RANKS` of a run as it is, and of the same run without each cause by its name."""

    base: Mapping[str, float | None]
    without: Mapping[str, Mapping[str, float | None]]

    def change(self, cause: str, key: str) -> float | None:
        """What the *cause* adds to the number at *key*; None where one of both is unknown."""
        before, after = self.without[cause][key], self.base[key]
        return None if before is None or after is None else after - before

    @property
    def content(self) -> dict[str, Any]:
        """All of it for a JSON file."""
        return {"as_it_is": dict(self.base), "without": {cause: dict(row) for cause, row in self.without.items()},
                "costs": {cause: {key: self.change(cause, key) for key in OF_RANKS} for cause in self.without}}


def played(scenario: Scenario, on_end: Callable[[], None] = lambda: None) -> Result:
    """The run of *scenario*; `on_end` is called as each request ends.

    Raises ConfigError where its GPUs cannot differ, and what `simulate` raises.
    """
    if scenario.detail != "rank":
        raise ConfigError("detail", f"{scenario.detail!r} takes all GPUs of a stage to be alike, so none waits for"
                                    " another; set detail = \"rank\", and say in [ranks] how they differ")
    result = simulate(scenario, on_end)
    if result.ranks is None:
        raise ConfigError("ranks", "no GPU of the run can differ from others: say how they do, such as"
                                   " ranks.speed_spread = 0.02, or ranks.slow = [{gpu = 0, speed = 0.9}]")
    return result


def without(settings: RankSettings, drawn: bool = True) -> dict[str, RankSettings]:
    """*settings* without each cause that they have, by its name, and without all of them where they have several.

    That experts are *drawn* is a cause only where they are.
    """
    settings = rest = _less(settings, {}, {})
    made = {}
    for cause, (of_slow, of_all) in _OFF.items():
        if cause == "experts" and not drawn:
            continue
        less = _less(settings, of_slow, of_all)
        if less != settings:
            made[cause], rest = less, _less(rest, of_slow, of_all)
    return {**made, ALL: rest} if len(made) > 1 else made


def _less(settings: RankSettings, of_slow: dict[str, Any], of_all: dict[str, Any]) -> RankSettings:
    """*settings* with these values of each slow GPU and of all GPUs; GPUs that are like all others are left out."""
    changed = (evolve(slow, **of_slow) for slow in settings.slow)
    differ = tuple(slow for slow in changed if slow != SlowGpu(slow.gpu, start=slow.start, end=slow.end))
    return evolve(settings, slow=differ, **of_all)


def rank_costs(result: Result, scenario: Scenario, on_end: Callable[[], None] = lambda: None) -> RankCosts:
    """What each cause costs in the run of *scenario* that gave *result*; `on_end` is called after each further run.

    What cannot be switched off, such as that ranks have different requests, is not among them.
    """
    assert result.ranks is not None, "its GPUs may differ"
    drawn = bool(result.ranks.seconds["experts"].any())
    rows = {}
    for cause, settings in without(scenario.ranks, drawn).items():
        rows[cause] = _numbers(simulate(evolve(scenario, ranks=settings)).summary)
        on_end()
    return RankCosts(_numbers(result.summary), rows)


def _numbers(summary: Summary) -> dict[str, float | None]:
    return {key: summary[key] for key in OF_RANKS}

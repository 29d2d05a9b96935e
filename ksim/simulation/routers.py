"""The router that a scenario names, with the signals that it goes by."""

from typing import Any

from attrs import evolve, fields_dict, has

from ksim.cluster.signals import check_signals
from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.plugins import plugin
from ksim.simulation.fleet import Fleet

__all__ = ["pair_router_of", "router_of"]

#: How a prefill and a decode engine are chosen by default.
EACH_SIDE = Choice("each_side")


def router_of(fleet: Fleet) -> Any:
    """What chooses an engine for each request; raises ConfigError if it needs signals that are turned off."""
    router = _made(fleet, "cluster.routers", fleet.scenario.router)
    if not fleet.splits:
        check_signals(router, fleet.scenario.router.name, fleet.scenario.signals)
    return router


def pair_router_of(fleet: Fleet) -> Any:
    """What chooses two engines for each request; None where no engine prefills for others."""
    if not fleet.splits:
        return None
    choice = fleet.scenario.pair_router or EACH_SIDE
    router = _made(fleet, "cluster.pair_routers", choice)
    check_signals(router, choice.name, fleet.scenario.signals, "pair_router")
    return router


def _made(fleet: Fleet, folder: str, choice: Choice) -> Any:
    """The plug-in; one that draws, and is given no seed, has that of the scenario."""
    made = catalog.find(folder, choice.name)
    if isinstance(made, type) and has(made) and "seed" in fields_dict(made) and "seed" not in choice.options:
        choice = evolve(choice, options={**choice.options, "seed": fleet.scenario.seed})
    return plugin(folder, choice)

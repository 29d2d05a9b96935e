"""The gateway of a scenario: its flow control, and what its clients do when they are refused."""

from collections.abc import Sequence
from typing import Any

from ksim.cluster.gateway import Gateway
from ksim.cluster.signals import check_signals
from ksim.cluster.step_model import models_of
from ksim.engine.horizon import Horizon
from ksim.flow.log import Log
from ksim.foundation.config import Choice
from ksim.foundation.plugins import plugin
from ksim.simulation.scenario import Scenario

__all__ = ["gateway_of", "tell_measured"]

NONE = Choice("none")


def gateway_of(scenario: Scenario, router: Any, env: Horizon, log: Log) -> Gateway | None:
    """The gateway before *router*; None where nobody can be held or refused."""
    choice = scenario.flow_control or NONE
    if choice == NONE and getattr(router, "refusal", None) is None:
        return None
    control = plugin("cluster.flow_controls", choice)
    if hasattr(control, "aim"):
        control.aim(scenario.slo.ttft)
    check_signals(control, choice.name, scenario.signals, "flow_control")
    log.gated = True
    return Gateway(env, log, control, scenario.workload.retries, scenario.seed)


def tell_measured(engines: Sequence[Any], *choosers: Any) -> None:
    """Tell those of *choosers* that want to know it how long the steps of *engines* take."""
    if asking := [chooser for chooser in choosers if hasattr(chooser, "measured")]:
        models = models_of(engines)
        for chooser in asking:
            chooser.measured(models)

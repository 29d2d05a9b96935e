"""The gateway of a scenario: its flow control, and what its clients do when they are refused."""

from typing import Any

from ksim.cluster.cluster import Cluster
from ksim.cluster.gateway import Gateway
from ksim.cluster.signals import signals_of
from ksim.cluster.step_model import models_of
from ksim.cluster.view import view_class
from ksim.foundation.config import Choice
from ksim.simulation.plugins import plugin
from ksim.simulation.scenario import Scenario

__all__ = ["control_of", "open_gateway", "tell_measured"]

NONE = Choice("none")


def control_of(scenario: Scenario, router: Any) -> Any:
    """What decides who waits at the gateway, None for a run without one: that is where nobody can be refused."""
    choice = scenario.flow_control or NONE
    if choice == NONE and not hasattr(router, "refusal"):
        return None
    control = plugin("cluster.flow_controls", choice)
    if hasattr(control, "aim"):
        control.aim(scenario.slo.ttft)
    return control


def open_gateway(cluster: Cluster, control: Any, scenario: Scenario) -> None:
    """Put a gateway with this *control* before *cluster*."""
    kind = view_class(signals_of(control, "flow_control"))
    views = [kind.of(engine) for engine in cluster.engines]

    def look() -> list[Any]:
        for view in views:
            view.look()
        return views

    cluster.gateway = Gateway(cluster.env, cluster.log, control, cluster.forward, look, lambda: cluster.env.now,
                              scenario.workload.retries, scenario.seed)
    cluster.log.gated = True


def tell_measured(cluster: Cluster, *choosers: Any) -> None:
    """Tell those of *choosers* that want to know it how long the engines' steps take."""
    if asking := [chooser for chooser in choosers if hasattr(chooser, "measured")]:
        models = models_of(cluster.engines)
        for chooser in asking:
            chooser.measured(models)

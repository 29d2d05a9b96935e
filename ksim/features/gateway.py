"""The gateway before a router: a flow control holds requests back or refuses them, or the router refuses some."""

from typing import Any

from ksim.cluster.gateway import Gateway
from ksim.cluster.signals import check_signals
from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scenario.features import load_feature
from ksim.scenario.scenario import Scenario
from ksim.simulation.features import WiredFeature

__all__ = ["FEATURE"]

_NO_CONTROL = Choice("none")


class GatewayFeature(WiredFeature):
    """Requests that may not go to an engine at once, or at all."""

    def gateway(self, scenario: Scenario, router: Any, env: Horizon, log: Log) -> Gateway | None:
        choice, scaler = scenario.flow_control or _NO_CONTROL, _tally(scenario)
        if choice == _NO_CONTROL and getattr(router, "refusal", None) is None and scaler is None:
            return None
        control = plugin("cluster.flow_controls", choice)
        if hasattr(control, "aim"):
            control.aim(scenario.slo.ttft, {name: part.slo.ttft for name, part in scenario.workload.mix.items()
                                            if part.slo is not None})
        check_signals(control, choice.name, scenario.signals, "flow_control")
        log.gated = True
        return Gateway(env, log, control, scenario.workload.retries, scenario.seed, scaler)


def _tally(scenario: Scenario) -> Any:
    """What counts requests for autoscalers, if there are any."""
    scaled = scenario.autoscaler or any(map(scenario.changes_size, scenario.pools))
    return load_feature("autoscaling").tally() if scaled else None


FEATURE = GatewayFeature()

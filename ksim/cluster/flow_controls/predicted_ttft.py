"""Early rejection: a request whose predicted time to the first token breaks the target is refused at once."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar

from attrs import define, field
from attrs.validators import gt, optional

from ksim.cluster.flow_controls import NoQueue
from ksim.cluster.forecast import PrefillQueues, StepModel
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import Seconds, optional_quantity

__all__ = ["PredictedTtft"]


@define
class PredictedTtft(NoQueue):
    """The prediction is that of Mooncake's scheduler for the best engine: the prefills sent to it that have no first
    token, and this one's, each as long as a model says that was fitted offline, less what is cached.

    `ttft_slo` is by default the `slo.ttft` of the request's workload, or the scenario's.  Nobody waits: a request goes
    on at once, or is refused.
    """

    source: ClassVar[str] = "Mooncake, arXiv 2407.00079 (FAST 25), section 7.2"
    signals: ClassVar[tuple[str, ...]] = ("books", "kv_events")
    ttft_slo: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    _targets: Mapping[str, float] = field(factory=dict, init=False)  # of workloads that have their own
    _queues: PrefillQueues = field(factory=PrefillQueues, init=False)
    _prefills: dict[int, float] = field(factory=dict, init=False)  # of the request at hand, by engine

    def measured(self, models: Mapping[int, StepModel]) -> None:
        """Take the step *models* of the engines, by their numbers."""
        self._queues = PrefillQueues(models)

    def aim(self, ttft: float | None, of_workloads: Mapping[str, float | None]) -> None:
        """Take *ttft* for a target if none is set, and those *of_workloads* for their requests; raises ConfigError
        without any."""
        if self.ttft_slo is None:
            self._targets = {name: limit or inf for name, limit in of_workloads.items()}
        self.ttft_slo = self.ttft_slo or ttft
        if self.ttft_slo is None and not any(limit < inf for limit in self._targets.values()):
            raise ConfigError("flow_control", "predicted_ttft has no target; set its ttft_slo, or slo.ttft")

    def refusal(self, request: Request, engines: Sequence[EngineView], held: int, now: float) -> str:
        waits = {engine.number: self._wait(engine, request) for engine in engines if engine.role != "decode"}
        least = min(map(sum, waits.values()), default=0.0)  # while no replica is ready, there is nothing to predict
        most = self._targets.get(request.workload, self.ttft_slo or inf)
        if least > most:
            return f"its predicted TTFT of {least:.3g} s breaks the target of {most:g} s"
        self._prefills = {number: prefill for number, (_, prefill) in waits.items()}
        return ""

    def sent(self, request: Request, engine_number: int, now: float) -> None:
        self._queues.add(engine_number, request.id, self._prefills.get(engine_number, 0.0))

    def on_first_token(self, request: Request, engine_number: int, now: float) -> None:
        self._queues.remove(engine_number, request.id)

    on_end = on_first_token

    def _wait(self, engine: EngineView, request: Request) -> tuple[float, float]:
        """The seconds of queue and of prefill on *engine*."""
        if not engine.outstanding:
            self._queues.clear(engine.number)
        cached = engine.prefix_hit(request) + sum(engine.tier_hits(request).values())
        return self._queues.queue(engine.number), self._queues.prefill(engine.number, request.prompt, cached)

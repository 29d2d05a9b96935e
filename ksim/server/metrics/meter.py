"""The metrics of a live fleet with vLLM's names, as GET /metrics answers them."""

from collections.abc import Sequence
from time import time

from attrs import define, field

from ksim.flow.copied import Copied
from ksim.flow.events import (
    Admitted,
    Failed,
    Finished,
    Preempted,
    Prefilled,
    Received,
    Rejected,
    Stepped,
    Transferred,
)
from ksim.flow.gateway import Refused
from ksim.server.live.live import Live
from ksim.server.metrics.engine_meter import EngineMeter
from ksim.server.metrics.exposition import Family, text
from ksim.server.metrics.process_metrics import process_families
from ksim.server.metrics.vllm_metrics import Families
from ksim.simulation.pool import Pool

__all__ = ["Meter"]


@define(eq=False)
class Meter:
    """Counts what happens in `live`, which has not begun, in Prometheus metrics with the label `model_name`."""

    live: Live
    model_name: str
    families: Families = field(init=False)
    engines: Sequence[EngineMeter] = field(init=False)
    _refused: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        live, fleet = self.live, self.live.fleet
        longest = max(pool.deployment.serve.max_model_len or 0 for pool in fleet.pools)
        self.families = Families(self.model_name, longest)
        engines = live.engines
        built = {engine.engine: engine for engine in live.log.engines}
        self.engines = [
            EngineMeter(engine, self.families.engine(engine.number, built[engine.number].drafted, fleet.splits),
                        built[engine.number].drafted) for engine in engines]
        for pool in fleet.pools:
            self._set_cache_config(pool)
        self._subscribe()

    def _set_cache_config(self, pool: Pool) -> None:
        """Set vLLM's cache_config_info of the engines of *pool*."""
        serve, blocks = pool.deployment.serve, pool.deployment.kv_blocks
        for number in pool.numbers:
            self.families.info("cache_config_info", "Settings of the engine's KV cache.", {
                "block_size": str(serve.block_size), "cache_dtype": str(serve.kv_cache_dtype),
                "enable_prefix_caching": str(serve.enable_prefix_caching), "engine": str(number),
                "gpu_memory_utilization": str(serve.gpu_memory_utilization), "num_gpu_blocks": str(blocks)})

    def _subscribe(self) -> None:
        log, engines = self.live.log, self.engines
        log.subscribe(Received, lambda event: engines[event.engine].received(event.request_id, event.time))
        log.subscribe(Admitted, lambda event: engines[event.engine].admitted(event))
        log.subscribe(Preempted, lambda event: engines[event.engine].preempted(event))
        log.subscribe(Transferred, lambda event: engines[event.target].transferred(event))
        log.subscribe(Copied, lambda event: engines[event.engine].copied(event))
        log.subscribe(Stepped, self._stepped)
        log.subscribe(Finished, lambda event: engines[event.engine].ended(event.request_id, event))
        log.subscribe(Prefilled, lambda event: engines[event.engine].ended(
            event.request_id, Finished(event.time, event.request_id, event.engine)))
        log.subscribe(Failed, lambda event: self._failed(event.request_id))
        for kind in (Rejected, Refused):
            log.subscribe(kind, self._count_refusal)

    def _stepped(self, step: Stepped) -> None:
        self.engines[step.engine].stepped(step)

    def _failed(self, request: int) -> None:
        for engine in self.engines:
            engine.ended(request)

    def _count_refusal(self, _: object) -> None:
        self._refused += 1

    def aborted(self, request: int) -> None:
        """The client of *request* has disconnected; as in vLLM, that counts as no end."""
        self._failed(request)

    @property
    def kept(self) -> int:
        """How many requests and sequences are remembered: none, once all have ended."""
        return sum(engine.kept for engine in self.engines)

    def text(self, *others: Family) -> bytes:
        """All metrics as they are now, and those of *others*."""
        for engine in self.engines:
            engine.set_gauges()
        return text([*self.families.by_name.values(), *self._lora_info(), *self._ksim_families(), *others,
                     *process_families()])

    def _lora_info(self) -> Sequence[Family]:
        """vLLM's lora_requests_info, if adapters are served."""
        slots = max(engine.max_loras for engine in self.live.log.engines)
        if not slots:
            return ()
        family = Family("vllm:lora_requests_info", "gauge", "LoRA adapters of the requests, and when it was so.")
        now = [engine.adapters() for engine in self.engines]
        waiting, running = (",".join(dict.fromkeys(name for both in now for name in both[side])) for side in (0, 1))
        family.count({"max_lora": str(slots), "waiting_lora_adapters": waiting,
                      "running_lora_adapters": running}).value = time()
        return [family]

    def _ksim_families(self) -> list[Family]:
        """Metrics that vLLM does not have."""
        live = self.live
        values = [("ksim:simulated_seconds", "gauge", "Simulated seconds since the first request.", live.now),
                  ("ksim:speed", "gauge", "Simulated seconds in a second of the wall clock.", live.speed),
                  ("ksim:lag_seconds", "gauge", "Worst lateness of tokens in the last 10 to 20 seconds.",
                   live.lag),
                  ("ksim:requests_in_flight", "gauge", "Requests that have not ended.", len(live.handles)),
                  ("ksim:requests_refused", "counter", "Requests that no engine served.", self._refused)]
        families = list[Family]()
        for name, kind, description, value in values:
            family = Family(name, kind, description)
            family.count({"model_name": self.model_name}).value = value
            families.append(family)
        return families

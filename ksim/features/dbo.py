"""Two micro-batches in a step, which overlap: vLLM's dual batch overlap, SGLang's two-batch overlap."""

from collections.abc import Iterator

from ksim.compute.model import Model
from ksim.cost.dbo import DboTimer
from ksim.cost.micro_batches import MicroBatches
from ksim.cost.step import StepTimer
from ksim.simulation.features import WiredFeature
from ksim.specs.settings import EngineSettings

__all__ = ["FEATURE"]


#: What vLLM leaves to all-to-alls unless told otherwise, which is DeepEP's default, too (deep_ep/buffer.py, `num_sms`).
USUAL_SMS = 20


class DboFeature(WiredFeature):
    """An engine that cuts steps into two micro-batches."""

    def timer(self, timer: StepTimer, serve: EngineSettings) -> StepTimer:
        """A timer of micro-batches; raises ConfigError where all-to-alls would leave no SM to compute on."""
        sms = serve.dbo_comm_sms if serve.all2all_backend == "deepep_high_throughput" else 0
        return DboTimer.like(timer, MicroBatches(
            serve.dbo_decode_token_threshold, serve.dbo_prefill_token_threshold, sms))

    def remarks(self, model: Model, serve: EngineSettings) -> Iterator[str]:
        if serve.all2all_backend == "deepep_high_throughput" and serve.dbo_comm_sms != USUAL_SMS:
            yield (f"dbo_comm_sms = {serve.dbo_comm_sms}: the other kernels have so many SMs less, and all-to-alls are"
                   f" as fast as they were measured, whatever that is")
        if serve.all2all_backend == "deepep_low_latency":
            yield ("enable_dbo: low-latency all-to-alls are taken to hold no SM while they are under way; over NVLink,"
                   " DeepEP's send with SMs, so the gain is an upper bound")


FEATURE = DboFeature()

"""Pricers of steps, made once for all tests of a process."""

from functools import cache

from attrs import evolve

from ksim.cost.step import StepTimer
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.scenario.tables import TABLE

#: Dense, with windows, latent, sparse and linear attention, mixtures; one GPU and several.
MODELS = [("llama-3.1-8b", 1), ("gpt-oss-20b", 1), ("gemma-2-2b", 2), ("deepseek-v3", 8), ("glm-5", 8),
          ("qwen3.5-397b-a17b", 8), ("qwen3-30b-a3b", 4)]
ORACLES = ("measured", "learned", "waves", "roofline")


class Seconds:
    """An oracle of one's own."""

    def seconds(self, kernel, gpu):
        return 1e-6 + 1e-15 * kernel.work.flops + 1e-13 * kernel.work.bytes


@cache
def timer(model: str, tensor: int, oracle: str = "measured", gpu: str = "h200", pipeline: int = 1) -> StepTimer:
    serve = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "max_model_len": 8192}
    made = Deployment.of(Scenario.of({**TABLE, "model": model, "gpu": gpu, "serve": serve})).timers()[-1]
    return evolve(made, oracle=Seconds() if oracle == "own" else plugin("oracles", Choice(oracle)))

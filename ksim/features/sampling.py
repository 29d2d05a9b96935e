"""Sampling that costs more than a row of logits for each sequence: log-probabilities of prompts, and beam searches."""

from collections.abc import Sequence
from functools import lru_cache

from ksim.compute.model import ROWS, FurtherModel, Model, prompt_logprobs
from ksim.cost.graphs import Graphs
from ksim.cost.step import Pass, Passes, StepTimer, Timer
from ksim.engine.engine import sampling_refusal
from ksim.flow.batch import Batch, Contexts
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.simulation.features import WiredFeature
from ksim.specs.settings import EngineSettings
from ksim.workload.replay import Workload

__all__ = ["FEATURE", "rows"]


def _prompt_logprobs(timer: StepTimer, top: bool) -> Pass:
    """A pass for each chunk of rows of a step that looks for *top* tokens, or of one that does not."""
    scored = FurtherModel(timer.model.name, prompt_logprobs(timer.model.decoder, top), prefix="logprobs.")

    def chunks(batch: Batch) -> list[Batch]:
        if batch.prompt_logprobs is None or bool(batch.prompt_logprobs) is not top:
            return []
        whole, rest = divmod(batch.prompt_logits, ROWS)
        return [rows(ROWS)] * whole + ([rows(rest)] if rest else [])

    return Pass(timer.beside(scored, timer.shard, Graphs()), chunks)


@lru_cache(maxsize=4096)
def rows(count: int) -> Batch:
    """A token of each of *count* sequences."""
    return Batch(Contexts((0,) * count), (), count, count)


class SamplingFeature(WiredFeature):
    """Requests that ask for beams, or for log-probabilities of their prompts."""

    def check(self, model: Model, serve: EngineSettings, workload: Workload) -> None:
        """Raise ConfigError for a synthetic load of which engines would reject every request."""
        for where, load in workload.syntheses.items():
            asked = Request(0, 0.0, 1, 1, beam_width=load.beam_width, prompt_logprobs=load.prompt_logprobs)
            if reason := sampling_refusal(asked, serve.max_logprobs):
                key = "beam_width" if load.beam_width else "prompt_logprobs"
                raise ConfigError(f"{where}.{key}", f"vLLM rejects such a request: {reason}")

    def unmeasured(self, workload: Workload) -> Sequence[str]:
        asked = any(load.prompt_logprobs is not None for load in workload.syntheses.values())
        return ("log-softmax of prompt logprobs",) if asked else ()

    def with_prompt_logprobs(self, timer: Timer) -> Passes:
        """*timer*, which is that of the last pipeline stage, with the passes that log-probabilities of prompts take."""
        main, others = (timer.main, timer.others) if isinstance(timer, Passes) else (timer, [])
        return Passes(main, [*others, *(_prompt_logprobs(main, top) for top in (True, False))])


FEATURE = SamplingFeature()

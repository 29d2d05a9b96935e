"""What a workload asks of sampling, and engines refuse."""

from ksim.engine.parent_request import sampling_refusal
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.specs.settings import EngineSettings
from ksim.workload.replay import Workload

__all__ = ["check_sampling"]


def check_sampling(workload: Workload, serve: EngineSettings) -> None:
    """Raise ConfigError for a synthetic load of which engines would reject every request."""
    load = workload.synthetic
    if load is None or not (load.beam_width or load.prompt_logprobs):
        return
    asked = Request(0, 0.0, 1, 1, beam_width=load.beam_width, prompt_logprobs=load.prompt_logprobs)
    if reason := sampling_refusal(asked, serve.max_logprobs):
        key = "beam_width" if load.beam_width else "prompt_logprobs"
        raise ConfigError(f"workload.synthetic.{key}", f"vLLM rejects such a request: {reason}")

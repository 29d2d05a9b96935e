"""Start-up of a scenario's engines: the figures of a machine by name, and what an engine of a deployment loads.

    startup = startup_of(Choice("h100-nvl", {"weights": "disk", "compile_cache": "cold"}))
    parts = startup.parts(engine_load(deployment))

A deployment is a `ksim.scenario.defaults.Deployment`.
"""

from ksim.autoscaling.startup import EngineLoad, Startup
from ksim.calibration.datasheet import merge
from ksim.foundation.config import Choice, structure
from ksim.foundation.units import DType
from ksim.scenario.defaults import Deployment, graphs
from ksim.scenario.hardware import with_base

__all__ = ["engine_load", "startup_of"]


def startup_of(choice: str | Choice = "default") -> Startup:
    """Read how engines start on a machine of ksim/data/startup, or of a file of one's own; a choice has other settings.

    Raises UnknownName for a name that there is not, DataError for a file that cannot be read, and ConfigError for a
    setting that cannot be.
    """
    name, options = (choice.name, choice.options) if isinstance(choice, Choice) else (choice, {})
    return structure(Startup, merge(with_base("startup", name), options), f"startup {name}")


def engine_load(deployment: Deployment) -> EngineLoad:
    """What each engine of *deployment* loads, compiles and captures when it starts.

    Weights are as they are served: a checkpoint that the engine quantizes as it loads is larger.  vLLM compiles and
    captures the layers of each pipeline stage on its own, so the longest stage counts, and full graphs beside
    piecewise ones (v1/worker/gpu_model_runner.py); SGLang compiles nothing unless asked for.
    """
    serve, model, shards = deployment.serve, deployment.model, deployment.shards
    captured = graphs(serve)
    held = [model.weights(shard) for shard in shards]
    longest = max(len(shard.share(model.layers)) for shard in shards)
    states = sum(kind.layers for kind in model.attention_kinds(shards[0]) if not kind.bytes_per_token)
    return EngineLoad(
        weights=sum(held) * serve.tensor_parallel_size, gpus=serve.gpus, layers=longest,
        vocabulary=model.decoder.sizes["V"], states=states * longest // model.layers,
        experts=bool(model.decoder.top_k), compiled="vLLM" in deployment.version.name and not serve.enforce_eager,
        graphs=0 if serve.enforce_eager else len(captured.full) + len(captured.piecewise) + len(captured.mixed),
        read=max(held) / deployment.gpu.bandwidth, deep_gemm=_uses_deep_gemm(deployment))


def _uses_deep_gemm(deployment: Deployment) -> bool:
    """Whether vLLM multiplies with DeepGEMM: FP8 weights with block scales, on Hopper and data-centre Blackwell."""
    return (deployment.serve.precision.weights is DType.FP8_BLOCK and "vLLM" in deployment.version.name
            and deployment.gpu.architecture in ("hopper", "blackwell"))

"""Start-up of a scenario's engines: the figures of a machine by name, and what an engine of a deployment loads.

    startup = startup_of(Choice("h100-nvl", {"weights": "page_cache", "compile_cache": "warm"}))
    parts = startup.parts(engine_load(deployment))

A deployment is a `ksim.scenario.defaults.Deployment`.
"""

from ksim.calibration.datasheet import merge
from ksim.foundation.config import Choice, structure
from ksim.foundation.units import GIB, DType
from ksim.scenario.defaults import Deployment, graphs
from ksim.scenario.hardware import with_base
from ksim.scenario.sizing import memory
from ksim.specs.startup import EngineLoad, Startup

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

    vLLM compiles and captures the layers of each pipeline stage on its own, so the longest stage counts, and full
    graphs beside piecewise ones (v1/worker/gpu_model_runner.py).  Other engines are taken to compile nothing.
    """
    serve, model = deployment.serve, deployment.model
    captured, held = graphs(serve), _held(deployment)
    longest = max(len(shard.share(model.layers)) for shard in deployment.shards)
    states = sum(kind.layers for kind in model.attention_kinds(deployment.shards[0]) if not kind.bytes_per_token)
    is_vllm = "vLLM" in deployment.version.name
    return EngineLoad(
        weights=sum(held) * serve.tensor_parallel_size, gpus=serve.gpus, layers=longest,
        vocabulary=model.decoder.sizes["V"], states=states * longest // model.layers,
        experts=bool(model.decoder.top_k), compiled=is_vllm and not serve.enforce_eager,
        graphs=0 if serve.enforce_eager else len(captured.full) + len(captured.piecewise) + len(captured.mixed),
        read=max(held) / deployment.gpu.bandwidth, deep_gemm=is_vllm and _multiplies_blocks(deployment))


def _held(deployment: Deployment) -> list[float]:
    """Bytes of weights that a GPU of each stage loads, a drafter's among them, and those that stay in host memory.

    They are as they are served: a checkpoint that the engine quantizes as it loads is larger.
    """
    model, gpu, serve = deployment.model, deployment.gpu, deployment.serve
    return [memory(model, shard, gpu, serve).weights + serve.cpu_offload_gb * GIB for shard in deployment.shards]


def _multiplies_blocks(deployment: Deployment) -> bool:
    """Whether vLLM multiplies with DeepGEMM: FP8 weights with block scales, on Hopper and data-centre Blackwell."""
    blocks = deployment.serve.precision.weights is DType.FP8_BLOCK
    return blocks and deployment.gpu.architecture in ("hopper", "blackwell")

"""Environment variables of engines: the few that change a schedule, and why the others do not."""

import re
from collections.abc import Mapping, Sequence

from ksim.deploy.commands.command import Word
from ksim.deploy.launches import Note

#: Patterns of names, and why they have no effect here; the first that matches counts.
_WHY: Sequence[tuple[str, str]] = (
    (r".*(TOKEN|API_KEY|SECRET|PASSWORD).*", "a secret"),
    (r"HF_.*|HUGGING.*|TRANSFORMERS_.*|.*CACHE.*|.*_HOME|.*_DIR|XDG_.*|MODELSCOPE_.*",
     "where weights and caches lie; ksim simulates an engine that has started"),
    (r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER",
     "ksim places engines on GPUs by itself"),
    (r"NCCL_.*|NVSHMEM_.*|UCX_.*|GLOO_.*|MC_.*|RDMAV_.*|FI_.*|MPI_.*|OMPI_.*|PMIX_.*|.*NIXL.*|MOONCAKE_.*",
     "settings of communication libraries; ksim prices messages on the system's links"),
    (r".*LOG.*|.*TRACE.*|.*DEBUG.*|.*PROFIL.*|TQDM.*|.*USAGE_STATS.*|.*TELEMETRY.*",
     "logs and tracing change no schedule"),
    (r"PYTHON.*|PATH|LD_.*", "how Python runs"),
    (r"VLLM_USE_V1", "vLLM's V1 engine is the only one that is simulated"),
    (r"VLLM_.*|SGLANG_.*|SGL_.*|TRTLLM_.*|TLLM_.*|TORCH.*|PYTORCH_.*|FLASHINFER_.*|TRITON_.*|CUDA_.*|OMP_.*|MKL_.*",
     "how kernels and processes run; ksim's profiles are of those that the engine chooses by itself"),
)


def notes_of(environment: Mapping[str, Word]) -> tuple[Note, ...]:
    """Why each variable has no effect, for those that are about engines at all."""
    notes = ((name, word, _why(name)) for name, word in environment.items())
    return tuple(Note(word.where, name if why == "a secret" else f"{name}={word.text}", why)
                 for name, word, why in notes)


def _why(name: str) -> str:
    other = "no variable that the engine is known for"
    return next((why for pattern, why in _WHY if re.fullmatch(pattern, name)), other)

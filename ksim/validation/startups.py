"""Measured start-ups, phase by phase, beside what ksim says: the rows of a table such as `startup.csv`.

The table has a row for each phase of a start, with the columns `COLUMNS` and seconds.  `_MODELS` are its models by the
catalogue's name, with the published sizes of those that the catalogue lacks; `_SOURCES` how each source has started
them.  A cold row whose weights were cached all the same is told by its own `load_weights`, as the table's README says.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen

from ksim.foundation.config import Choice
from ksim.foundation.errors import DataError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scenario.startup import engine_load, startup_of
from ksim.specs.startup import EngineLoad, Startup, StartupPart

__all__ = ["LIMIT", "PhaseErrors", "StartupRow", "by_phase", "validate"]

COLUMNS = ("source", "run", "model", "gpu", "tp", "engine", "state", "phase", "seconds")
#: Rows within this share of what was measured are good.
LIMIT = 0.15


def _llama(hidden: int, mlp: int, layers: int, heads: int, kv: int, words: int) -> tuple[str, dict[str, Any]]:
    return "llama-2-7b", {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
                          "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": words}


def _qwen(hidden: int, mlp: int, layers: int, heads: int, tied: bool = False) -> tuple[str, dict[str, Any]]:
    return "qwen2.5-7b", {**_llama(hidden, mlp, layers, heads, heads, 151936)[1], "tie_word_embeddings": tied}


#: Falcon's two matrices of an MLP are as large as three of 12,117 columns.
_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "falcon-7b": _llama(4544, 12117, 32, 71, 1, 65024), "llama2-13b-hf": _llama(5120, 13824, 40, 40, 40, 32000),
    "yi-6b": _llama(4096, 11008, 32, 32, 4, 64000), "yi-9b": _llama(4096, 11008, 48, 32, 4, 64000),
    "qwen-0.5b": _qwen(1024, 2816, 24, 16, True), "qwen-1.8b": _qwen(2048, 5504, 24, 16),
    "qwen-4b": _qwen(2560, 6912, 40, 20), "qwen-7b": _qwen(4096, 11008, 32, 32),
    "qwen-14b": _qwen(5120, 13696, 40, 40), "qwen-14.3b": ("qwen1.5-moe-a2.7b", {}),
    "llama2-7b-hf": ("llama-2-7b", {}), "llama3-3b": ("llama-3.2-3b", {}),
    "deepseek-r1-distill-llama-8b": ("llama-3.1-8b", {}), "deepseek-r1-distill-qwen-7b": ("qwen2.5-7b", {}),
    "deepseek-v2-lite-16b": ("deepseek-v2-lite", {}), "gpt-oss-20b": ("gpt-oss-20b", {}),
    "granite3.3-8b-instruct": ("granite-3.1-8b", {}), "granite4.0-h-32b": ("granite-4.0-h-small", {}),
    "granite4.0-h-3b": ("granite-4.0-h-micro", {}), "llama3.1-8b-instruct": ("llama-3.1-8b", {}),
    "Qwen3-32B": ("qwen3-32b", {}), "openai/gpt-oss-120b": ("gpt-oss-120b", {}),
    "Llama-3.3-70B-Instruct": ("llama-3.3-70b", {}), "Llama-70B fp8": ("llama-3.1-70b", {}),
    "llama3.2 (3.42 GiB, q8)": ("llama-3.2-3b", {}), "Qwen3.6-35B-A3B-NVFP4": ("qwen3.5-35b-a3b", {}),
    "Meta-Llama-3-8B": ("llama-3.1-8b", {}), "Qwen3-30B-A3B fp8": ("qwen3-30b-a3b", {}),
    "Qwen3-8B (dense 8B)": ("qwen3-8b", {}), "Qwen3-0.6B": ("qwen3-0.6b", {}),
}
_QUANTIZED = {"Llama-70B fp8": "fp8", "llama3.2 (3.42 GiB, q8)": "fp8", "Qwen3.6-35B-A3B-NVFP4": "nvfp4",
              "Qwen3-30B-A3B fp8": "fp8_block"}
#: By source, or by the machine of a run of `upb`: the figures, the GPU (H100 where it is not stated) and the release.
_SOURCES = {
    "A100": ("a100", "a100-80g", "vllm-0.11"), "node7": ("h100-nvl", "h100-nvl", "vllm-0.11"),
    "node5": ("l40s", "l40s", "vllm-0.11"), "llmd_gke": ("gke", "h100", "vllm-0.22"),
    "llmd_mx_gptoss": ("default", "h200", "vllm-0.22"), "llmd_mx_llama": ("default", "h200", "vllm-0.22"),
    "vllm_19824": ("h100-nvl", "h100", "vllm-0.11"), "vllm_20264": ("h100-nvl", "h100", "vllm-0.11"),
    "vllm_44881": ("default", "rtx-5090", "vllm-0.22"), "vllm_11005": ("h100-nvl", "h100", "vllm-0.11"),
    "vllm_47456": ("default", "h100-nvl", "vllm-0.22"), "vllm_32191": ("default", "h100", "vllm-0.22"),
    "llmd_wva": ("default", "h100", "vllm-0.22"),
}
#: What of these a table's `state` says; the rest is as in the data file.
_STATES: Mapping[str, Mapping[str, Any]] = {
    "warm": {"compile_cache": "warm", "weights": "page_cache"}, "cold": {},
    "snapshot restore": {"mode": "snapshot", "image": "on_node"},
    "cold compile cache": {"weights": "peer"},
    "compile cache sent by peer": {"weights": "peer", "compile_cache": "warm"},
    "weights over RDMA": {"weights": "peer"}, "peer GPU over RDMA": {"weights": "peer"},
    "weights from warm NFS": {"weights": "network"}, "default loader, prewarmed NFS": {"weights": "network"},
    "fastsafetensors, prewarmed NFS": {"weights": "network"}, "fastsafetensors, warm local NVMe": {"weights": "disk"},
    "weights in page cache, cold compile": {"weights": "page_cache"}, 
    "warm compile cache": {"compile_cache": "warm", "weights": "page_cache"},
    "eager": {}, "compile cold": {},
    "cold, no kernel cache": {"weights": "page_cache", "flashinfer_jit": "120 s"},
    "cold, prebuilt FlashInfer kernels": {"weights": "page_cache"},
    "prebuilt": {"compile_cache": "warm", "weights": "page_cache"}, "replica added": {},
}
_COMPILED = ("dynamo", "compile")
_INITIALIZED = (*_COMPILED, "flashinfer_jit", "deepgemm_warmup", "profiling", "capture")
_NAMED = ("imports", "tokenizer", "distributed", "download", "weights", "model", *_INITIALIZED)
#: The parts of which a phase is the sum; those that no part has are not here.  "" is the whole start.
_PHASES: Mapping[str, tuple[str, ...]] = {
    "framework_bootstrap": ("imports",), "imports": ("imports",), "tokenizer_init": ("tokenizer",),
    "container_to_config": ("imports", "tokenizer"), "load_weights": ("weights",),
    "model_loading": ("download", "weights", "model"), "dynamo_transform_time": ("dynamo",),
    "graph_compile_cached": ("compile",), "graph_compile_general_shape": ("compile",), "torch_compile": _COMPILED,
    "kv_cache_profiling": ("profiling",), "profile_and_misc": ("profiling",), "graph_capturing": ("capture",),
    "profile_and_warmup": ("profiling", "capture"), "init_engine": _INITIALIZED, "image_pull": ("image",),
    "mount_and_sandbox": ("mount",), "restore_process": ("restore",), "wake_up": ("wake",),
    "deepgemm_warmup": ("deepgemm_warmup",), "flashinfer_first_use": ("flashinfer_jit",),
    "wake_to_ready": ("wake", "ready"), "sleep_level1": ("offload",), "total": _NAMED, "wall": (), "pod_ready": (),
    "pod_startup": (), "wall_to_first_token": (), "first_response": (),
}


@frozen
class StartupRow:
    """A measured phase and what ksim says of it, in seconds; None where no part of a start is that phase.

    `fitted` rows are among those to which the figures of the machine were fitted.
    """

    source: str
    run: str
    model: str
    gpu: str
    state: str
    phase: str
    measured: float
    predicted: float | None
    fitted: bool

    @property
    def error(self) -> float | None:
        """The signed error as a share of what was measured."""
        if self.predicted is None or self.predicted == self.measured:
            return None if self.predicted is None else 0.0
        return self.predicted / self.measured - 1 if self.measured else inf

    @property
    def good(self) -> bool:
        return self.error is not None and abs(self.error) <= LIMIT


@frozen
class PhaseErrors:
    """The rows of a phase: how many, how many have a prediction, and how far off those are, as shares."""

    phase: str
    rows: int
    known: int
    median: float | None
    within: int
    #: Of rows to which nothing was fitted: how many, and how many of them are within `LIMIT`.
    checked: int
    checked_within: int


def by_phase(rows: Sequence[StartupRow]) -> list[PhaseErrors]:
    """The errors of each phase, in the order of the table, and those of all."""
    phases = {row.phase: [other for other in rows if other.phase == row.phase] for row in rows}
    return [_errors(phase, members) for phase, members in {**phases, "all": list(rows)}.items()]


def _errors(phase: str, rows: Sequence[StartupRow]) -> PhaseErrors:
    known = [abs(row.error) for row in rows if row.error is not None]
    checks = [row for row in rows if not row.fitted]
    return PhaseErrors(phase, len(rows), len(known), median(known) if known else None, sum(row.good for row in rows),
                       len(checks), sum(row.good for row in checks))


def validate(path: Path) -> list[StartupRow]:
    """Each row of the table at *path*; raises DataError for what is no such table, with the line."""
    table = list(_read(path))
    starts: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in table:
        starts.setdefault(tuple(row[key] for key in COLUMNS[:-2]), []).append(row)
    fitted = _fitted(starts)
    return [found for key, rows in starts.items() for found in _start(rows, key in fitted)]


def _read(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
                raise DataError(str(path), f"is no table of start-ups: it has no column {', '.join(missing)}")
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise DataError(where, "has more or fewer cells than the header")
                yield {**row, "where": where}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(str(path), getattr(error, "strerror", None) or "is no text in UTF-8") from None


def _fitted(starts: Mapping[tuple[str, ...], Any]) -> set[tuple[str, ...]]:
    """The starts to which figures were fitted: of `upb`'s runs every other model, of the rest those that files name."""
    chosen = {key for key in starts if key[0] in ("llmd_gke", "vllm_32191") or key[2] == "Qwen3-30B-A3B fp8"
              or (key[0], key[6]) == ("llmd_mx_gptoss", "cold compile cache")}
    chosen |= {key for key in starts if key[:2] == ("llmd_mx_llama", "mx-llama-70b")
               and key[6] in ("default loader, prewarmed NFS", "peer GPU over RDMA")}
    for run in {key[1] for key in starts if key[0] == "upb"}:
        models = sorted({key[2] for key in starts if key[1] == run})
        chosen |= {key for key in starts if key[1] == run and key[2] in models[::2]}
    return chosen


def _start(rows: Sequence[dict[str, str]], fitted: bool) -> Iterator[StartupRow]:
    """The rows of one start."""
    first = rows[0]
    name = first["run"].partition("-")[0] if first["source"] == "upb" else first["source"]
    for key, known, value in (("source", _SOURCES, name), ("model", _MODELS, first["model"]),
                              ("state", _STATES, first["state"])):
        if value not in known:
            raise DataError(first["where"], f"{key} {value!r} is not known; expected one of {', '.join(known)}")
    figures, gpu, release = _SOURCES[name]
    measured = {row["phase"]: _seconds(row) for row in rows}
    if not re.fullmatch(r"[1-9]?", first["tp"]):
        raise DataError(first["where"], f"tp {first['tp']!r} is no number of GPUs")
    engine = _engine(first["model"], int(first["tp"] or 1), gpu, release, first["state"] == "eager")
    startup = _startup(first, figures, engine, measured.get("load_weights"))
    parts = {part.name: part.seconds for part in [*startup.parts(engine), *_asleep(startup, engine)]}
    whole = sum(seconds for part, seconds in parts.items() if part != "offload")
    for phase, seconds in measured.items():
        yield StartupRow(**{key: first[key] for key in ("source", "run", "model", "gpu", "state")}, phase=phase,
                         measured=seconds, predicted=_predicted(first, phase, parts, whole, measured), fitted=fitted)


def _asleep(startup: Startup, engine: EngineLoad) -> list[StartupPart]:
    return startup.sleep(engine) if startup.mode == "process" else []


def _predicted(first: Mapping[str, str], phase: str, parts: Mapping[str, float], whole: float,
               measured: Mapping[str, float]) -> float | None:
    """What *parts* say of *phase*; a total of named phases is the sum of those that its source counts."""
    if phase not in _PHASES:
        return None
    names: Sequence[str] = _PHASES[phase]
    if phase == "total" and (first["source"] in ("llmd_gke", "vllm_32191")):
        return whole
    if phase == "total" and first["source"] == "upb":
        named = {part for other in measured for part in _PHASES.get(other, ()) if other not in ("total", "wall")}
        names = [part for part in names if part in named]
    if phase == "init_engine" and first["source"] == "vllm_47456":
        names = ("weights", *names)
    if not names:
        return whole
    return sum(parts[part] for part in names if part in parts) if any(part in parts for part in names) else None


def _seconds(row: Mapping[str, str]) -> float:
    """The seconds of *row*; the middle of a range such as 103-110."""
    ends = re.fullmatch(r"([\d.]+)(?:-([\d.]+))?", row["seconds"])
    try:
        found = (float(ends[1]) + float(ends[2] or ends[1])) / 2 if ends else float("nan")
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise DataError(row["where"], f"seconds {row['seconds']!r} is no number and no range such as 103-110")
    return found


@cache
def _engine(name: str, ranks: int, gpu: str, release: str, eager: bool) -> EngineLoad:
    """What the engine of a start loads; before full graphs were the default, it captured 35 sizes up to 256 tokens."""
    model, overrides = _MODELS[name]
    serve: dict[str, Any] = {"tensor_parallel_size": ranks, "hf_overrides": overrides,
                             "quantization": _QUANTIZED.get(name, "auto"), "enforce_eager": eager}
    if release == "vllm-0.11" and not eager:
        serve |= {"max_num_seqs": 256, "max_cudagraph_capture_size": 256, "cudagraph_mode": "PIECEWISE"}
    fixed = {"kind": "fixed", "value": 1}
    workload = {"synthetic": {"count": 1, "arrivals": {"process": "burst"}, "prompt": fixed, "output": fixed}}
    scenario = {"model": model, "gpu": gpu, "engine": release, "serve": serve, "workload": workload}
    return engine_load(Deployment.of(Scenario.of(scenario)))


def _startup(first: Mapping[str, str], figures: str, engine: EngineLoad, loaded: float | None) -> Startup:
    """The figures and the state of a start; a cold one has its weights where its own *loaded* seconds say."""
    found = startup_of(Choice(figures, _STATES[first["state"]]))
    if first["source"] == "upb" and first["state"] == "cold" and loaded is not None:
        cached = engine.weights / found.paths.page_cache
        return startup_of(Choice(figures, {"weights": "page_cache" if loaded < 2 * cached else "disk"}))
    if (first["source"], first["state"]) == ("vllm_32191", "cold"):  # `vllm bench startup` only empties vLLM's cache
        return startup_of(Choice(figures, {"weights": "page_cache"}))
    return found

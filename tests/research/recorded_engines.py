"""Recordings of runs that ksim made itself, in the files that a real engine's are kept in."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.research.serving import recordings
from benchmarks.research.serving.recordings import RecordedRun, Recording, Sent
from ksim.flow.events import Stepped
from ksim.views.result import Result

#: Two layers: quick to simulate.
CONFIG = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
          "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 8192}
#: As vLLM's arguments are written down: as texts, with some that say nothing of what an engine does.
ARGUMENTS = {"model": "tiny", "load_format": "dummy", "max_model_len": "4096", "max_num_batched_tokens": "512",
             "max_num_seqs": "16", "enable_prefix_caching": "True"}
BLOCKS = 2000


def sent(*lengths: tuple[int, int], every: float = 0.0, group: int | None = None, prefix: int = 0) -> list[Sent]:
    """Requests of (prompt, output) tokens, one *every* so many seconds."""
    return [Sent(number, number * every, prompt, output, group, prefix, 0.0, 0.0)
            for number, (prompt, output) in enumerate(lengths)]


def run(name: str, requests: Sequence[Sent], concurrency: int | None = None) -> RecordedRun:
    return RecordedRun(name, concurrency, tuple(requests), (), None, None)


def played(loaded: RecordedRun, arguments: dict[str, str] = ARGUMENTS) -> Result:
    """What ksim makes of a run."""
    recording = Recording("tiny", Path("tiny"), CONFIG, arguments, {"num_gpu_blocks_override": BLOCKS}, ())
    deployment, _ = recordings.deployment_of(recording, recordings.ServerSpec())
    return recordings.simulate(deployment, loaded)


def record(folder: Path, runs: Sequence[RecordedRun], name: str = "tiny", arguments: dict[str, str] = ARGUMENTS,
           slower: float = 1.0) -> Path:
    """Write down what ksim makes of *runs*, with all times *slower*; return the engine's file."""
    requests: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    facts = []
    for loaded in runs:
        result = played(loaded, arguments)
        requests += _requests(loaded, result, slower)
        steps += _steps(loaded, result, slower)
        facts.append({"run": loaded.name, "wall_s": slower * result.history.duration,
                      "joules": result.summary["energy_joules"]})
    pq.write_table(pa.Table.from_pylist(requests), folder / f"requests_{name}.parquet")
    pq.write_table(pa.Table.from_pylist(steps), folder / f"steps_{name}.parquet")
    path = folder / f"engine_{name}.json"
    path.write_text(json.dumps({"config": CONFIG, "engine_args": arguments, "num_gpu_blocks": BLOCKS, "runs": facts}))
    return path


def _requests(loaded: RecordedRun, result: Result, slower: float) -> list[dict[str, Any]]:
    times = result.history.requests
    return [{"run": loaded.name, "index": one.index, "concurrency": loaded.concurrency, "sent_s": one.sent,
             "isl": one.prompt, "osl": one.output, "prefix_group": one.prefix_group, "prefix_len": one.prefix,
             "ttft_s": slower * float(ttft), "e2e_s": slower * float(e2e)}
            for one, ttft, e2e in zip(loaded.requests, times.ttft, times.e2e, strict=True)]


def _steps(loaded: RecordedRun, result: Result, slower: float) -> list[dict[str, Any]]:
    return [{"run": loaded.name, "schedule_start_s": slower * step.scheduled, "decodes": len(step.batch.contexts),
             "decode_context_tokens": step.batch.contexts.total + len(step.batch.contexts),
             "prefills": json.dumps([list(chunk) for chunk in step.batch.chunks])}
            for step in result.log.of(Stepped)]

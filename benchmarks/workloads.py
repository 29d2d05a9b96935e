"""The fixed workloads, as scenario tables."""

from pathlib import Path
from typing import Any

from ksim.deploy.commands import ImportOptions
from ksim.deploy.importing import assembled, joined, read
from ksim.deploy.texts import Pasted

_SHARED = Path(__file__).parents[2] / "shared" / "data"
#: Peers' speed workloads, where they are at hand: Poisson arrivals, lengths of Azure's 2023 conversations; the last
#: comes four times as fast as it can be served.
PEERS = [_SHARED / "bench" / f"{name}.csv" for name in ("w5000_qps6.45", "w20000_qps6.45", "w20000_qps25.8")]
#: Mooncake's conversations, whose prompts share prefixes by the hashes of their pieces.
MOONCAKE = _SHARED / "traces" / "mooncake_fast25" / "conversation_trace.jsonl"
#: Launch lines of groups of data-parallel ranks: an SGLang engine on 8 GPUs, and a prefill and a decode engine of vLLM
#: on 40, whose experts are spread over all of an engine's GPUs.
LINES = {
    "DeepSeek-V3, SGLang DP8": "python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --tp 8 --dp 8"
                               " --enable-dp-attention",
    "DeepSeek-R1, wide EP on 40": """
        vllm serve deepseek-ai/DeepSeek-R1-0528 --port 8100 --enable-expert-parallel --data-parallel-size 8 \\
          --all2all-backend deepep_high_throughput \\
          --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
        vllm serve deepseek-ai/DeepSeek-R1-0528 --port 8200 --enable-expert-parallel --data-parallel-size 32 \\
          --all2all-backend deepep_low_latency \\
          --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
    """,
}


def scenarios() -> dict[str, dict[str, Any]]:
    """Scenario tables by name."""
    found = {
        "decode-heavy": _synthetic(count=4000, rate=8.0, prompt=_fixed(128), output=_uniform(200, 600)),
        "prefill-heavy": _synthetic(count=4000, rate=5.0, prompt=_uniform(2000, 6000), output=_fixed(16)),
        "prefix-heavy": _synthetic(count=4000, rate=10.0, prompt=_uniform(2200, 3200), output=_uniform(50, 150),
                                   prefixes={"groups": 16, "tokens": 2048}),
        "autoscaled, 20/s": _autoscaled(), "512 engines": _idle(512),
        **{name: _imported(line) for name, line in LINES.items()},
    }
    found |= {path.stem: _on_a100({"replay": {"path": str(path)}}, tokens=512, sequences=512)
              for path in PEERS if path.exists()}
    if MOONCAKE.exists():
        found |= {"mooncake": _mooncake({"tensor_parallel_size": 4}),
                  "mooncake, 4 replicas": _mooncake({"data_parallel_size": 4}),
                  "mooncake, overload": _mooncake({})}
    return found


def fleets() -> dict[str, dict[str, Any]]:
    """The same conversations on eight engines: each serves whole requests, or half of them prefill for the others."""
    if not MOONCAKE.exists():
        return {}
    split = {**_mooncake({}), "pools": {"prefill": {"role": "prefill", "replicas": 4},
                                        "decode": {"role": "decode", "replicas": 4}}}
    return {"mooncake, 8 replicas": _mooncake({"data_parallel_size": 8}), "mooncake, 4 prefill and 4 decode": split}


def conversations() -> dict[str, Any]:
    """The first of the peers' workloads, or where it is not at hand, one that is drawn alike."""
    if PEERS[0].exists():
        return scenarios()[PEERS[0].stem]
    lengths = {"kind": "table", "name": "azure-conv-2023"}
    arrivals = {"process": "poisson", "rate": 6.45}
    drawn = {"count": 5000, "arrivals": arrivals, "prompt": lengths, "output": lengths, "max_tokens": 4096}
    return _on_a100({"synthetic": drawn}, tokens=512, sequences=512)


def _autoscaled() -> dict[str, Any]:
    """Ten minutes of a day at 20 requests/s: eight replicas, and up to 64, as an HPA says."""
    target = {"type": "AverageValue", "averageValue": 32}
    metric = {"type": "Pods", "pods": {"metric": {"name": "vllm:num_requests_running"}, "target": target}}
    return {**_synthetic(count=12_000, rate=20.0, prompt=_fixed(1000), output=_fixed(200)), "gpu": "h100", "nodes": 8,
            "router": "least_outstanding", "pools": {"main": {
                "role": "both", "replicas": 8, "max_replicas": 64, "autoscaler": {
                    "name": "hpa", "minReplicas": 8, "maxReplicas": 64, "metrics": [metric]}}}}


def _idle(engines: int) -> dict[str, Any]:
    """So many engines with little to do, whose clients wait for answers, so that each may concern others."""
    made = _synthetic(count=2000, rate=50.0, prompt=_fixed(1000), output=_fixed(100))
    return {**made, "nodes": engines // 8, "router": "least_outstanding",
            "serve": {**made["serve"], "data_parallel_size": engines},
            "workload": {**made["workload"], "max_concurrency": 2 * engines}}


def _imported(line: str) -> dict[str, Any]:
    """What `ksim import LINE --gpu h200` makes, with 60 requests of the load that it makes up."""
    options = ImportOptions(gpu="h200")
    table = {**assembled(joined([read(Pasted(line, "line", Path()), options)]), options).table}
    table["workload"]["synthetic"]["count"] = 60
    return table


def _synthetic(count: int, rate: float, **parts: Any) -> dict[str, Any]:
    arrivals = {"process": "poisson", "rate": rate}
    table = {"model": "llama-3.1-8b", "gpu": "h200", "serve": {"max_model_len": 16384},
             "workload": {"synthetic": {"count": count, "arrivals": arrivals, **parts}}}
    return table


def _mooncake(serve: dict[str, Any]) -> dict[str, Any]:
    """Four H200s hold its 41,000 prompt tokens a second, of which one computes half.  Its longest request has 124,741
    tokens, and all are to be served."""
    return {"model": "llama-3.1-8b", "gpu": "h200", "serve": {"max_model_len": 131072, **serve},
            "workload": {"replay": {"path": str(MOONCAKE)}}}


def _on_a100(workload: dict[str, Any], tokens: int, sequences: int) -> dict[str, Any]:
    return {"model": "llama-3.1-8b", "gpu": "a100-80g", "workload": workload,
            "serve": {"max_num_batched_tokens": tokens, "max_num_seqs": sequences, "max_model_len": 8192}}


def _fixed(value: int) -> dict[str, Any]:
    return {"kind": "fixed", "value": value}


def _uniform(low: int, high: int) -> dict[str, Any]:
    return {"kind": "uniform", "low": low, "high": high}

"""Lines of benchmark clients become workloads."""

import pytest

from ksim.foundation.errors import ConfigError
from tests.deploy.launching import table_of

SERVE = "vllm serve Qwen/Qwen3-8B"


def load(flags, client="vllm bench serve"):
    return table_of(SERVE, bench=f"{client} {flags}")


def test_vllms_client_is_read_flag_by_flag():
    table = load("--random-input-len 1000 --random-output-len 100 --random-range-ratio 0.2 --random-prefix-len 64"
                 " --request-rate 5 --num-prompts 50 --max-concurrency 8 --seed 7 --goodput ttft:500 tpot:20.5")
    assert table["workload"] == {"max_concurrency": 8, "synthetic": {
        "count": 50, "arrivals": {"process": "poisson", "rate": 5.0, "exact": True},
        "prompt": {"kind": "uniform", "low": 800, "high": 1200}, "output": {"kind": "uniform", "low": 80, "high": 120},
        "prefixes": {"groups": 1, "tokens": 64}}}
    assert table["seed"] == 7 and table["slo"] == {"ttft": "500 ms", "tpot": "20.5 ms"}
    gamma = load("--request-rate 5 --burstiness 0.5")["workload"]["synthetic"]["arrivals"]
    assert gamma == {"process": "gamma", "rate": 5.0, "burstiness": 0.5, "exact": True}


def test_datasets_have_workloads_of_their_own(tmp_path):
    repeated = load("--dataset-name prefix_repetition --prefix-repetition-num-prefixes 4")["workload"]["synthetic"]
    assert repeated["prefixes"] == {"groups": 4, "tokens": 256}
    groups = load("--dataset-name generated-shared-prefix --gsp-num-groups 2", "python -m sglang.bench_serving")
    assert groups["workload"]["synthetic"]["count"] == 32
    spread = load("--dataset-name random --random-range-ratio 0.5 --random-input-len 100",
                  "python3 -m sglang.bench_serving")["workload"]["synthetic"]
    assert spread["prompt"] == {"kind": "uniform", "low": 50, "high": 100}
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [0]}\n', encoding="utf-8")
    replay = load(f"--dataset-name timed_trace --dataset-path {trace}")["workload"]["replay"]
    assert replay["format"] == "mooncake" and replay["path"].endswith("trace.jsonl")


@pytest.mark.parametrize(("line", "says"), [
    ("ab -n 100 http://x", "starts no client"), ("vllm bench serve --request-rat", "needs a value"),
    ("vllm bench serve --requestrate 3", "did you mean --request-rate?"),
    ("vllm bench serve --goodput ttft", "ttft:MS"), ("vllm bench serve --dataset-name hf", "is not simulated"),
    ("vllm bench serve --random-range-ratio x", "range-ratio"),
    ("vllm bench serve --random-range-ratio 3", "from 0 to 1"), ("vllm bench serve --use-beam-search", "beam_width"),
    ("vllm bench serve --ramp-up-strategy linear", "rates that rise"), ("vllm bench serve more", "belongs to no flag"),
])
def test_what_cannot_be_is_named(line, says):
    with pytest.raises(ConfigError) as refused:
        table_of(SERVE, bench=line)
    assert says in str(refused.value) and "--bench" in str(refused.value)

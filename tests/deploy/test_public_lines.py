"""Launch lines of public pages become scenarios that can be built, or are refused with a reason."""

import tomllib
from pathlib import Path

import pytest

from ksim.foundation.errors import KsimError
from tests.deploy.launching import table_of

FOLDER = Path(__file__).parent / "lines"
LINES = tomllib.loads((FOLDER / "public.toml").read_text(encoding="utf-8"))["line"]
#: Scripts of InferenceMAX, with the variables that its runs set.
SCRIPTS = {
    "inferencemax_70b_fp8_h100": ("h100", {"MODEL": "nvidia/Llama-3.3-70B-Instruct-FP8", "TP": "4", "PORT": "8888"},
                                  {"kv_cache_dtype": "fp8", "max_model_len": 10240, "max_num_seqs": 64}),
    "inferencemax_dsr1_fp8_b200": ("b200", {"MODEL": "deepseek-ai/DeepSeek-R1-0528", "TP": "8",
                                            "SCHEDULER_RECV_INTERVAL": "30"},
                                   {"fuse_allreduce_rms": True, "sglang": {
                                       "max_running_requests": 128, "mem_fraction_static": 0.82,
                                       "chunked_prefill_size": 32768, "max_prefill_tokens": 32768,
                                       "scheduler_recv_interval": 30, "disable_radix_cache": True}}),
    "inferencemax_70b_fp8_h200_trt": ("h200", {"MODEL": "nvidia/Llama-3.3-70B-Instruct-FP8", "TP": "4",
                                               "PORT_OFFSET": "0", "MAX_MODEL_LEN": "10240", "SERVER_LOG": "log"},
                                      {"max_cudagraph_capture_size": 1024, "scheduling_policy": {
                                          "name": "batch_wait", "budget": 16384, "ratio": 0.9, "iterations": 20}}),
}


@pytest.mark.parametrize("line", LINES, ids=[line["source"] for line in LINES])
def test_a_public_line_becomes_a_scenario(line):
    wanted = {"gpu": line["gpu"], "environment": line.get("environment", {})}
    if "refused" in line:
        with pytest.raises(KsimError, match=line["refused"]):
            table_of(line["text"], **wanted)
        return
    table = table_of(line["text"], **wanted)
    assert {key: table.get("serve", {}).get(key) for key in line.get("serve", {})} == line.get("serve", {})
    assert {name: pool["replicas"] for name, pool in table.get("pools", {}).items()} == line.get("pools", {})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_inferencemax_becomes_a_scenario(name):
    gpu, variables, settings = SCRIPTS[name]
    text = (FOLDER / f"{name}.sh").read_text(encoding="utf-8")
    serve = table_of(text, gpu=gpu, environment={"CONC": "64", **variables})["serve"]
    assert {key: serve[key] for key in settings} == settings


def test_its_client_is_the_workload():
    variables = {"MODEL": "nvidia/Llama-3.3-70B-Instruct-FP8", "TP": "4", "PORT": "8888", "CONC": "64", "ISL": "1024",
                 "OSL": "512", "RANDOM_RANGE_RATIO": "0.8", "RESULT_FILENAME": "x"}
    path = FOLDER / "inferencemax_70b_fp8_h100.sh"
    load = table_of(path.read_text(encoding="utf-8"), gpu="h100", environment=variables, bench=str(path))["workload"]
    assert load == {"max_concurrency": 64, "synthetic": {
        "count": 640, "ignore_eos": True, "arrivals": {"process": "burst"},
        "prompt": {"kind": "uniform", "low": 819, "high": 1024},
        "output": {"kind": "uniform", "low": 409, "high": 512}}}

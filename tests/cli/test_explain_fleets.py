"""`ksim explain` and `ksim diff` of runs with pools, as a user meets them; and such a run streamed."""

import json

import pytest
from pyarrow import parquet

from .command import ksim_here

SPLIT = """
[pools.prefill]
role = "prefill"

[pools.decode]
role = "decode"
"""
SCENARIO = """
model = "llama-3.2-1b"
gpu = "h200"
serve = { max_model_len = 8192 }

[workload.synthetic]
count = 30
prompt = { kind = "lognormal", median = 3000, sigma = 0.3 }
output = { kind = "uniform", low = 2, high = 40 }
arrivals = { process = "poisson", rate = 20 }
"""


def ksim(*words, folder):
    outcome = ksim_here(*words, folder=folder)
    assert outcome.status == 0, outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same requests on two GPUs together, and on one that prefills for the other; that once streamed too."""
    folder = tmp_path_factory.mktemp("runs")
    whole = SCENARIO.replace("max_model_len = 8192", "max_model_len = 8192, tensor_parallel_size = 2")
    for name, text in (("whole", whole), ("split", SCENARIO + SPLIT)):
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
        ksim("run", f"{name}.toml", "-o", name, "--quiet", "--no-plots", "--no-trace", folder=folder)
    ksim("run", "split.toml", "-o", "streamed", "--quiet", "--stream", folder=folder)
    return folder


def test_one_request_of_two_engines_is_explained(runs):
    out = ksim("explain", "split", "--request", 11, "--json", "e.json", "-o", "plots", folder=runs)
    assert "prefilled by engine 0, decoded by 1" in out
    rows = {line.strip().split("  ")[0]: line.split() for line in out.splitlines() if line.strip()}
    assert {"hop", "wait for room", "KV transfer", "KV contention", "next step"} <= rows.keys()
    first = json.loads((runs / "e.json").read_text())["times"]["to_first"]
    assert all(first["phases"][name] > 0 for name in ("queue", "hop", "room", "transfer", "next_step"))
    assert sum(first["phases"].values()) == pytest.approx(first["seconds"], abs=1e-9)
    assert (runs / "plots" / "explain.png").stat().st_size > 10_000


def test_diff_of_one_engine_and_two_says_what_makes_the_difference(runs):
    out = ksim("diff", "whole", "split", "--json", "d.json", "-o", "plots", folder=runs)
    assert "30 requests that completed in both" in out and "split by pool" in out
    assert "a prompt is computed by 1 GPU in the second run, by 2 GPUs in the first" in out
    assert "GPUs busy in the second run: prefill" in out
    found = json.loads((runs / "d.json").read_text())
    change = found["times"]["mean_ttft"]["change"]
    assert sum(change["phases"].values()) == pytest.approx(change["seconds"])
    assert any(reason.startswith("TTFT, own prefill") for reason in found["reasons"])
    again = ksim("diff", "split", "whole", folder=runs)
    assert "a prompt is computed by 2 GPUs in the second run, by 1 GPU in the first" in again
    assert "delay no decode" not in again


def test_a_run_without_pools_is_explained_without_them(runs):
    assert "KV transfer" not in ksim("explain", "whole", folder=runs)
    assert "GPUs busy" not in ksim("diff", "whole", "whole", folder=runs)


def test_a_streamed_fleet_says_what_a_kept_one_says(runs):
    kept, streamed = (json.loads((runs / name / "summary.json").read_text()) for name in ("split", "streamed"))
    for name, pool in kept["pools"].items():
        for key, value in pool.items():
            close = pytest.approx(value, rel=2e-3, abs=1e-9) if isinstance(value, float) else value
            assert streamed["pools"][name][key] == close, key
    rows = [parquet.read_table(runs / name / "requests.parquet").sort_by("id").to_pylist()
            for name in ("split", "streamed")]
    for one, other in zip(*rows, strict=True):
        assert {key: value for key, value in one.items() if key in other and not isinstance(value, float)} == {
            key: value for key, value in other.items() if not isinstance(value, float)}
        assert (one["transfer_bytes"], one["ttft_s"]) == pytest.approx((other["transfer_bytes"], other["ttft_s"]))

"""The command line, as a user meets it."""

import gzip
import json
import os
import tomllib

import pytest
from pyarrow import parquet

from ksim.simulation import simulate
from tests.cli.command import ROOT, SCENARIO, TRACE, ksim, ksim_here, ksim_process


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


def test_run_writes_a_directory_that_runs_again_to_the_same_bytes(scenario):
    assert "12 requests completed" in ksim("run", "s.toml", "-o", "a", "--set", "serve.max_num_seqs=4", "--no-plots",
                                           folder=scenario)
    ksim_process("run", "a/scenario.toml", "-o", "b", "--quiet", "--no-plots", folder=scenario, PYTHONHASHSEED="1")
    files = sorted(p.relative_to(scenario / "a") for p in (scenario / "a").rglob("*") if p.is_file())
    assert {"summary.json", "requests.parquet", "steps.parquet", "kernels.csv", "trace.json.gz",
            "scenario.toml"} <= {str(f) for f in files}
    assert all((scenario / "a" / f).read_bytes() == (scenario / "b" / f).read_bytes() for f in files)
    assert json.loads((scenario / "a" / "summary.json").read_text())["completed"] == 12
    assert max(parquet.read_table(scenario / "a" / "steps.parquet")["running"].to_pylist()) <= 4


def test_long_runs_are_written_while_they_go_on(scenario):
    shown = ksim("run", "s.toml", "-o", "a", "--stream", folder=scenario)
    assert "Successful requests:                     12" in shown
    assert {path.name for path in (scenario / "a").iterdir()} == {
        "requests.parquet", "steps.parquet", "summary.json", "scenario.toml"}
    assert "give -o" in ksim("run", "s.toml", "--stream", folder=scenario, code=1)


def test_a_trace_shows_the_kernels_of_a_window(scenario):
    ksim("run", "s.toml", "-o", "a", "--trace-window", "0.1:0.12", "--no-plots", "--quiet", folder=scenario)
    trace = json.loads(gzip.decompress((scenario / "a" / "trace.json.gz").read_bytes()))
    kernels = [event for event in trace["traceEvents"] if "shape" in event.get("args", {})]
    assert kernels and trace["otherData"]["kernel_slices_left_out"] > 0
    assert all(0.05 < 1e-6 * kernel["ts"] < 0.15 for kernel in kernels)


def test_replicas_simulated_one_by_one_write_the_same_bytes(scenario, monkeypatch):
    """In this process; tests/simulation/test_parallel_replicas.py starts processes."""
    monkeypatch.setattr(simulate, "run_in_processes", lambda work, items, jobs: map(work, items))
    replicas = ("--set", "serve.data_parallel_size=3", "--no-plots", "--quiet")
    for jobs in (1, 2):
        ksim("run", "s.toml", "-o", f"with-{jobs}", "-j", jobs, *replicas, folder=scenario)
    files = [file.name for file in (scenario / "with-1").iterdir()]
    assert len(files) >= 6
    assert all((scenario / "with-1" / name).read_bytes() == (scenario / "with-2" / name).read_bytes() for name in files)


def test_what_cannot_run_in_several_processes_says_why(scenario):
    done = ksim_here("run", "s.toml", "--jobs", 2, "--quiet", folder=scenario)
    assert done.stderr == "ksim: ran in one process, not in 2: data_parallel_size is 1\n"


def test_another_seed_gives_another_run(scenario):
    runs = [ksim("run", "s.toml", "--seed", seed, folder=scenario) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_replay_needs_no_scenario_and_takes_the_flags_of_vllm_serve(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,100,5\n0.5,200,6\n", encoding="utf-8")
    ksim("replay", "t.csv", "--model", "llama-3.1-8b", "--gpu", "h200", "--tp", 2, "--max-num-batched-tokens", 8192,
         "--max-num-seqs", 64, "--max-model-len", 4096, "--no-enable-prefix-caching", "--kv-cache-dtype", "fp8",
         "--goodput", "ttft:500 tpot:50", "-o", "run", "--no-plots", "--quiet", folder=tmp_path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["completed"], summary["gpus"], summary["slo_ttft_ms"]) == (2, 2, 500.0)
    text = (tmp_path / "run" / "scenario.toml").read_text()
    assert "enable_prefix_caching = false" in text and 'kv_cache_dtype = "fp8"' in text


def test_step_prices_one_step_kernel_by_kernel(tmp_path):
    out = ksim("step", "--model", "llama-3.1-8b", "--gpu", "h200", "--tp", 2, "--decode", "64x1024",
               "--prefill", "512+0", folder=tmp_path)
    assert "64 decodes, 1 prompt chunks, 576 tokens" in out
    for word in ("576x3072x4096 bf16", "o_proj_all_reduce", "communication", "MFU"):
        assert word in out


def test_step_says_that_the_batch_is_each_ranks(tmp_path):
    out = ksim("step", "--model", "llama-3.2-1b", "--gpu", "H200", "--dp", 8, "--decode", "64x10",
               "--oracle", "roofline", folder=tmp_path)
    assert "on 8 ranks of 1 x H200 SXM, each: 64 decodes" in out


def test_step_shows_what_runs_side_by_side(tmp_path):
    out = ksim("step", "--model", "llama-3.1-8b", "--gpu", "h200", "--tp", 2, "--prefill", "4096+0",
               "--overlap-stages", 4, "--overlap-sms", 8, folder=tmp_path, COLUMNS="250")
    lines = [line.split() for line in out.splitlines() if line.strip().startswith("down")]
    assert [(line[0], "hidden" in line) for line in lines] == [
        ("down", False), ("down_all_reduce", True), ("down", False), ("down_all_reduce", False)]


def test_defaults_are_explained_without_a_run(scenario):
    out = ksim("run", "s.toml", "--explain-defaults", "-o", "run", folder=scenario)
    for words in ("max_num_batched_tokens", "139.8 GiB of GPU memory", "num_gpu_blocks", "GiB usable", "as set"):
        assert words in out
    assert not (scenario / "run").exists()


def test_defaults_are_explained_pool_by_pool(scenario):
    out = ksim("run", "s.toml", "--explain-defaults", "--pool", "p:role=prefill,gpu=l4", "--pool",
               "d:role=decode,max_num_seqs=7", folder=scenario)
    first, _, second = out.partition("pool d: ")
    assert "pool p: " in first and "llama-3.2-1b on L4" in first and "llama-3.2-1b on H200" in second
    for part, role in ((first, "kv_producer"), (second, "kv_consumer")):
        rows = {line.split()[0]: " ".join(line.split()[1:]) for line in part.splitlines() if len(line.split()) > 2}
        assert rows["kv_transfer_config.kv_connector"] == "NixlConnector the default between prefill and decode engines"
        assert rows["kv_transfer_config.kv_role"].startswith(f"{role} role of pool ")
    assert rows["max_num_seqs"] == "7 as set"


def test_a_trace_is_replayed_with_pools_and_vllms_own_words(scenario):
    ksim("replay", ROOT / "traces" / "conversation.csv", "--model", "llama-3.2-1b", "--gpu", "h200", "--num-prompts",
         "12", "--max-model-len", "16384", "--pool", "p:role=prefill", "--pool", "d:role=both,replicas=2",
         "--pair-router", "llm_d", "--kv-transfer-config",
         '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config":'
         ' {"kv_lease_duration": 9}}',
         "-o", "run", "--no-plots", folder=scenario)
    summary = json.loads((scenario / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["completed"] == summary["num_transfers"] == 12 and summary["pools"].keys() == {"p", "d"}
    kept = tomllib.loads((scenario / "run" / "scenario.toml").read_text(encoding="utf-8"))
    config = kept["serve"]["kv_transfer_config"]  # which both pools share
    assert kept["pair_router"] == "llm_d" and config["kv_role"] == "kv_both"
    assert config["kv_connector_extra_config"] == {"kv_lease_duration": 9}


def test_pools_may_name_every_gpu(scenario):
    (scenario / "t.csv").write_text(TRACE, encoding="utf-8")
    ksim("replay", "t.csv", "--model", "llama-3.2-1b", "--pool", "a:role=both,gpu=l4", "--pool",
         "b:role=both,gpu=l40s,max_model_len=4096", "-o", "run", "--no-plots", folder=scenario)
    summary = json.loads((scenario / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["gpu"] == "l4, l40s" and summary["completed"] == 2


def test_another_release_decides_otherwise(scenario):
    """The default of a whole prompt that must fit came with vLLM 0.19."""
    for engine, value in (("vllm-0.33", "True"), ("vllm-0.18", "False")):
        out = ksim("run", "s.toml", "--explain-defaults", "--set", f"engine={engine}", folder=scenario)
        assert next(line for line in out.splitlines() if "scheduler_reserve_full_isl" in line).split()[1] == value


@pytest.mark.parametrize(("kind", "name"), [
    ("gpus", "rtx-pro-6000"), ("systems", "gb200-nvl72"), ("models", "qwen3-30b-a3b"), ("grids", "us-caiso"),
    ("policies", "decode_first"), ("governors", "slack"), ("routers", "prefix_aware"), ("oracles", "measured"),
    ("collectives", "two_shot"), ("traces", "burstgpt"), ("pair_routers", "llm_d"),
    ("connectors", "nixl"), ("flow_controls", "fair_queue"),
])
def test_list_names_what_there_is(kind, name, tmp_path):
    assert name in ksim("list", kind, folder=tmp_path)


def test_routers_are_listed_with_their_sources_and_signals(tmp_path):
    lines = ksim("list", "routers", folder=tmp_path).splitlines()
    (row,) = (line for line in lines if line.split()[:1] == ["mooncake"])
    assert "arXiv 2407.00079" in row and row.split()[-3:] == ["books,", "metrics,", "kv_events"]


def test_the_links_of_each_system_are_listed(tmp_path):
    out = ksim("list", "systems", folder=tmp_path)
    lines = out[out.index("links, one way"):].splitlines()
    rows = {line.split()[0]: line for line in lines if " of " in line and "GB/s" not in line}
    for name, links in {"hgx-h100": ("370.8 of 450", "50 of 64", "83.4 of 128", "47.5 of 50"),
                        "pcie-l40s": ("25 of 32", "41.7 of 64", "22.03 of 144", "23.75 of 25")}.items():
        assert all(link in rows[name] for link in links)


def test_trace_says_what_a_trace_holds(tmp_path):
    out = ksim("trace", ROOT / "traces" / "conversation.csv", "--plot", folder=tmp_path)
    assert "400 requests, plain format" in out and (tmp_path / "conversation.png").stat().st_size > 10_000


def test_a_users_own_oracle_is_ten_lines(scenario):
    (scenario / "mine.py").write_text(
        "from attrs import frozen\n"
        "@frozen\n"
        "class Constant:\n"
        "    microseconds: float = 10.0\n"
        "    def seconds(self, kernel, gpu):\n"
        "        return self.microseconds * 1e-6\n", encoding="utf-8")
    out = ksim("step", "--model", "llama-3.2-1b", "--gpu", "h200", "--decode", "1x10", "--oracle", "mine:Constant",
               folder=scenario)
    assert "Constant" in out and "10.00" in out
    ksim("run", "s.toml", "--quiet", "--set", "oracle={name='mine:Constant', microseconds=20.0}", folder=scenario)


def test_requests_that_can_never_run_are_rejected_with_the_reason(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,100,5\n0,5000,5\n", encoding="utf-8")
    out = ksim("replay", "t.csv", "--model", "llama-3.2-1b", "--gpu", "h200", "--max-model-len", 4096, "-o", "run",
               "--no-plots", folder=tmp_path)
    assert "1 rejected" in out
    rows = parquet.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    assert [row["status"] for row in rows] == ["completed", "rejected"] and "max_model_len = 4096" in rows[1]["reason"]


def test_a_trace_out_of_order_is_an_error_until_it_may_be_sorted(tmp_path):
    rows = "".join(f"{1500 - i},10,2\n" for i in range(1500))
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n" + rows, encoding="utf-8")
    words = ("replay", "t.csv", "--model", "llama-3.2-1b", "--gpu", "h200", "--max-model-len", 4096)
    assert "set sort = true" in ksim(*words, folder=tmp_path, code=1)
    assert "1,500 requests completed" in ksim(*words, "--sort", folder=tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_an_error(scenario):
    (scenario / "locked").mkdir(mode=0o500)
    assert "no permission" in ksim("run", "s.toml", "-o", "locked/out", folder=scenario, code=1)

"""What commands print on a terminal of 80 columns and more: whole values, and no column lost without a word."""

import shutil
from typing import Any

import pytest
import typer

from ksim.cli import app
from tests.calibration.samples import EXTRACT
from tests.cli.command import ROOT, SCENARIO, TRACE
from tests.cli.on_a_terminal import WIDTHS, missing, played
from tests.validation.benchmarks import fabricate as benchmarks

OVER = "--over serve.max_num_seqs=4,8 --over serve.tensor_parallel_size=1,2 --set oracle=roofline --jobs 1"
#: Calls that take a moment, and others: together, at least one of each command.
FAST = ["step --model deepseek-r1 --gpu h200 --tp 8 --decode 1x1024", "collectives --gpu h200", "list", "list gpus",
        "list routers", "model deepseek-r1"]
SLOW = [
    "new n.toml", "import vllm.sh --gpu h200 -o m.toml", "export s.toml --to vllm -o e.sh",
    "gpu new g.toml --name G --architecture hopper --sms 10 --clock 1000 --memory 80 --bandwidth 3000 --l2 50 --bf16"
    " 900 --fp32 60 --fp8 0 --fp4 0 --nvlink 0 --tdp 700 --pcie 64", "new s.json --schema",
    "run s.toml -o one --no-plots", "run s.toml --explain-defaults",
    "replay t.csv --model llama-3.2-1b --gpu h200 -o other --no-plots",
    "explain one", "diff one other", "report one",
    "ranks s.toml --set detail=rank --set serve.tensor_parallel_size=4 --set ranks.speed_spread=0.05"
    " --set ranks.launch_jitter=1ms",
    "routing counts.csv --model qwen3-30b-a3b --ranks 8",
    "step --model llama-3.2-1b --gpu h200 --decode 3x100 --oracle roofline --speculative ngram,k=3,acceptance=0.8",
    "trace t.csv", "trace shared.jsonl --cache-curve --tier gpu=2 --tier cpu=4",
    *(f"list {kind}" for kind in ("systems", "models", "drafters", "engines", "grids", "traces", "templates")),
    "gpu points -o p.csv --gpu h200 --budget 2 --families gemm",
    f"sweep s.toml {OVER} -o study", f"sweep s.toml {OVER} --front", "sweep study --front",
    "capacity s.toml --slo ttft:median:20ms --rate 5 --over gpu=h100,h200 --set oracle=roofline --requests 10"
    " --replications 2 --jobs 1",
    "plan s.toml --slo ttft:median:20ms --rate 5 --gpu h100=2 --gpu h200=3 --over serve.tensor_parallel_size=1"
    " --over serve.max_num_seqs=8 --over serve.quantization=fp8 --over serve.kv_cache_dtype=auto"
    " --over serve.max_num_batched_tokens=8192 --requests 10 --replications 2 --jobs 1 --finalists 2",
    "tune s.toml --minimize median_e2el_ms --space serve.max_num_seqs=1,2,4 --trials 3 --jobs 1 --set oracle=roofline",
    "routers s.toml --set serve.data_parallel_size=2 --set oracle=roofline --jobs 1 --routers round_robin,random",
    "autoscalers s.toml --set slo.ttft=1s --set autoscaler.name=perfect --set autoscaler.sizes={a=[[0.0,1]]}"
    " --set pools.a.role=both --set oracle=roofline --over perfect.interval=1s,2s --slots 1 --trials 0 --jobs 1",
    "roofline --model llama-3.2-1b --gpu h200 --decode 4x100", "doctor",
    "gpu calibrate sweep", "validate kernels kernels_rms_norm.parquet --gpu h200 --oracle waves",
    "validate schedule schedules", "validate autoscalers decisions", "validate startup startup.csv",
    "validate serving vllm.json agg.json --scenario s.toml",
]
#: Not run here: it answers until it is stopped.
ENDLESS = {("serve",)}


def leaves(command, path=()):
    """The commands that run something, by the words that call them."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield path
    for name, member in inner.items():
        if not member.hidden:  # those are old names
            yield from leaves(member, (*path, name))


PARSER = typer.main.get_command(app)
COMMANDS = set(leaves(PARSER))


def of(words):
    """The command that *words* call."""
    return next(path for path in COMMANDS if tuple(words[:len(path)]) == path)


def inputs(folder):
    """What the commands read."""
    (folder / "s.toml").write_text(SCENARIO)
    (folder / "t.csv").write_text(TRACE)
    (folder / "vllm.sh").write_text("vllm serve meta-llama/Llama-3.2-1B --max-model-len 8192\n")
    (folder / "counts.csv").write_text((",".join(map(str, range(1, 129))) + "\n") * 48)
    (folder / "shared.jsonl").write_text("".join(
        f'{{"timestamp": {at}, "input_length": 1500, "output_length": 9, "hash_ids": [1, 2, {at}]}}\n'
        for at in range(20)))


def measurements(folder):
    """What `calibrate` and `validate` read."""
    (folder / "sweep").mkdir()
    (folder / "sweep" / "kernels_rms_norm.csv").write_text("t,h,gpu,latency_us\n" + "".join(
        f"{t},{h},NVIDIA H200,{2 + t * h / 1e6}\n" for h in (1024, 2048, 4096) for t in (1, 16, 256, 512)))
    shutil.copy(EXTRACT / "kernels_rms_norm.parquet", folder)
    (folder / "schedules").mkdir()
    shutil.copy(next((ROOT / "tests" / "golden" / "schedules").glob("first_chunk_only*")), folder / "schedules")
    (folder / "decisions").mkdir()
    shutil.copy(ROOT / "tests" / "golden" / "autoscalers" / "lifecycle.json.gz", folder / "decisions")
    (folder / "startup.csv").write_text(
        "source,run,model,gpu,tp,engine,state,phase,parent,seconds,statistic,note\n"
        "upb,node7-model_size,llama2-7b-hf,H100 NVL,1,vLLM 0.10.1.1,warm,framework_bootstrap,total,9.5,,\n",
        encoding="utf-8")
    (folder / "vllm.json").write_text(benchmarks.vllm_bench(benchmarks.run(benchmarks.mixed(14))))
    (folder / "agg.json").write_text(benchmarks.inferencemax(benchmarks.run(((200, 9),) * 20, concurrency=2), 2))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    helps = [[*path, "--help"] for path in sorted({(), ("gpu",), ("validate",), *COMMANDS})]
    return played(folder, [*(line.split() for line in FAST), *helps])


@pytest.fixture(scope="module")
def thorough(tmp_path_factory):
    inputs(folder := tmp_path_factory.mktemp("thorough"))
    measurements(folder)
    return played(folder, [line.split() for line in SLOW])


def check(outputs, commands):
    """Hold that what was printed is whole, and that each of *commands* printed something at each width."""
    for output in outputs:
        seen = f"{' '.join(output.words)} at {output.width}:\n{output.text}"
        assert "…" not in output.text and not output.too_long, seen
        assert len(output.lost) <= output.hidden, f"{output.lost} is lost by {seen}"
        assert output.hidden or not missing(output), f"{missing(output)} is missing from {seen}"
        assert not output.hidden or "--wide, --json" in output.text, seen
    assert {(output.words, output.width) for output in outputs} == {(words, width) for words in commands
                                                                    for width in WIDTHS}


def test_commands_lose_nothing_on_a_terminal(quick):
    check([output for output in quick if output.words[-1] != "--help"], {tuple(line.split()) for line in FAST})


def test_the_help_of_every_command_is_whole(quick):
    helps = [output for output in quick if output.words[-1] == "--help"]
    check(helps, {(*path, "--help") for path in {(), ("gpu",), ("validate",), *COMMANDS}})


@pytest.mark.slow
def test_runs_studies_and_comparisons_lose_nothing_on_a_terminal(thorough):
    check(thorough, {tuple(line.split()) for line in SLOW})


def test_no_command_is_forgotten():
    assert {of(line.split()) for line in (*FAST, *SLOW)} | ENDLESS == COMMANDS


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_what_has_json_has_wide(path):
    command: Any = PARSER
    for word in path:
        command = command.commands[word]
    options = {name for option in command.params for name in option.opts}
    assert ("--json" in options) == ("--wide" in options)

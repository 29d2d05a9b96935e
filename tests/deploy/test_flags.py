"""Every flag of every engine is simulated, without effect, or refused; tables are those of the engines' parsers."""

from importlib.util import find_spec

import pytest

from benchmarks import flags as regenerated
from ksim.deploy.flags.given import flag_table, plain_name
from ksim.deploy.flags.meaning import meaning, names_of
from ksim.deploy.programs import sglang, trtllm, vllm
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.defaults import Deployment
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from tests.deploy.launching import launched, served, table_of, text_of

HANDLERS = {"vllm": vllm.HANDLERS, "sglang": sglang.HANDLERS, "trtllm": trtllm.HANDLERS}
FLAGS = [(program, flag.dest) for program in HANDLERS for flag in flag_table(program, program).flags]


def test_every_flag_has_one_meaning():
    for program, dest in FLAGS:
        kinds = meaning(program).kinds(dest)
        if dest in HANDLERS[program]:
            assert "refused" not in kinds, (program, dest)
        else:
            assert kinds in (["simulated"], ["idle"], ["refused"], ["idle", "refused"],
                             ["simulated", "refused"]), (program, dest)


def test_every_reason_is_of_a_flag_that_there_is():
    for program in ("vllm", "sglang"):
        dests = {dest for name, dest in FLAGS if name == program}
        groups = (*meaning(program).idle, *meaning(program).refused)
        assert not [pattern for group in groups for pattern in group.flags
                    if not any(type(group)("", [pattern]).has(dest) for dest in dests)]
        assert meaning(program).keys.keys() | meaning(program).values.keys() <= dests


def test_flags_of_other_releases_are_none_of_today():
    for program in ("vllm", "sglang"):
        assert not {plain_name(name) for name in names_of(program)} & {
            name for name, (flag, _) in flag_table(program, program).by_name.items() if not flag.until}


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_table_is_that_of_the_installed_vllm():
    from vllm import __version__

    if __version__ != flag_table("vllm", "vLLM").release:
        pytest.skip(f"vLLM {__version__} is installed")
    made = {flag["dest"]: flag for flag in regenerated._vllm(None)}
    assert made.keys() == {flag.dest for flag in flag_table("vllm", "vLLM").flags}


def test_a_parser_is_read_flag_by_flag():
    import argparse

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--max-model-len", "-m", type=int, default=5)
    parser.add_argument("--lora", action=argparse.BooleanOptionalAction)
    parser.add_argument("--sizes", type=float, nargs="+", choices=[1.0, 2.0])
    assert regenerated.of_parser(parser) == [
        {"dest": "max_model_len", "names": ["--max-model-len", "-m"], "kind": "integer", "default": 5},
        {"dest": "lora", "names": ["--lora", "--no-lora"], "kind": "switch"},
        {"dest": "sizes", "names": ["--sizes"], "kind": "number", "nargs": "+", "choices": [1.0, 2.0]}]


def test_flags_may_be_written_as_the_parser_allows():
    assert served("--max_num_seqs=8")["max_num_seqs"] == 8
    assert served("--max-num-se", "8")["max_num_seqs"] == 8
    assert served("-tp", "2", "--max-num-seqs", "4", "--max-num-seqs", "8")["max_num_seqs"] == 8
    assert served("--compilation-config.cudagraph_mode", "full", "-cc.pass_config.fuse_allreduce_rms=true") == {
        "cudagraph_mode": "FULL", "fuse_allreduce_rms": True}
    assert served("-O0")["enforce_eager"] and served("-O", "1")["cudagraph_mode"] == "PIECEWISE"
    assert "cudagraph_mode" not in served("-O3")
    assert served("--cudagraph-capture-sizes", "1", "2", "--enforce-eager")["cudagraph_capture_sizes"] == [1, 2]
    assert served("--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config":'
                                          ' {"cpu_bytes_to_use": 80m}}')["kv_transfer_config"] == {
        "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 80_000_000}}


def test_a_flag_of_another_release_says_so_and_is_taken_as_todays():
    launch = launched("vllm", "serve", "Qwen/Qwen3-8B", "--num-speculative-tokens", "3", "--speculative-model=[ngram]",
                      "--cuda-graph-sizes", "2048", "--full-cuda-graph", "--use-v2-block-manager")
    assert launch.serve["speculative_config"]["num_speculative_tokens"] == 3
    assert launch.serve["max_cudagraph_capture_size"] == 2048 and launch.serve["cudagraph_mode"] == "FULL"
    assert sum("another release" in note.why for note in launch.remarks) == 5


@pytest.mark.parametrize(("flags", "says"), [
    (["--max-num-sequences", "4"], "did you mean --max-num-seqs?"),
    (["--num-scheduler-step", "4"], "--num-scheduler-steps"),
    (["--max-num"], "could mean"),
    (["--max-num-seqs"], "needs a value"),
    (["--max-num-seqs", "--enforce-eager"], "needs a"),
    (["--max-num-seqs", "many"], "a whole number"),
    (["--max-model-len", "1.5K"], "did you mean 1.5k?"),
    (["--enforce-eager=yes"], "takes no value"),
    (["--speculative-config", "{"], "is not valid JSON"),
    (["--speculative-config", "[1]"], "expected a table"),
    (['--speculative-config', '{"methd": 1}'], "did you mean method?"),
    (["--scheduling-policy", "lifo"], "must be one of fcfs, priority"),
    (["--max-num-seqs.a", "1"], "takes no keys"),
    (["--decode-context-parallel-size", "2"], "context parallelism"),
    (["--quantization", "gguf"], "not simulated"),
    (["--quantization", "compressed-tensors"], "name its config.json with --model"),
    (["--scheduler-delay-factor", "0.5"], "up to 0.10"),
    (['--hf-overrides', '{"num_layers": 2}'], "--hf-overrides: qwen3-8b: num_layers: ksim does not know what 2"),
    (['--hf-overrides', '{"rope_scaling": null}'], "copy of config.json"),
    (['--hf-overrides', '{"rope_scaling": {"rope_type": "x"}}'], "'x' is none of"),
    (['--hf-overrides', 'x'], "is not valid JSON"),
    (["extra"], "belongs to no flag"),
    (["--lora-modules", "sql"], "NAME=PATH"),
    (["-O9"], "levels 0 to 3"),
    (["--kv-cache-dtype", "int4"], "is not simulated"),
    (["--load-format", "gguf"], "kind of weights"),
])
def test_what_cannot_be_is_named_with_its_place(flags, says):
    with pytest.raises(ConfigError, match="line 1") as refused:
        served(*flags)
    assert says in str(refused.value)


@pytest.mark.parametrize("model, flag, quantization", [
    ("Qwen/Qwen3-8B", "awq_marlin", "awq_marlin"), ("Qwen/Qwen3-8B", "bitsandbytes", "bitsandbytes"),
    ("Qwen/Qwen3-8B-AWQ", "awq_marlin", "awq"), ("Qwen/Qwen3-8B-GPTQ-Int8", "gptq", "int8_w8a16_g128_zp"),
    ("RedHatAI/Qwen3-8B-quantized.w8a8", "compressed-tensors", "int8_w8a8"), ("Qwen/Qwen3-8B-FP8", "fp8", "fp8_block"),
])
def test_a_checkpoint_knows_its_format_better_than_a_flag(model, flag, quantization):
    assert served("--quantization", flag, model=model)["quantization"] == quantization


def test_a_flag_for_another_format_than_the_checkpoint_has_is_refused():
    with pytest.raises(ConfigError, match="the checkpoint is in awq, and vLLM refuses to start"):
        served("--quantization", "bitsandbytes", model="Qwen/Qwen3-8B-AWQ")


@pytest.mark.parametrize("name, serve", [
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", {"quantization": "fp8"}),
    ("someone/Llama-3.3-70B-Instruct-AWQ", {"quantization": "awq"}), ("meta-llama/Llama-3.3-70B-Instruct", {})])
def test_another_name_for_the_model_keeps_the_format_that_the_line_serves(name, serve):
    launch = launched("vllm", "serve", name, model="llama-3.3-70b")
    assert launch.model == "llama-3.3-70b"
    assert {key: value for key, value in launch.serve.items() if key == "quantization"} == serve
    assert any("its name says" in note.why for note in launch.remarks) == bool(serve)


def test_a_format_that_is_lost_with_the_name_is_noted():
    launch = launched("vllm", "serve", "someone/Llama-3.3-70B-Instruct-GGUF", model="llama-3.3-70b")
    assert any("weights in that format are not simulated" in note.why for note in launch.remarks)


def test_a_line_says_that_vllm_would_fuse_all_reduces():
    def said(*flags):
        launch = launched("vllm", "serve", "Qwen/Qwen3-8B", *flags)
        return "fuse_allreduce_rms" in [note.word for note in launch.remarks]

    assert said("-tp", "2") and not said()
    assert not said("-tp", "2", "-O1") and not said("-tp", "2", "--enforce-eager")
    assert not said("-tp", "2", "-cc.pass_config.fuse_allreduce_rms=false")


def test_a_refused_flag_may_have_its_default():
    assert served("--offload-group-size", "0", "--decode-context-parallel-size", "1", "--ubatch-size", "0") == served()


def test_secrets_are_not_repeated():
    launch = launched("vllm", "serve", "Qwen/Qwen3-8B", "--api-key", "sk-123", "--hf-token", "hf-123")
    assert "123" not in str(launch)


YARN = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'


@pytest.mark.parametrize("line", [
    f"vllm serve Qwen/Qwen3-8B --hf-overrides '{{\"rope_parameters\": {YARN}}}' --max-model-len 131072",
    f"vllm serve Qwen/Qwen3-8B --rope-scaling '{YARN}' --max-model-len 131072",
    f"python -m sglang.launch_server --model Qwen/Qwen3-8B --json-model-override-args '{{\"rope_scaling\": {YARN}}}'"
    " --context-length 131072"])
def test_a_context_that_yarn_stretches_is_kept(line):
    table = table_of(line)
    assert table["serve"].get("max_model_len", table["serve"].get("sglang", {}).get("context_length")) == 131072
    assert Deployment.of(Scenario.of(table)).model.max_length == 131072


@pytest.mark.parametrize("name", ["9" * 400, "a\0b", "a" * 300 + "/b"])
def test_a_name_that_no_file_may_have_is_no_model(name):
    with pytest.raises(ConfigError, match="no model of the catalogue is"):
        served(model=name)
    with pytest.raises(KsimError, match="no model|there is no such path"):
        model_of(name)


def test_an_override_of_an_inner_config_keeps_its_other_keys():
    assert model_of("gemma-3-27b", {"text_config": {"max_position_embeddings": 4096}}).max_length < model_of(
        "gemma-3-27b").max_length
    assert model_of("qwen3-8b", {"num_hidden_layers": 2}).layers == 2


@pytest.mark.parametrize(("model", "text"), [
    ("llama-3.3-70b", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"),
    (None, "/root/.cache/huggingface/hub/models--RedHatAI--Llama-3.3-70B-Instruct-FP8-dynamic/snapshots/0a1b2c/")])
def test_the_format_that_a_checkpoint_s_name_says_is_kept(model, text):
    assert table_of(f"vllm serve {text} --tensor-parallel-size 2", model=model) | {"workload": 0} == {
        "model": "llama-3.3-70b", "engine": "vllm-0.33", "gpu": "h200", "workload": 0,
        "serve": {"quantization": "fp8", "tensor_parallel_size": 2}}


@pytest.mark.parametrize(("yaml", "says"), [
    ("kv_cache_config: {free_gpu_memory_fraction: x}", "c.yaml:1: kv_cache_config.free_gpu_memory_fraction: expect"),
    ("kv_cache_config: {free_gpu_memory_fraction: [1]}", "expected a number, not [1]"),
    ("kv_cache_config: {free_gpu_memory_fraction: true}", "expected a number, not True"),
    ("kv_cache_config: {free_gpu_memory_fraction: 1.5}", "free_gpu_memory_fraction: expected 0 to 1, not 1.5"),
    ("kv_cache_config: {max_tokens: x}", "max_tokens: expected a whole number"),
    ("kv_cache_config: {max_tokens: 9, tokens_per_block: 0}", "tokens_per_block: expected at least 1"),
    ("kv_cache_config: {host_cache_size: {}}", "host_cache_size: expected a whole number"),
    ("tensor_parallel_size: x", "c.yaml:1: tensor_parallel_size: expected a whole number, not 'x'"),
    ("moe_expert_parallel_size: [1]", "moe_expert_parallel_size: expected a whole number"),
    ("max_num_tokens: 2026-01-01", "max_num_tokens: expected a whole number"),
    ("port: x", "port: expected a whole number"), ("enable_attention_dp: 3", "expected true or false, not 3"),
    ("tensor_parallel_size: $TP", "c.yaml:1: $TP is not set in the text; say what it is: --env TP=VALUE"),
])
def test_a_wrong_value_of_the_yaml_is_named(yaml, says):
    with pytest.raises(ConfigError) as refused:
        table_of(f"cat > c.yaml <<E\n{yaml}\nE\ntrtllm-serve Qwen/Qwen3-8B --extra_llm_api_options c.yaml")
    assert says in str(refused.value)


def test_an_empty_key_of_the_yaml_is_left_out():
    text = ("cat > c.yaml <<E\nkv_cache_config:\n  free_gpu_memory_fraction:\n  tokens_per_block: '64'\nport: $PORT\n"
            "max_num_tokens:\nE\ntrtllm-serve Qwen/Qwen3-8B --extra_llm_api_options c.yaml")
    serve = table_of(text)["serve"]
    assert serve["block_size"] == 64 and not {"gpu_memory_utilization", "max_num_batched_tokens"} & serve.keys()


def test_what_a_name_quotes_leaves_the_scenario_readable():
    assert "a\\x07\\x7fb" in text_of("vllm serve Qwen/Qwen3-8B --served-model-name 'a\x07\x7fb'")
    assert table_of("vllm serve Qwen/Qwen3-8B --served-model-name 'a\x07\x7fb'")["model"] == "qwen3-8b"


@pytest.mark.parametrize("flags, serve", [
    ("--disable-prefill-cuda-graph", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
    ("--cuda-graph-backend-prefill disabled", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
    ("--disable-prefill-cuda-graph --disable-decode-cuda-graph", {"cudagraph_mode": "NONE"}),
    ("--disable-cuda-graph", {"enforce_eager": True}), ("--cuda-graph-backend-prefill breakable", {}),
])
def test_sglangs_graphs_are_of_decodes_and_of_prompts(flags, serve):
    table = table_of(f"python -m sglang.launch_server --model Qwen/Qwen3-8B {flags}")
    assert {key: table["serve"][key] for key in ("cudagraph_mode", "enforce_eager")
            if key in table.get("serve", {})} == serve

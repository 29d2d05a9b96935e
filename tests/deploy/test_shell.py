"""Scripts are read as a shell reads them, and what only a shell could know is refused by name."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.deploy.commands import ImportOptions
from ksim.deploy.readers.lines import Lines
from ksim.deploy.shell.script import Script
from ksim.deploy.shell.variables import arithmetic
from ksim.deploy.texts import Pasted
from ksim.foundation.errors import ConfigError
from tests.deploy.launching import table_of, text_of
from tests.properties import examples


def commands(text, **variables):
    """The words of each simple command of *text*."""
    return [[word.text for word in simple.words]
            for simple in Script(Pasted(text), variables).commands()]


def test_words_are_those_of_a_shell():
    assert commands("vllm serve 'a b' \"c d\" e\\ f g'h'\"i\"  # the rest") == [["vllm", "serve", "a b", "c d", "e f",
                                                                                 "ghi"]]
    assert commands("vllm a \\\n  # a remark between\n  b \\  \n c\nvllm d&vllm e|tee log; vllm f 2>&1 >x <y") == [
        ["vllm", "a", "b", "c"], ["vllm", "d"], ["vllm", "e"], ["tee", "log"], ["vllm", "f"]]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0\r"), min_size=1), min_size=1, max_size=5))
@examples(60)
def test_quoted_words_come_back(words):
    import shlex

    assert commands("vllm " + shlex.join(words)) == [["vllm", *words]]


def test_variables_arrays_and_sums_are_filled_in():
    text = """export TP=4 NAME="a b"
ARGS=(--x "$NAME"
  --y ${PORT:-8000}  # remark
)
ARGS+=(--z)
FLAGS="--one 1"
vllm $TP "${NAME}" ${ARGS[@]} $FLAGS $((TP * 2 + 1)) '$TP' "\\$TP" ${NONE:+x} $OUTSIDE"""
    assert commands(text, OUTSIDE="out") == [["vllm", "4", "a b", "--x", "a b", "--y", "8000", "--z", "--one", "1", "9",
                                              "$TP", "$TP", "out"]]


def test_a_default_outside_quotes_loses_its_own_quotes_and_may_have_braces():
    table = '{"a": {"b": [1, 2]}, "c d": {}}'
    assert commands(f"vllm ${{X:-'{table}'}}\nY=${{X:-'{table}'}}\nvllm \"$Y\" ${{X:-a b}} \"${{X:-a}}\"") == [
        ["vllm", table], ["vllm", table, "a", "b", "a"]]
    assert commands(f"vllm ${{X:-'{table}'}}", X="of the user") == [["vllm", "of", "the", "user"]]


@given(st.integers(0, 99), st.integers(1, 99), st.sampled_from("+-*/%<>"))
@examples(30)
def test_sums_are_those_of_a_shell(left, right, sign):
    expected = {"+": left + right, "-": left - right, "*": left * right, "/": left // right, "%": left % right,
                "<": left < right, ">": left > right}[sign]
    assert arithmetic(f"({left} {sign} {right})") == expected
    assert arithmetic(f"{left} {sign} {right} ? {left} : 1 < 2 && !(3 == 4) ? {right} : 7") == (
        left if expected else right)


def test_the_user_s_variable_counts_where_the_text_cannot_tell():
    text = "L=$((A > 8192 ? A : 8192))\nT=$(nproc)\nF=4\nvllm $L $T $F"
    assert commands(text, A="9000", T="2", F="8") == [["vllm", "9000", "2", "4"]]
    assert commands(text, L="5", T="2") == [["vllm", "5", "2", "4"]]


@pytest.mark.parametrize("text", ["", "1 +", "x", "2 ** 3", "1 / 0", "__import__('os')", "9" * 300, "1.5"])
def test_other_sums_are_refused(text):
    with pytest.raises(ValueError):
        arithmetic(text)


@pytest.mark.parametrize(("text", "says"), [
    ("vllm serve $MODEL", "--env MODEL=VALUE"), ("vllm serve $(cat model)", "have to run to know"),
    ("vllm serve Qwen/Qwen3-8B --max-model-len $((A > 1 ? A : 1))", "needs A, which is not set in the text; say what"),
    ("A=(\n--max-num-seqs $N)\nvllm serve Qwen/Qwen3-8B ${A[@]}", "line 2, column 16: $N is not set in the text"),
    ("A=(vllm serve\n$M)\n${A[@]}", "line 2, column 1: $M is not set in the text; say what it is: --env M=VALUE"),
    ("docker run vllm/vllm-openai:$TAG Qwen/Qwen3-8B", "$TAG is not set in the text"),
    ("vllm serve Qwen/Qwen3-8B --config $(pwd)/c.yaml", "$(pwd) is what a shell would have to run to know"),
    ("python -m dynamo.vllm --model Qwen/Qwen3-8B --disaggregation-mode $MODE", "$MODE is not set in the text"),
    ("M=$(cat model)\nvllm serve $M", "--env M=VALUE"), ("if x; then\nM=a\nfi\nvllm serve $M", "set under `if`"),
    ("vllm serve $1", "an argument of the script"), ("if x; then vllm serve a; fi", "under `if`"),
    ("echo a\nx --y`-z\nvllm serve Qwen/Qwen3-8B --y`-z", "is what a shell would have to run to know"),
    ("x` vllm serve Qwen/Qwen3-8B\n`", "is what a shell would have to run to know"),
    ("vllm serve 'a", "quote ' is left open"), ("vllm serve ${A", "is left open"), ("cat << ", "names no mark"),
    ("if x; then\ncat > c.yaml <<E\nseed: 1\nE\nfi\nvllm serve Qwen/Qwen3-8B --config c.yaml", "written under `if`"),
    ("vllm serve Qwen/Qwen3-8B --config none.yaml", "No such file"),
    ("vllm serve Qwen/Qwen3-8B --config", "names no file"),
    ("cat > c.yaml <<E\n- a\nE\nvllm serve Qwen/Qwen3-8B --config c.yaml", "c.yaml:1: expected keys and values, not a"),
    ("cat > c.yaml <<E\na: [\nE\nvllm serve Qwen/Qwen3-8B --config c.yaml", "c.yaml:2: is not valid YAML"),
    ("cat > c.yaml <<E\na: !!timestamp x\nE\nvllm serve Qwen/Qwen3-8B --config c.yaml", "c.yaml:1: a: is no value"),
    ("cat > c.yaml <<E\na: 1\n---\nb: 2\nE\nvllm serve Qwen/Qwen3-8B --config c.yaml", "is a second document"),
    ("cat > c.yaml <<E\nseed: 1\nseed: 2\nE\nvllm serve Qwen/Qwen3-8B --config c.yaml", "'seed' is there twice"),
    ("cat > c.yaml <<E\nmax-num-sequences: 3\nE\nvllm serve Qwen/Qwen3-8B --config c.yaml", "c.yaml:1: --max-num-seq"),
])
def test_what_a_shell_would_have_to_find_out_is_refused(text, says):
    with pytest.raises(ConfigError) as refused:
        Lines().read(Pasted(text), ImportOptions())
    assert says in str(refused.value)


def test_a_variable_without_a_value_may_stay_open_in_a_flag_without_effect():
    text = text_of("vllm serve Qwen/Qwen3-8B --host ${local_ip} --port $((BASE + 1)) --api-key $(cat key) -tp 2")
    said = " ".join(text.replace("#", "").split())
    assert "--host ${local_ip} (line 1, column 26), " in said and "the text leaves its value open" in said
    assert tomllib.loads(text)["serve"] == {"tensor_parallel_size": 2}


@given(st.text(st.sampled_from("vllm serve$(){}'\"\\\n#<>|&;=-EOFif`[]@*12 "), max_size=60))
@examples(300)
def test_no_text_escapes_as_anything_but_an_error(text):
    try:
        Lines().read(Pasted("vllm serve Qwen/Qwen3-8B " + text), ImportOptions())
    except ConfigError as error:
        assert str(error)


def test_a_shell_runs_a_text_with_any_options_and_at_its_own_lines():
    inner = "nohup /bin/bash -l -ec 'vllm serve Qwen/Qwen3-8B \\\n --max-num-seqs {}' > log &"
    assert table_of(inner.format(8))["serve"]["max_num_seqs"] == 8
    for text, says in ((f"\n\n{inner.format('many')}", "line 4"), (f"if x; then\n{inner.format(8)}\nfi", "under `if`")):
        with pytest.raises(ConfigError, match=says):
            Lines().read(Pasted(text), ImportOptions())


def test_lines_in_containers_are_unwrapped():
    docker = ("docker run --gpus all -p8000:8000 -e VLLM_ALL2ALL_BACKEND=deepep_low_latency --name=x"
              " vllm/vllm-openai:v0.33.0")
    table = table_of(f"{docker} --model deepseek-ai/DeepSeek-R1 -dp 8 -ep")
    assert table["serve"]["all2all_backend"] == "deepep_low_latency" and table["engine"] == "vllm-0.33"
    assert table["router"] == "vllm_dp_balancer"
    old = table_of("docker run vllm/vllm-openai:v0.11.2 Qwen/Qwen3-8B")
    assert old["engine"] == "vllm-0.11" and "serve" not in old
    inner = ("docker run -e TP=2 lmsysorg/sglang:v0.5.6 bash -c 'cd / && python3 -m sglang.launch_server --model"
             " Qwen/Qwen3-8B --tp $TP'")
    assert table_of(inner)["serve"]["tensor_parallel_size"] == 2 and table_of(inner)["engine"] == "sglang-0.5"


DEEPEP = "python -m sglang.launch_server --model deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention"


@pytest.mark.parametrize("line, overlaps, sends", [
    (f"SGLANG_MOE_NVFP4_DISPATCH=1 {DEEPEP} --moe-a2a-backend deepep --deepep-mode low_latency"
     " --enable-single-batch-overlap", True, True),
    (f"SGLANG_CUTEDSL_MOE_NVFP4_DISPATCH=true {DEEPEP} --moe-a2a-backend deepep --deepep-mode normal"
     " --enable-single-batch-overlap", False, True),
    (f"SGLANG_MOE_NVFP4_DISPATCH=1 {DEEPEP} --enable-single-batch-overlap", False, False),
    ("VLLM_DEEPEPLL_NVFP4_DISPATCH=1 vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --all2all-backend"
     " deepep_low_latency", False, True),
    ("VLLM_DEEPEPLL_NVFP4_DISPATCH=0 vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --all2all-backend"
     " deepep_low_latency", False, False)])
def test_how_deepep_sends_is_read_where_there_is_deepep(line, overlaps, sends):
    serve = table_of(line)["serve"]
    assert serve.get("enable_single_batch_overlap", False) is overlaps
    assert serve.get("moe_nvfp4_dispatch", False) is sends

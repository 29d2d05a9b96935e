"""A spoilt text is read or refused, and never anything else: no crash, no message of several lines, no broken TOML."""

import random
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ksim.deploy.commands import ImportOptions
from ksim.deploy.importing import scenario_text
from ksim.deploy.texts import Pasted
from ksim.foundation.errors import KsimError
from ksim.scenario.scenario import Scenario
from tests.deploy.texts import (
    BETA,
    CONFIG,
    DEPLOYMENT,
    GRAPH,
    PICKER,
    SCRIPT,
    SERVICE,
    SLURM,
    STACK,
    VALUES,
    row,
)
from tests.properties import examples

TEXTS = (DEPLOYMENT, SCRIPT, f"{DEPLOYMENT}---\n{SERVICE}", VALUES, VALUES + PICKER, GRAPH, BETA, CONFIG, row(), STACK,
         SLURM)
#: Lines of public pages, and a script with arrays, defaults, sums and the YAML of TensorRT-LLM.
LINES = Path(__file__).parent / "lines"
SHELL = (*(line["text"] for line in tomllib.loads((LINES / "public.toml").read_text(encoding="utf-8"))["line"]),
         *(path.read_text(encoding="utf-8") for path in sorted(LINES.glob("*.sh"))), '''\
export TP=${TP:-2}
ARGS=(--max-num-seqs $((TP * 64)) --seed 1)
docker run --gpus all -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:v0.33.0 Qwen/Qwen3-8B "${ARGS[@]}" \\
  --compilation-config ${CC:-'{"cudagraph_mode": "FULL", "pass_config": {"fuse_allreduce_rms": true}}'} \\
  --hf-overrides '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}' --host ${local_ip} -tp $TP
vllm bench serve --model Qwen/Qwen3-8B --dataset-name random --random-input-len 1024 --num-prompts 100 --request-rate 4
''', '''\
cat > c.yaml << EOF
kv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: fp8, tokens_per_block: 64, max_tokens: 100000}
cuda_graph_config: {batch_sizes: [1, 2, 4], enable_padding: true}
speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 1}
max_num_tokens: ${TOKENS:-8192}
EOF
trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --extra_llm_api_options c.yaml
''')
STRANGE = ("[]", "{}", "null", "''", "-1", "1e9", "[1, 2]", "{a: b}", "true", "!!binary x", "2026-01-01", "0x10", "*x",
           "$(X)", "${X", "|\n  x", ".inf", "- - -", "? a", "{{ x }}", "\x07", "nan", "9" * 400,
           "$((1 / 0))", "${A:-'{", "`", "2026-01-01T00:00:00Z", "\ud800", "{a: null}", "!!set {a}", "-9" * 30)


def spoilt(text: str, chance: random.Random) -> str:
    """*text* with one to three lines cut, doubled, given another value or a stray sign."""
    for _ in range(chance.randint(1, 3)):
        lines = text.split("\n")
        place = chance.randrange(len(lines))
        words = lines[place].split(" ")
        words[chance.randrange(len(words))] = chance.choice(STRANGE)
        cut = chance.randrange(len(lines[place]) + 1)
        sign = chance.choice("{}[]:\"'$&*#|>%@`,\t -")
        lines[place:place + 1] = chance.choice((
            [], [lines[place], chance.choice(lines)], [lines[place].partition(":")[0] + ": " + chance.choice(STRANGE)],
            [" ".join(words)], [lines[place][:cut] + sign + lines[place][cut:]]))
        text = "\n".join(lines) or " "
    return text


@given(st.sampled_from((*TEXTS, *SHELL)), st.randoms(use_true_random=False), st.sampled_from([None, "h200"]))
@examples(320)
def test_a_spoilt_text_is_read_or_refused(text, chance, gpu):
    try:
        made = scenario_text([Pasted(spoilt(text, chance), "f.yaml")], ImportOptions(gpu=gpu))
    except KsimError as error:
        assert str(error) and "\n" not in str(error)
    else:
        Scenario.of(tomllib.loads(made))

"""What people really paste: lines with what pages, terminals and word processors put around them, and files of others.
"""

import json
import shlex

import pytest

from ksim.deploy.texts import main_file, tidied
from ksim.foundation.errors import ConfigError, DataError
from tests.deploy.launching import table_of, text_of

LINE = "vllm serve Qwen/Qwen3-8B --max-num-seqs 64"
PLAIN = {"max_num_seqs": 64}
AROUND = {
    "prompt": f"$ {LINE}",
    "prompt of an environment": f"(venv) me@gpu-1:~/work$ {LINE}",
    "prompt of a container": f"root@1a2b3c:/workspace# {LINE}",
    "prompt on two lines": "$ vllm serve Qwen/Qwen3-8B \\\n>   --max-num-seqs 64\n$ curl localhost:8000/v1/models",
    "fence": f"Start it:\n\n```bash\n{LINE}\n```\n\nThen don't forget:\n\n```python\nprint('vllm')\n```\n",
    "fence in a console": f"~~~console\n$ pip install vllm\n$ {LINE}\n~~~",
    "code in a text": f"`{LINE}`",
    "typographic signs": "vllm serve \u201cQwen/Qwen3-8B\u201d \u2013max-num-seqs\u00a064",
    "numbers": "  1  vllm serve Qwen/Qwen3-8B \\\n  2    --max-num-seqs 64",
    "a history": f"  501  ls\n  503  {LINE}",
    "nohup": f"nohup {LINE} > vllm.log 2>&1 &",
    "srun": f"#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\nsrun --gres=gpu:1 {LINE}",
    "torchrun": f"torchrun --nproc-per-node=1 {LINE}",
    "numactl": f"FOO=1 numactl --cpunodebind=0 --membind=0 {LINE}",
    "screen": f"screen -dmS vllm {LINE}",
    "tmux": f"tmux new -d -s vllm\ntmux send-keys -t vllm '{LINE}' C-m",
    "ssh": f"ssh -p 22 gpu01 'cd /work && {LINE}'",
    "a shell within": f"docker exec -it vllm bash -lc '{LINE}'",
    "its process": f"root  1234  100  3.0  999 99 ?  Sl  10:00 99:99 /usr/bin/python3 /usr/local/bin/{LINE}",
    "PowerShell": "PS C:\\Users\\me> docker run --gpus all `\n  vllm/vllm-openai `\n  --model Qwen/Qwen3-8B `\n"
                  "  --max-num-seqs 64",
    "Windows": "docker run --gpus all ^\n  vllm/vllm-openai ^\n  --model \"Qwen/Qwen3-8B\" ^\n  --max-num-seqs 64",
    "sudo docker": "sudo -E docker run vllm/vllm-openai --model Qwen/Qwen3-8B --max-num-seqs 64",
    "a list": json.dumps(LINE.split()),
    "a unit": f"[Service]\nEnvironment=\"HF_HOME=/x\" A=b\nExecStart=/opt/bin/{LINE[:24]} \\\n"
              f" {LINE[24:]}\nRestart=always\n",
    "a Dockerfile": "FROM vllm/vllm-openai:v0.33.0\nENV A=b\nRUN pip install \\\n  x\n"
                    f"ENTRYPOINT {json.dumps(LINE.split())}",
    "a Dockerfile with both": "FROM vllm/vllm-openai\nENTRYPOINT [\"vllm\", \"serve\"]\n"
                              "CMD Qwen/Qwen3-8B --max-num-seqs 64",
    "a log": "INFO 08-01 [x.py:1] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'max_num_seqs': 64}",
    "Python": "import os\nfrom vllm import LLM\nM = 'Qwen/Qwen3-8B'\nllm = LLM(M, max_num_seqs=64, seed=0)",
    "Compose": f"services:\n  llm:\n    image: vllm/vllm-openai:${{TAG:-v0.33.0}}\n    command: {LINE[5:]}\n"
               "  web:\n    image: nginx",
    "Compose with a list": "services:\n  llm:\n    image: x\n    entrypoint: [bash, -c]\n    environment: [\"N=64\"]\n"
                           "    command: [\"vllm serve Qwen/Qwen3-8B --max-num-seqs $$N\"]",
}

AROUND |= {
    "containers": f"containers:\n- name: llm\n  image: vllm/vllm-openai\n  args: {json.dumps(LINE.split()[2:])}\n",
    "a container": "  - args:\n    - --max-num-seqs=64\n    - --model=Qwen/Qwen3-8B\n    image: vllm/vllm-openai",
    "command and args": f"command: [vllm, serve]\nargs: {json.dumps(LINE.split()[2:])}",
}


@pytest.mark.parametrize("around", AROUND)
def test_what_is_around_a_line_changes_nothing(around):
    table = table_of(AROUND[around])
    assert table["model"] == "qwen3-8b" and table["serve"] == PLAIN and "pools" not in table


def test_tidied_lines_keep_their_places_and_other_texts_stay():
    assert tidied("$ a \\\n> b") == "  a \\\n  b"
    assert tidied("text\n```sh\nvllm\n```\nmore").count("\n") == 4
    for text in ("echo 'it\u2019s' \u2013 done", "a:\n  1: x\n", "x=`date`\nvllm serve `cat m`", ""):
        assert tidied(text) == text


def test_what_is_wrong_in_such_a_file_is_named_by_its_place():
    for text, said in (
            ("services:\n  llm:\n    image: vllm/vllm-openai\n    comand: x", "line 4: services.llm.comand"),
            ("services:\n  llm:\n    image: vllm/vllm-openai\n    command: --model ${M}", "--env M=VALUE"),
            ("args: [--model=x]", "no container that starts an engine"), ("# " + LINE, "a comment"),
            ("apiVersion: v1\nkind: Config\nclusters: []", "kubeconfig"), ("vllm server x", "'vllm server x'"),
            ("services:\n  web:\n    image: nginx\n", "no service that starts an engine"),
            ("from vllm import LLM\nLLM('m', seed=time())", "line 2, column 15"),
            ("from vllm import LLM\nLLM(**x)", "**"), ("from vllm import LLM\nLLM(", "not valid Python"),
            ("INFO non-default args: {'model': <X>}", "only Python knows"),
            ("$ vllm serve Qwen/Qwen3-8B --max-num-sequences 4", "line 1, column 28")):
        with pytest.raises(ConfigError) as raised:
            text_of(text)
        assert said in str(raised.value)


def test_switches_of_python_that_are_off_stay_off():
    table = table_of("from vllm import LLM\nLLM('Qwen/Qwen3-8B', enable_prefix_caching=False, enforce_eager=False)")
    assert table["serve"] == {"enable_prefix_caching": False, "enforce_eager": False}


def test_the_client_of_a_script_is_its_workload():
    client = "vllm bench serve --dataset-name random --random-input-len 100 --random-output-len 9 --num-prompts 7"
    assert table_of(f"{LINE} &\n{client}")["workload"]["synthetic"]["count"] == 7
    several = text_of(f"{LINE} &\n{client}\n{client} --seed 3")
    assert "2 lines of clients" in several and "MADE UP" in several
    unknown = text_of(f"{LINE} &\nfor n in 1 2; do {client} --max-concurrency $n; done")
    assert "not taken as the workload" in unknown and "$n" in unknown


def test_a_list_of_words_is_that_of_a_shell():
    assert table_of(json.dumps([*shlex.split(LINE), "--served-model-name", "a b"]))["serve"] == PLAIN


def test_a_variable_that_no_schedule_depends_on_may_be_left_open():
    compose = ("services:\n  llm:\n    image: vllm/vllm-openai\n    environment: {HF_TOKEN: '${HF_TOKEN}'}\n"
               f"    command: {LINE[5:]} --api-key ${{API_KEY}} --port ${{PORT}}")
    assert table_of(compose)["serve"] == PLAIN
    assert "the text leaves its value open" in " ".join(text_of(compose).split())


@pytest.mark.parametrize("name", ["Chart.yaml", "kustomization.yaml"])
def test_folders_that_must_be_written_out_first_are_refused_with_the_command(tmp_path, name):
    (tmp_path / name).write_text("x: y")
    with pytest.raises(DataError, match=r"helm template|kubectl kustomize"):
        main_file(tmp_path)
    (tmp_path / name).rename(tmp_path / "compose.yaml")
    assert main_file(tmp_path).name == "compose.yaml"

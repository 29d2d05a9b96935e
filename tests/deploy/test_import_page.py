"""The lines that docs/import.md imports become scenarios, which are read back."""

import shlex
import tomllib

import pytest

from ksim.scenario.scenario import Scenario
from tests.cli.command import ROOT, ksim, ksim_here

COMMANDS = [line.strip() for line in (ROOT / "docs" / "import.md").read_text(encoding="utf-8").splitlines()
            if line.startswith(('    ksim import "', "    ksim import tests/"))]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_page_imports_becomes_a_scenario(command, tmp_path):
    words = shlex.split(command)[1:]
    words = [str(tmp_path / word) if word == "imported.toml" else word for word in words]
    outcome = ksim_here(*words, folder=ROOT)
    assert outcome.status == 0, outcome.stderr
    written = tmp_path / "imported.toml"
    text = written.read_text(encoding="utf-8") if written.exists() else outcome.stdout
    assert text.startswith("# Made by `ksim import`")
    assert Scenario.of(tomllib.loads(text)).model


def test_standard_input_files_and_words_without_quotes_are_the_same(tmp_path):
    (tmp_path / "run.sh").write_text("vllm serve Qwen/Qwen3-8B --max-num-seqs 8\n", encoding="utf-8")
    printed = [ksim("import", *words, "--gpu", "h100", folder=tmp_path) for words in (
        ["run.sh"], ["vllm serve Qwen/Qwen3-8B --max-num-seqs 8"])]
    tables = [tomllib.loads(text) for text in printed]
    assert tables[0] == tables[1] and tables[0]["serve"]["max_num_seqs"] == 8
    unquoted = ksim("import", "--gpu", "h100", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-num-seqs", "8",
                    folder=tmp_path)
    assert tomllib.loads(unquoted) == tables[0]


def test_a_line_may_be_longer_than_the_name_of_a_file():
    longer = " ".join(f"--max-num-seqs {number}" for number in range(1, 30))
    client = "vllm bench serve " + " ".join(f"--num-prompts {number}" for number in range(1, 30))
    for words in ([f"vllm serve qwen3-8b {longer}"], ["--", "vllm", "serve", "qwen3-8b", "--api-key", "x" * 300]):
        printed = ksim_here("import", "--gpu", "h100", "--bench", client, *words, folder=ROOT)
        assert printed.status == 0, printed.stderr
        assert tomllib.loads(printed.stdout)["workload"]["synthetic"]["count"] == 29


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "picture.sh").write_bytes(b"\x89PNG\0\xff")
    (tmp_path / "zeros.sh").write_bytes(b"vllm serve \0")
    for name, says in (("picture.sh", "is not text in UTF-8"), ("zeros.sh", "is binary"),
                       ("none.yaml", "No such file")):
        assert says in ksim("import", name, "--gpu", "h100", folder=tmp_path, code=1)


def test_paths_are_as_seen_from_the_scenario(tmp_path):
    (tmp_path / "models").mkdir()
    config = ROOT / "ksim" / "data" / "models" / "qwen3-8b.json"
    (tmp_path / "models" / "config.json").write_bytes(config.read_bytes())
    (tmp_path / "out").mkdir()
    ksim("import", "vllm serve ./models", "--gpu", "h100", "-o", "out/imported.toml", folder=tmp_path)
    assert tomllib.loads((tmp_path / "out" / "imported.toml").read_text(encoding="utf-8"))["model"] == "../models"
    assert Scenario.read(tmp_path / "out" / "imported.toml").model == str(tmp_path / "models")

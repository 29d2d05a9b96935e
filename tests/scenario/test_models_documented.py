"""What docs/models.md and docs/plugins.md show of models and GPUs works."""

import json
import re
import shlex
from pathlib import Path

import pytest

import ksim
from benchmarks import published
from ksim.compute.architectures import families
from ksim.scenario.hardware import gpu_of
from ksim.scenario.model_card import ModelCard
from ksim.scenario.models import model_of
from ksim.specs.hardware import ARCHITECTURES
from ksim.specs.settings import EngineSettings
from tests.cli.command import ksim_here

DOCS = Path(ksim.__file__).parents[1] / "docs"
MODELS, PLUGINS = ((DOCS / name).read_text() for name in ("models.md", "plugins.md"))


def test_the_page_shows_what_is_printed(tmp_path):
    shown = ksim_here("model", "qwen3-next-80b-a3b", "--gpu", "h200", "-q", "fp8", folder=tmp_path).stdout
    (page,) = re.findall(r"```\n(.+?)```", MODELS, re.DOTALL)
    lines = {" ".join(line.split()) for line in shown.splitlines()}
    assert {" ".join(line.split()) for line in page.splitlines()} <= lines


def test_all_families_and_keys_are_on_the_page():
    listed = re.findall(r"`(\w+)`", MODELS.partition("ksim knows")[2].partition("Any other")[0])
    assert listed == families()
    table = ModelCard.of("gpt-oss-20b", ["h100"], EngineSettings(), "vllm-0.33", [1]).table()
    keys = {*table, *table["parts"][0], *table["attention"][0], *table["fits"][0]} - {"model"}
    assert keys <= {*re.findall(r"`(\w+)`", MODELS.partition("## `--json`")[2].partition("## Families")[0])}


def test_the_table_of_models_is_what_is_counted():
    """`python -m benchmarks.published` writes it."""
    table = published.PAGE.read_text().partition("<!-- published -->\n")[2].partition("<!-- /published -->")[0]
    assert table.splitlines() == [*published.rows()]


def test_a_family_of_the_page_is_one(tmp_path, monkeypatch):
    """OLMo 2 7B, with the figures of its config.json."""
    (code,) = (code for code in re.findall(r"```python\n(.+?)```", PLUGINS, re.DOTALL) if "def olmo2" in code)
    (tmp_path / "olmo2_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"model_type": "olmo2_of_the_page:olmo2", "hidden_size": 4096, "intermediate_size": 11008,
              "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352,
              "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_of(str(tmp_path)).parameters() / 1e9 == pytest.approx(7.3, rel=0.005)


def test_a_gpu_of_the_page_works(tmp_path):
    command = PLUGINS.partition("    ksim gpu new rtx-3090.toml")[2].partition("    ksim step")[0].replace("\\\n", " ")
    assert ksim_here("gpu", "new", "rtx-3090.toml", *shlex.split(command), folder=tmp_path).status == 0
    assert gpu_of(str(tmp_path / "rtx-3090.toml")).power.limit == 350
    assert ", ".join(ARCHITECTURES) in PLUGINS

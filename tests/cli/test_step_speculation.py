"""`ksim step --speculative`: what it shows, writes and draws, and what it refuses."""

import json
from pathlib import Path

import pytest

from ksim.cli.parts import table_of
from tests.cli.command import ksim

STEP = ("step", "--model", "llama-3.1-8b", "--gpu", "h200", "--decode", "4x500", "--max-model-len", "4096")
EAGLE3 = "eagle3,model=eagle3-llama-3.1-8b,k=2,acceptance=0.7"


def test_a_step_is_shown_with_its_drafts_and_where_they_pay(tmp_path: Path) -> None:
    out = ksim(*STEP, "--speculative", EAGLE3, "--json", "out.json", "--plot", "out.png", folder=tmp_path)
    assert "draft.lm_head" in out and "verify.resample" in out and "of rejection sampling" in out
    assert "2 drafted tokens, 2.19 tokens a verification; speculation pays" in out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["acceptance_length"] == pytest.approx(2.19) and written["batch"][0] == 1
    assert written["step"]["seconds"] > written["step"]["target"] > 0
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.parametrize(("text", "table"), [
    ("mtp,k=1,acceptance=0.8", {"method": "mtp", "num_speculative_tokens": 1,
                                "acceptance": {"name": "geometric", "rate": 0.8}}),
    ("ngram, k=3, length=1.5", {"method": "ngram", "num_speculative_tokens": 3, "synthetic_acceptance_length": 1.5,
                                "rejection_sample_method": "synthetic"}),
    ('{"method": "mtp", "num_speculative_tokens": 1}', {"method": "mtp", "num_speculative_tokens": 1}),
])
def test_short_forms_are_read(text: str, table: dict[str, object]) -> None:
    assert table_of(text) == table


@pytest.mark.parametrize(("flags", "text"), [
    (("--speculative", "eagle3,k"), "METHOD,KEY=VALUE"), (("--speculative", "{"), "not valid JSON"),
    (("--speculative", EAGLE3, "--speculative-config", "{}"), "give one of them"),
    (("--plot", "out.png"), "is about speculation"),
    (("--speculative", "mtp,k=1,acceptance=0.5"), "no modules that predict further tokens"),
    (("--speculative", "mtp,k=1"), "how many drafted tokens are accepted is not known"),
])
def test_what_cannot_be_compared_is_refused(flags: tuple[str, ...], text: str, tmp_path: Path) -> None:
    assert text in ksim(*STEP, *flags, folder=tmp_path, code=1)

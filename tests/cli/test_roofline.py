"""`ksim roofline`, as a user meets it."""

import json

import pytest

from tests.cli.command import ksim

STEP = ("roofline", "--model", "llama-3.2-1b", "--gpu", "h200")


def test_two_steps_are_drawn_and_listed(tmp_path):
    out = ksim(*STEP, "--gpus", "b200,l4", "--json", "tables/roofline.json", folder=tmp_path)
    for words in ("Decode: 64 sequences of 1,024 tokens", "Prefill: 2,048 new tokens", "fused_add_rms_norm", "danger",
                  "our thresholds"):
        assert words in out
    assert sorted(p.name for p in (tmp_path / "roofline").iterdir()) == ["eta_map.png", "roofline.png"]
    tables = json.loads((tmp_path / "tables" / "roofline.json").read_text())
    assert list(tables["steps"]) == ["decode", "prefill"] and tables["unpriced"] == {}
    kernel = next(row for row in tables["steps"]["decode"]["kernels"] if row["kernel"] == "qkv")
    assert 0 < kernel["roof_share"] < 1 < kernel["eta_low"] < kernel["eta"] < kernel["eta_high"]
    assert kernel["tflops"] == pytest.approx(2 * 64 * 3072 * 2048 / kernel["seconds"] / 1e12)
    for family in tables["families"]:
        etas = family["eta"].values()
        assert list(family["eta"]) == ["h200", "b200", "l4"]
        assert family["spread"] == pytest.approx(max(etas) / min(etas))


def test_a_gpu_that_cannot_be_priced_is_named(tmp_path):
    out = ksim(*STEP, "--decode", "4x100", "-q", "int8_w8a8", "--gpus", "b200", "-o", "here", folder=tmp_path)
    assert "not priced on b200: serve.quantization: int8_w8a8: vLLM's CUTLASS kernels have no INT8" in out
    assert "needs a second GPU" in out
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["roofline.png"]


@pytest.mark.parametrize(("words", "message"), [
    (("--gpus", "h100,h2000"), "no gpu named 'h2000'; did you mean 'h200'?"),
    (("--decode", "0x10"), "a batch needs at least one sequence"),
    (("--decode", "64*10"), "expected something like 64x1024"),
    (("-o", "file/figures"), "is not a directory"),
    (("--json", "file/tables.json"), "is not a directory"),
    (("--json", "."), "it is a directory"),
])
def test_bad_input_to_roofline_is_one_clear_line_and_writes_nothing(words, message, tmp_path):
    (tmp_path / "file").write_text("")
    error = ksim(*STEP, *words, folder=tmp_path, code=1)
    assert message in error and error.startswith("ksim: ") and error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]

"""`ksim gpu new`: what it asks, and files that work at once."""

import sys

import pytest
import typer

from ksim.cli import hardware as command
from ksim.foundation.units import GIB, DType
from ksim.scenario.hardware import gpu_of
from tests.cli.command import ksim_here

L40S = {"name": "L40S", "architecture": "ada", "sms": "142", "clock": "2520", "memory": "48", "bandwidth": "864",
        "l2": "96", "bf16": "362", "fp32": "91.6", "fp8": "733", "tdp": "350", "pcie": "32"}


def options(**values):
    return [word for key, value in values.items() for word in (f"--{key}", value)]


def test_options_make_a_file_that_works_at_once(tmp_path):
    done = ksim_here("gpu", "new", "g.toml", *options(**L40S), folder=tmp_path)
    assert (done.status, done.stderr) == (0, "") and "try: ksim step --model llama-3.2-1b --gpu g.toml" in done.stdout
    made, known = gpu_of(str(tmp_path / "g.toml")), gpu_of("l40s")
    assert (made.sms, made.clock, made.bandwidth, made.l2) == (known.sms, known.clock, known.bandwidth, known.l2)
    assert made.memory == pytest.approx(known.memory, rel=0.01) and made.nvlink == 0 and made.system == ""
    assert made.flops[DType.FP16] == made.flops[DType.BF16] == 362e12
    step = ksim_here("step", "--model", "llama-3.2-1b", "--gpu", "g.toml", "--decode", "8x500", folder=tmp_path)
    assert "J a GPU (power estimated)" in step.stdout
    listed = ksim_here("list", "gpus", "g.toml", folder=tmp_path).stdout
    assert [line.split()[-2] for line in listed.splitlines() if "g.toml" in line] == ["estimated"]


@pytest.mark.parametrize(("name", "sold"), [("h100", 80), ("h200", 141), ("a100-80g", 80), ("l4", 24), ("l40s", 48),
                                            ("b200", 180), ("rtx-pro-6000", 96)])
def test_memory_that_is_sold_is_nearly_what_cuda_offers(name, sold):
    text = command._offered(f"{sold} GB", gpu_of(name).architecture, f"{gpu_of(name).bandwidth / 1e9} GB/s")
    assert float(text.removesuffix(" GiB")) == pytest.approx(gpu_of(name).memory / GIB, rel=0.012)
    assert command._offered("22 GiB", "ada", "300 GB/s") == "22 GiB"
    assert command._offered("24 GB", "ampere", "600 GB/s") == "22.08 GiB"  # an A10


def test_what_no_option_gives_is_asked_until_it_makes_sense(tmp_path, monkeypatch):
    answers = {**L40S, "fp4": "0", "nvlink": "0"}
    asked = []

    def prompt(question, default, value_proc):
        asked.append(question)
        key = next((key for key, (text, *_) in command.QUESTIONS.items() if text == question),
                   question.split()[0].lower())
        with pytest.raises(typer.BadParameter):
            value_proc("nonsense!" if key != "name" else "")
        return value_proc(answers[key])

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", prompt)
    given = options(**{key: L40S[key] for key in ("clock", "tdp")})
    assert ksim_here("gpu", "new", "g.toml", *given, folder=tmp_path).status == 0
    assert len(asked) == len(answers) - 2 and asked[0] == "name" and "MHz" not in " ".join(asked)
    assert "memory as sold, GB" in asked and gpu_of(str(tmp_path / "g.toml")).bandwidth == 864e9


def test_an_existing_file_is_overwritten_only_by_force(tmp_path):
    (tmp_path / "g.toml").write_text("mine")
    assert ksim_here("gpu", "new", "g.toml", *options(**L40S), folder=tmp_path).status == 1
    assert (tmp_path / "g.toml").read_text() == "mine"
    assert ksim_here("gpu", "new", "g.toml", "--force", *options(**L40S), folder=tmp_path).status == 0

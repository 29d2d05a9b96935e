"""Standard streams that are closed, full or broken, and a working directory that is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, ksim_here

FULL = "ksim: No space left on device: a disk, or what output goes to, is full\n"


def shell(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KSIM": f"{sys.executable} -m ksim"}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, check=False,
                          encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(("command", "status", "says"), [
    ("$KSIM list gpus > /dev/full", 1, FULL), ("$KSIM --version > /dev/full", 1, FULL),
    ("$KSIM list gpus | true", 0, ""), ("$KSIM list gpus >&-", 0, ""),
    ("$KSIM list gpus 2>&- >&- <&-", 0, ""), ("$KSIM gpu new x.toml <&-", 1, "there is no terminal to ask for them\n"),
    ("mkdir gone; cd gone; rmdir ../gone; $KSIM list gpus", 1, "the working directory is gone; change to one that"
                                                                " there is\n"),
])
def test_a_stream_that_cannot_be_used_is_told_in_a_line(tmp_path, command, status, says):
    done = shell(command, tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stderr.endswith(says) and done.stderr.count("\n") == (1 if says else 0)
    assert not any(tmp_path.iterdir())


def test_a_name_longer_than_any_is_shortened(tmp_path):
    outcome = ksim_here("model", "x" * 5000, folder=tmp_path)
    assert outcome.status == 1 and outcome.stderr.count("\n") == 1 and len(outcome.stderr) < 500


def test_a_summary_without_numbers_is_named(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text(json.dumps({"completed": 3}))
    outcome = ksim_here("report", "out", folder=tmp_path)
    assert outcome.status == 1
    assert outcome.stderr.startswith("ksim: out/summary.json: has no ") and outcome.stderr.count("\n") == 1
    assert not (tmp_path / "report.html").exists()

"""Whatever a command is given for a file, it ends at once and with one line: no traceback, and nothing that waits."""

import os

import pytest

from tests.cli.command import SCENARIO, TRACE, ksim_here

#: Commands before the name of a file.
COMMANDS = [
    "run", "replay --model llama-3.2-1b --gpu h200", "explain", "diff b", "sweep --front --over seed=1,2", "trace",
    "gpu calibrate", "gpu calibrate t.csv --gpu", "step --decode 1x1 --gpu h200 --model",
    "step --decode 1x1 --model llama-3.2-1b --gpu", "step --decode 1x1 --model llama-3.2-1b --system",
    "step --decode 1x1 --model llama-3.2-1b --gpu h200 --oracle", "collectives --gpu", "collectives --system",
    "roofline --gpu h200 --model", "gpu points -o x.csv --gpu",
    "gpu points -o x.csv --gpu h200 --model", "validate schedule", "validate autoscalers", "validate serving",
    "validate kernels", "validate kernels t.csv --profile",
    "run s.toml --set model=", "run s.toml --set gpu=", "run s.toml --set host=",
    "run s.toml --set engine=", "run s.toml --set energy.grid=",
    "run s.toml --set oracle.name=measured --set oracle.path=",
    "run s.toml --set routing.name=measured --set routing.path=",
]
NAMES = ["none", "", "folder", "pipe.toml", "pipe.csv", "pipe.npz", "binary.json", "binary.TOML", "empty.parquet",
         "utf16.toml", "utf16.csv", "deep.json", "loop.toml", "x" * 300 + ".toml", "/dev/zero", "t.csv/t.csv"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    for name in ("pipe.toml", "pipe.csv", "pipe.npz"):
        os.mkfifo(made / name)
    (made / "folder").mkdir()
    (made / "loop.toml").symlink_to("loop.toml")
    for name in ("binary.json", "binary.TOML"):
        (made / name).write_bytes(bytes(range(256)))
    (made / "empty.parquet").touch()
    (made / "utf16.toml").write_text(SCENARIO, encoding="utf-16")
    (made / "utf16.csv").write_text(TRACE, encoding="utf-16")
    (made / "deep.json").write_text("[" * 100_000)
    (made / "s.toml").write_text(SCENARIO)
    (made / "t.csv").write_text(TRACE)
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_of_its_kind_is_refused_in_one_line(command, folder):
    *words, last = command.split()
    for name in NAMES:
        given = (f"{last}{name}",) if last.endswith("=") else (last, name)
        outcome = ksim_here(*words, *given, folder=folder)
        problem = f"{name[:40]!r}: {outcome.stderr}"
        assert outcome.status == 1 and outcome.stderr.startswith("ksim: "), problem
        assert outcome.stderr.count("\n") == 1, problem
    assert not (folder / "x.csv").exists() and not (folder / "roofline").exists()

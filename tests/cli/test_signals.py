"""What signals leave of a command and of its processes: nothing.

The commands ask an oracle that says when it is asked and then waits, so a signal always finds them at work, however
busy the machine is.
"""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

from tests.cli.command import ROOT, SCENARIO, ksim_here

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")

ORACLE = """
import os, time
class Waits:
    def seconds(self, kernel, gpu):
        os.write(1, b"waiting\\n")
        time.sleep(3600)
"""
RUN = ("run", "s.toml", "-o", "out", "--stream", "--set", "oracle=mine:Waits")
FRONT = ("sweep", "s.toml", "--front", "--over", "seed=1,2", "--jobs", "2", "--set", "oracle=mine:Waits")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "mine.py").write_text(ORACLE, encoding="utf-8")
    return tmp_path


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def heed_interrupts():
    """Shells have what they run in the background ignore them, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def at_work(folder, words, processes):
    """The command in a process group of its own, once so many processes are at work."""
    command = subprocess.Popen(
        [sys.executable, "-m", "ksim", *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=heed_interrupts)  # noqa: PLW1509 - pytest has no threads that could be in its way
    try:
        for _ in range(processes):
            assert command.stdout.readline() == "waiting\n", command.stderr.read()
        yield command
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.communicate()


INTERRUPTED = (signal.SIGINT, 130, "ksim: interrupted; nothing was written\n")
TERMINATED = (signal.SIGTERM, 143, "ksim: terminated; nothing was written\n")


@pytest.mark.parametrize(("words", "processes", "number", "status", "message"), [
    (RUN, 1, *INTERRUPTED), (FRONT, 2, *TERMINATED),
    pytest.param(RUN, 1, *TERMINATED, marks=pytest.mark.explore),
    pytest.param(FRONT, 2, *INTERRUPTED, marks=pytest.mark.explore),
], ids=["run-int", "front-term", "run-term", "front-int"])
def test_a_signal_ends_all_processes_and_leaves_nothing_behind(words, processes, number, status, message, folder):
    with at_work(folder, words, processes) as command:
        if number == signal.SIGINT:  # which a terminal sends to all of them
            os.killpg(command.pid, number)
        else:
            command.send_signal(number)
        _, error = command.communicate()  # waits for all of them, as each holds the pipe
    assert (command.returncode, error) == (status, message)
    assert left(folder) == ["mine.py", "s.toml"]


def test_processes_end_with_a_parent_that_is_killed(folder):
    with at_work(folder, FRONT, 2) as command:
        command.kill()
        command.communicate()  # waits for all of them, as each holds the pipe
    assert left(folder) == ["mine.py", "s.toml"]


def test_the_next_run_removes_what_a_killed_one_left(folder):
    with at_work(folder, RUN, 1) as command:
        (hidden,) = folder.glob(".out.*-partial")
        command.kill()
        command.communicate()
    assert hidden.exists()
    assert ksim_here("run", "s.toml", "-o", "out", "--stream", folder=folder).status == 0
    assert left(folder) == ["mine.py", "out", "s.toml"]

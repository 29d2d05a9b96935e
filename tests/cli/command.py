"""The command line for tests: as a process of its own, or in this one, which is much faster."""

import contextlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path

from attrs import frozen

from ksim.cli import main

ROOT = Path(__file__).parents[2]
#: A scenario that runs in a moment.
SCENARIO = """
model = "llama-3.2-1b"
gpu = "h200"
[serve]
max_model_len = 8192
[workload.synthetic]
count = 12
arrivals = {process = "poisson", rate = 20.0}
prompt = {kind = "uniform", low = 50, high = 400}
output = {kind = "uniform", low = 2, high = 20}
"""


def ksim(*words, folder, code=0, **environment):
    """Run the command line in *folder* as a process; return what it printed, or its errors if *code* is not 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    done = subprocess.run([sys.executable, "-m", "ksim", *map(str, words)], capture_output=True, check=False,
                          encoding="utf-8", cwd=folder, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@frozen
class Outcome:
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str


def ksim_here(*words, folder):
    """Run the command line in *folder*, in this process.  A warning is an error, and what is no KsimError escapes."""
    out, err = io.StringIO(), io.StringIO()
    argv, path, status = sys.argv, list(sys.path), 0
    sys.argv = ["ksim", *map(str, words)]
    try:
        with (contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
              warnings.catch_warnings()):
            warnings.simplefilter("error")
            main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv, sys.path[:] = argv, path
    return Outcome(status, out.getvalue(), err.getvalue())

"""The command line for tests: in this process, which takes a moment, or as a process of its own."""

import contextlib
import functools
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import typer.main
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
#: A trace that anything can replay.
TRACE = "arrival,prompt,output\n0,100,5\n0.5,200,6\n"
#: The parser of all commands is the same each time, and takes longer to make than most commands to fail.
PARSER = functools.cache(typer.main.get_command)


@frozen
class Outcome:
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str


def ksim(*words, folder, code=0, **environment):
    """Run the command line in *folder*; return what it printed, or its errors if *code* is not 0."""
    outcome = ksim_here(*words, folder=folder, **environment)
    assert outcome.status == code, outcome.stderr or outcome.stdout
    return outcome.stdout if code == 0 else outcome.stderr


def ksim_process(*words, folder, code=0, **environment):
    """Do as `ksim` in a process of its own, for what depends on it: signals, start-up, the seed of hashes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    done = subprocess.run([sys.executable, "-m", "ksim", *map(str, words)], capture_output=True, check=False,
                          encoding="utf-8", cwd=folder, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def ksim_here(*words, folder, **environment):
    """Run the command line in *folder*.  A warning is an error, and an exception that is no KsimError escapes."""
    out, err = io.StringIO(), io.StringIO()
    status, path, modules = 0, list(sys.path), set(sys.modules)
    try:
        with (contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
              mock.patch.dict(os.environ, environment), mock.patch.object(sys, "argv", ["ksim", *map(str, words)]),
              mock.patch.object(typer.main, "get_command", PARSER),
              warnings.catch_warnings()):
            warnings.simplefilter("error")
            main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.path[:] = path
        _forget(Path(folder), set(sys.modules) - modules)
    return Outcome(status, out.getvalue(), err.getvalue())


def _forget(folder, names):
    """Unload the modules of plug-ins in *folder*: those of the next test may have the same names."""
    for name in names:
        file = getattr(sys.modules[name], "__file__", None)
        if file and folder in Path(file).parents:
            del sys.modules[name]

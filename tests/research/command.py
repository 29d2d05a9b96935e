"""`python -m benchmarks.research` for tests, in this process."""

import contextlib
import io
import sys
from unittest import mock

from benchmarks.research.__main__ import main


def research(*words, folder, code=0):
    """Run the command line in *folder*; return what it printed, or its error if *code* is not 0."""
    out, status = io.StringIO(), 0
    with (contextlib.chdir(folder), contextlib.redirect_stdout(out),
          mock.patch.object(sys, "argv", ["research", *map(str, words)])):
        try:
            main()
        except SystemExit as stop:
            status, error = (1, stop.code) if isinstance(stop.code, str) else (stop.code or 0, "")
    assert status == code, out.getvalue()
    return out.getvalue() if code == 0 else error

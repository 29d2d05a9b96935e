"""The command line: `ksim run`, `replay`, `explain`, `diff`, `pareto`, `step`, `roofline`, `validate` and more."""

import os
import sys
from pathlib import Path

import typer

from ksim.foundation.errors import KsimError

app = typer.Typer(
    help="Simulate LLM inference serving, down to the single GPU kernel.", add_completion=False,
    no_args_is_help=True, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; errors that a user can mend are one line and exit code 1."""
    sys.path.insert(0, str(Path.cwd()))  # where a user's own plug-ins are, named package.module:Class
    try:
        app()
    except KsimError as error:
        print(f"ksim: {error}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == 130:  # Ctrl-C, on which the command line's library ends in silence
            print("ksim: interrupted; nothing was written", file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of our output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a name that is too long, a disk that is full
        if error.filename is None or error.strerror is None:
            raise
        print(f"ksim: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _register() -> None:
    from ksim.cli import (
        cache,
        calibrate,
        catalogue,
        collectives,
        diff,
        explain,
        pareto,
        roofline,
        run,
        step,
        sweep_kernels,
        trace,
        validate,
    )

    app.command("run")(run.run)
    app.command("replay")(run.replay)
    app.command("explain")(explain.explain)
    app.command("diff")(diff.diff)
    app.command("pareto")(pareto.pareto)
    app.command("step")(step.step)
    app.command("collectives")(collectives.collectives)
    app.command("roofline")(roofline.roofline)
    app.command("sweep-kernels")(sweep_kernels.sweep_kernels)
    app.command("calibrate")(calibrate.calibrate)
    app.command("trace")(trace.trace)
    app.command("cache")(cache.cache)
    app.command("list")(catalogue.list_entries)
    app.add_typer(validate.app, name="validate")


_register()

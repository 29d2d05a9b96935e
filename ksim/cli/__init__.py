"""The command line: `ksim new`, `run`, `replay`, `explain`, `diff`, `sweep`, `capacity` and others."""

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from ksim.cli import completion, terminal
from ksim.cli.completion import InstallCompletion, MainGroup, ShowCompletion
from ksim.cli.help import App
from ksim.cli.terminal import hint
from ksim.foundation import process
from ksim.foundation.errors import KsimError

app = App(
    cls=MainGroup, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from ksim import __version__

        print(f"ksim {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                                   help="print the version and exit")] = False,
             install_completion: InstallCompletion = None, show_completion: ShowCompletion = None) -> None:
    """Simulate LLM inference serving, down to the single GPU kernel."""


def main() -> None:
    """Run the command line.

    An error that the user can correct prints one line and exits with status 1; Ctrl-C exits with 130, SIGTERM with 143.
    """
    terminal.prepare()
    try:
        sys.path.insert(0, str(Path.cwd()))  # for plug-ins that are named package.module:Class
        with process.terminable(), terminal.flushed():
            completion.offer(app) if completion.is_asked() else app(prog_name="ksim")
    except KsimError as error:
        print(f"ksim: {terminal.shortened(str(error))}", file=sys.stderr)
        sys.exit(1)
    except process.Terminated as stop:
        print(f"ksim: {stop.message}", file=sys.stderr)
        raise
    except SystemExit as stop:
        if stop.code == 130:  # Ctrl-C, after which typer exits without a word
            print("ksim: interrupted; nothing was written", file=sys.stderr)
        if stop.code == 2 and (said := hint(app, sys.argv[1:])):
            print(f"ksim: {said}", file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        terminal.forget()
        sys.exit(141)
    except OSError as error:  # such as a name that is too long, or a full disk
        if error.strerror is None:
            raise
        said = terminal.shortened(f"{error.filename}: " if error.filename else "")
        print(f"ksim: {said}{error.strerror}{_remedy(error)}", file=sys.stderr)
        terminal.forget()
        sys.exit(1)


def _remedy(error: OSError) -> str:
    """What to do about *error*, where its own words do not say what it is about."""
    if error.errno == errno.ENOENT and not error.filename:
        return ": the working directory is gone; change to one that there is"
    return ": a disk, or what output goes to, is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


def _register() -> None:
    """Add all commands, in the order of the help: runs, studies, and what they are made of."""
    from ksim.cli import diff, exchange, run, serve, start

    app.command("new")(start.new)
    app.command("init", hidden=True)(start.init)
    app.command("import")(exchange.import_)
    app.command("export")(exchange.export)
    app.command("run")(run.run)
    app.command("replay")(run.replay)
    app.command("serve")(serve.serve)
    app.command("explain")(run.explain)
    app.command("diff")(diff.diff)
    _register_studies()
    _register_parts()


def _register_studies() -> None:
    from ksim.cli import capacity, run, studies, sweep

    app.command("sweep")(sweep.sweep)
    app.command("pareto", hidden=True)(sweep.pareto)
    app.command("capacity")(capacity.capacity)
    app.command("tune")(studies.tune)
    app.command("routers")(studies.routers)
    app.command("report")(run.report)


def _register_parts() -> None:
    from ksim.cli import catalogue, hardware, parts, start, trace, validate

    app.command("step")(parts.step)
    app.command("collectives")(parts.collectives)
    app.command("roofline")(parts.roofline)
    app.command("sweep-kernels")(hardware.sweep_kernels)
    app.command("calibrate")(hardware.calibrate)
    app.command("trace")(trace.trace)
    app.command("list", plugins=False)(catalogue.list_entries)
    app.command("model", cls=hardware.ModelCommand)(hardware.model)
    app.command("schema", plugins=False)(start.schema)
    app.command("doctor", plugins=False)(start.doctor)
    app.add_typer(hardware.app, name="gpu")
    app.add_typer(validate.app, name="validate")


_register()

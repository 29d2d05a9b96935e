"""The command line: commands to run scenarios, ask, compare, connect, calibrate and look up."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ksim.cli import completion, terminal
from ksim.cli.completion import InstallCompletion, MainGroup, ShowCompletion
from ksim.cli.help import App, HelpCommand, under_old_name
from ksim.cli.terminal import hint
from ksim.foundation import process
from ksim.foundation.catalog import TRUST
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
             trust: Annotated[bool, typer.Option("--trust", help="import plug-ins (package.module:Class) also from"
                                                 " installed packages, not only from your own folders; may stand"
                                                 " behind a command, too")] = False,
             install_completion: InstallCompletion = None, show_completion: ShowCompletion = None) -> None:
    """Simulate LLM inference serving, down to the single GPU kernel."""
    if trust:
        os.environ[TRUST] = "1"  # which processes of this one inherit


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
    """Return a remedy for *error*, where its own words name none."""
    if error.errno == errno.ENOENT and not error.filename:
        return ": the working directory is gone; change to one that there is"
    return ": a disk, or what output goes to, is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


def _register() -> None:
    """Add all commands, in the order of the help, each under a heading of its own kind."""
    from ksim.cli import (
        capacity,
        catalogue,
        diff,
        exchange,
        hardware,
        parts,
        plan,
        ranks,
        run,
        serve,
        start,
        studies,
        sweep,
        trace,
        validate,
    )

    under: dict[str, dict[str, Any]] = {
        "Run": {"new": start.new, "run": run.run, "replay": run.replay, "explain": run.explain,
                "ranks": ranks.ranks, "report": run.report},
        "Ask": {"sweep": sweep.sweep, "capacity": capacity.capacity, "plan": plan.plan,
                "tune": studies.tune, "step": parts.step, "roofline": parts.roofline, "collectives": parts.collectives,
                "routing": parts.routing},
        "Compare": {"diff": diff.diff, "routers": studies.routers, "autoscalers": studies.autoscalers},
        "Connect": {"import": exchange.import_, "export": exchange.export, "serve": serve.serve, "trace": trace.trace},
        "Look up": {"list": catalogue.list_entries, "model": hardware.model, "doctor": start.doctor}}
    for heading, commands in under.items():
        for name, command in commands.items():
            app.command(name, rich_help_panel=heading,
                        cls=hardware.ModelCommand if name == "model" else HelpCommand)(command)
    for name, group in {"gpu": hardware.app, "validate": validate.app}.items():
        app.add_typer(group, name=name, rich_help_panel="Calibrate")
    app.command("pareto", hidden=True)(sweep.pareto)
    for old, new, command in (("sweep-kernels", "gpu points", hardware.points),
                              ("calibrate", "gpu calibrate", hardware.calibrate),
                              ("schema", "new --schema", start.schema)):
        app.command(old, hidden=True)(under_old_name(old, new, command))


_register()

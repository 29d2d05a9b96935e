"""`ksim schema`: the JSON Schema of scenario files, for editors."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ksim.cli import files
from ksim.cli.output import say


def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="file to write; by default it is"
                                                " printed")] = None,
) -> None:
    """Print the JSON Schema of scenario files, with which editors complete keys and mark mistakes."""
    from ksim.foundation.errors import ConfigError
    from ksim.simulation.scenario_schema import FILE

    text = FILE.read_text(encoding="utf-8")
    if output is None:
        sys.stdout.write(text)
        return
    if output.is_dir():
        raise ConfigError(str(output), "cannot be written: it is a directory; name a file in it, such as"
                                       " scenario.schema.json")
    files.write(output, text)
    say(f"written to {output}; begin a scenario beside it with the line: #:schema {output.name}")

"""`ksim report`: a run or a study as one page for a browser."""

from pathlib import Path
from typing import Annotated

import typer

from ksim.cli.output import say


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="what `ksim run -o` has written, or"
                                              " `ksim sweep`, `tune`, `routers` or `capacity`")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE",
                                         help="the page to write")] = Path("report.html"),
) -> None:
    """Write a run or a study as one HTML page that opens without a network."""
    from ksim.page.write import write_page
    from ksim.report.run_directory import readable

    with readable(directory):
        written = write_page(directory, output)
    say(f"written to {written}")

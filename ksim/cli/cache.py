"""`ksim cache`: the prices that runs share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ksim.simulation.cached import Prices


def cache(clear: Annotated[bool, typer.Option("--clear", help="remove them all")] = False) -> None:
    """Show the prices of kernels that runs keep for those to come, or remove them; KSIM_CACHE_DIR says where."""
    from ksim.simulation import cached

    folder = cached.folder()
    if folder is None:
        print("nothing is kept: KSIM_CACHE_DIR is off, or there is no home directory")
    elif clear:
        print(f"removed {cached.clear(folder) / 2**20:.1f} MiB from {folder}")
    else:
        _show(folder, cached.prices(folder))


def _show(folder: Path, found: "list[Prices]") -> None:
    from time import localtime, strftime

    from ksim.cli.screen import console, table

    print(f"prices in {folder}")
    shown = table("file", ">rows", ">MiB", "last used")
    for each in found:
        rows = "broken" if each.rows is None else f"{each.rows:,}"
        used = strftime("%Y-%m-%d %H:%M", localtime(each.used))
        shown.add_row(each.path.name, rows, f"{each.size / 2**20:.1f}", used)
    console().print(shown)

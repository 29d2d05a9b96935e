"""`ksim validate transfers`: errors of KV transfers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.output import JsonFile, Wide, console, say, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.measured_transfers import TransferReport


def transfers(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured transfers, as transfers.csv")],
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare KV transfers between two nodes with measured ones.

    The constants of a connector are fitted to every second row of a series.  The other rows are held back.
    """
    from ksim.validation.measured_transfers import median_ape, validate

    report = validate(path)
    screen = console()
    screen.print(_transfers(report))
    if report.refused:
        screen.print(_refused(report))
    _write(json_file, report)
    held_back = (f"{median_ape(report.held_back):.2f} % in the median of {len(report.held_back)} rows held back"
                 if report.held_back else "no row is held back")
    say(f"seconds of transfers: {held_back}, {median_ape(report.transfers):.2f} % of all {len(report.transfers)}")


def _transfers(report: "TransferReport") -> Table:
    rows = Table.of("series", "connector", ">tokens", ">MB", ">ms", ">predicted", ">error %", "row is",
                    hide=("row is", "MB", "connector"),
                    title="transfers between two nodes")
    for transfer in report.transfers:
        row = transfer.row
        rows.add_row(row.series, row.plugin or "", f"{row.tokens:,}", f"{row.bytes / 1e6:,.0f}",
                     f"{1e3 * row.seconds:.2f}", f"{1e3 * transfer.predicted:.2f}", f"{transfer.error:+.1f}",
                     "fitted" if transfer.fitted else "held back")
    return rows


def _refused(report: "TransferReport") -> Table:
    rows = Table.of(">rows", "refused, because", title="rows refused")
    for reason, count in report.refused.items():
        rows.add_row(str(count), reason)
    return rows


def _write(path: Path | None, report: "TransferReport") -> None:
    from ksim.validation.measured_transfers import median_ape

    write_json(path, {
        "held_back_median_ape": median_ape(report.held_back), "median_ape": median_ape(report.transfers),
        "transfers": [{"series": transfer.row.series, "connector": transfer.row.plugin, "tokens": transfer.row.tokens,
                       "bytes": transfer.row.bytes, "seconds": transfer.row.seconds, "predicted": transfer.predicted,
                       "error": transfer.error, "fitted": transfer.fitted} for transfer in report.transfers],
        "refused": report.refused})

"""`ksim collectives`: what messages between GPUs take, in time and in energy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.simulation.collectives import Message

_KIB = 1024


def collectives(
    gpu: Annotated[str | None, typer.Option(help="GPU, in its usual system")] = None,
    system: Annotated[str | None, typer.Option(help="system, in place of a GPU")] = None,
    nodes: Annotated[int | None, typer.Option(help="nodes of the system")] = None,
    kinds: Annotated[str, typer.Option(help="such as all_reduce,all_gather, with commas between")] = "all_reduce",
    ranks: Annotated[str, typer.Option(help="how many GPUs take part, with commas between")] = "2,4,8",
    sizes: Annotated[str, typer.Option(help="bytes, with commas between; by default 1 KiB to 1 GiB, times four"
                                       " each")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the table here")] = None,
) -> None:
    """Price collectives by kind, size and GPU count: time, bus bandwidth and joules, as NCCL's tests count them."""
    from ksim.cli.json_file import write_outcome
    from ksim.cli.screen import console
    from ksim.simulation.collectives import messages

    found = list(messages(gpu, system, nodes, _words(kinds), [int(word) for word in _numbers("--ranks", ranks)],
                          _numbers("--sizes", sizes) or [float(_KIB * 4**power) for power in range(11)]))
    console().print(_table(found))
    write_outcome(json_file, {"messages": [_row(message) for message in found]})


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(flag: str, text: str) -> list[float]:
    from ksim.foundation.errors import ConfigError
    from ksim.foundation.units import quantity

    try:
        return [quantity(word) for word in _words(text)]
    except ValueError as error:
        raise ConfigError(flag, str(error)) from None


def _table(found: list["Message"]) -> "Table":
    from ksim.cli.screen import table
    from ksim.report.wording import measure, number

    rows = table("kind", ">GPUs", ">size", "algorithm", ">us", ">GB/s", ">mJ", ">idle", ">pJ/bit",
                 title="bus bandwidth as of NCCL's tests; joules of all GPUs, and what share of them is idle power")
    for message in found:
        rows.add_row(message.kind, str(message.ranks), measure(message.bytes, "B"), message.span.launch,
                     number(1e6 * message.seconds), number(1e-9 * message.bus_bandwidth), number(1e3 * message.joules),
                     f"{message.idle_joules / message.joules:.0%}", number(1e12 * message.joules_per_bit))
    return rows


def _row(message: "Message") -> dict[str, float | str]:
    return {"kind": message.kind, "gpus": message.ranks, "bytes": message.bytes, "launch": message.span.launch,
            "seconds": message.seconds, "bus_bandwidth": message.bus_bandwidth, "joules": message.joules,
            "idle_joules": message.idle_joules, "joules_per_bit": message.joules_per_bit}

"""`ksim collectives`: the time and energy of messages between GPUs."""

from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import GpuName, Nodes, SystemName, words_of
from ksim.cli.output import JsonFile, Wide, console, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.simulation.collectives import Message

_KIB = 1024


def collectives(
    gpu: GpuName = None, system: SystemName = None, nodes: Nodes = None,
    kinds: Annotated[str, typer.Option(help="kinds of collectives, with commas between")] = "all_reduce",
    ranks: Annotated[str, typer.Option(help="how many GPUs take part, with commas between")] = "2,4,8",
    sizes: Annotated[str, typer.Option(help="bytes, with commas between; by default 1 KiB to 1 GiB, each four"
                                       " times the one before")] = "",
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Price collectives by kind, size and GPU count: time, bus bandwidth and joules, as nccl-tests count them."""
    from ksim.simulation.collectives import messages

    priced = list(messages(gpu, system, nodes, words_of(kinds), [int(word) for word in _numbers("--ranks", ranks)],
                           _numbers("--sizes", sizes) or [float(_KIB * 4**power) for power in range(11)]))
    console().print(_table(priced))
    write_json(json_file, {"messages": [_row(message) for message in priced]})


def _numbers(flag: str, text: str) -> list[float]:
    from ksim.foundation.errors import ConfigError
    from ksim.foundation.units import quantity

    try:
        return [quantity(word) for word in words_of(text)]
    except ValueError as error:
        raise ConfigError(flag, str(error)) from None


def _table(priced: "list[Message]") -> Table:
    from ksim.report.wording import measure, number

    rows = Table.of("kind", ">GPUs", ">size", "algorithm", ">us", ">GB/s", ">mJ", ">idle", ">pJ/bit",
                    hide=("pJ/bit", "idle", "mJ", "algorithm"),
                    title="bus bandwidth as in nccl-tests; joules of all GPUs, and the share of idle power in them")
    for message in priced:
        rows.add_row(message.kind, str(message.ranks), measure(message.bytes, "B"), message.span.launch,
                     number(1e6 * message.seconds), number(1e-9 * message.bus_bandwidth), number(1e3 * message.joules),
                     f"{message.idle_joules / message.joules:.0%}", number(1e12 * message.joules_per_bit))
    return rows


def _row(message: "Message") -> dict[str, float | str]:
    return {"kind": message.kind, "gpus": message.ranks, "bytes": message.bytes, "launch": message.span.launch,
            "seconds": message.seconds, "bus_bandwidth": message.bus_bandwidth, "joules": message.joules,
            "idle_joules": message.idle_joules, "joules_per_bit": message.joules_per_bit}

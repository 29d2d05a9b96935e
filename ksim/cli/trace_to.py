"""`ksim trace --to`: a trace as a data set for a benchmark client."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import evolve, frozen

from ksim.cli.output import console, say, write_json

if TYPE_CHECKING:
    from ksim.flow.request import Request
    from ksim.workload.datasets import DatasetWriter
    from ksim.workload.replay import Replay

_PANEL = "Data set for a benchmark client"
To = Annotated[str, typer.Option("--to", metavar="FORMAT", rich_help_panel=_PANEL, help="write the requests into the"
                                 " file after -o, as mooncake, vllm-custom or aiperf (see `ksim list datasets`);"
                                 " --block-size is that of its block ids")]
Tokenizer = Annotated[str, typer.Option("--tokenizer", metavar="PATH", rich_help_panel=_PANEL, help="tokenizer.json of"
                                        " the model, or its folder, to count the made-up texts of vllm-custom exactly")]

#: Fields of requests that some format may lack, with their words for notes.
_FIELDS = {"chunks": "block ids", "session": "sessions", "delay": "delays in sessions", "priority": "priorities",
           "tenant": "tenants", "adapter": "adapters", "images": "images", "acceptance": "acceptances", "n": "n",
           "max_tokens": "max_tokens", "prompt_logprobs": "prompt_logprobs", "beam_width": "beam searches",
           "aborted": "aborts"}


@frozen
class Wanted:
    """What was asked for: the format, the file, the options of the format, and whether a drawing, too."""

    to: str
    output: Path | None
    block_size: int | None
    tokenizer: str
    drawing: bool

    def writer(self) -> "DatasetWriter":
        """The writer of the format; raises KsimError for one that there is not, or options that it does not take."""
        from ksim.foundation import catalog
        from ksim.foundation.config import Choice
        from ksim.foundation.errors import ConfigError, UnknownName
        from ksim.foundation.plugins import plugin

        if not self.to:
            raise ConfigError("--tokenizer", "is about texts that are made up; add --to vllm-custom -o FILE")
        name = self.to.replace("-", "_")
        known = catalog.names("workload.datasets")
        if ":" not in name and name not in known:
            raise UnknownName("data set", self.to, [one.replace("_", "-") for one in known])
        options = {"block_size": self.block_size, "tokenizer": self.tokenizer or None}
        given = {key: value for key, value in options.items() if value is not None}
        taken = [field.name for field in getattr(catalog.find("workload.datasets", name), "__attrs_attrs__", ())]
        if strange := [f"--{key.replace('_', '-')}" for key in given if key not in taken]:
            raise ConfigError(strange[0], f"is nothing that {self.to} has; leave it out")
        made: DatasetWriter = plugin("workload.datasets", Choice(name, given))
        return made

    def path(self) -> Path:
        """The file to write; raises ConfigError without one, and where a drawing was asked for, too."""
        from ksim.foundation.errors import ConfigError

        if self.drawing:
            raise ConfigError("--to", "writes a data set and draws nothing; leave out --plot and --cache-curve")
        if self.output is None:
            raise ConfigError("--to", "name the file to write: -o FILE")
        return self.output


def write_dataset(replay: "Replay", wanted: Wanted, outcome: Path | None) -> None:
    """Write the requests of *replay* as *wanted*, and say what a user of the file has to know."""
    from ksim.foundation.errors import ConfigError
    from ksim.workload.row import Ledger

    writer, path, ledger = wanted.writer(), wanted.path(), Ledger()
    timed = bool(replay.clock())
    if writer.times == "needs" and not timed:
        raise ConfigError(f"--to {wanted.to}", f"needs arrival times, and {replay.path} has none; name their column"
                                               " with --columns arrival=..., or write another format")
    lost: Counter[str] = Counter()
    # Without times, any rate will do: it is not written.
    requests = (replay if timed else evolve(replay, rate=1.0)).requests(0, ledger)
    count = _write(path, writer.rows(_counted(requests, writer, lost), timed))
    notes = [*ledger.remarks(), *writer.remarks, *(f"not written: {_FIELDS[name]} of {number:,} requests"
                                                   for name, number in lost.items())]
    console().print(f"{count:,} requests written into {path} as {wanted.to}")
    for note in notes:
        say(f"note: {note}")
    write_json(outcome, {"requests": count, "file": str(path), "format": wanted.to, "notes": notes})


def _counted(requests: "Iterator[Request]", writer: "DatasetWriter", lost: Counter[str]) -> "Iterator[Request]":
    """*requests*; what they have and the format has not is counted in *lost*."""
    from attrs import fields_dict

    from ksim.flow.request import Request

    usual = {name: field.default for name, field in fields_dict(Request).items() if name in _FIELDS}
    for request in requests:
        lost.update(name for name, value in usual.items()
                    if name not in writer.fields and getattr(request, name) != value)
        yield request


def _write(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write *rows* into *path*, a line each, and return their number; a file there is replaced by a whole one."""
    from ksim.foundation.files import replacing

    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
    return count

"""Whether a run is kept whole or written while it goes on, and what its user should know of that beforehand."""

from collections.abc import Iterator
from pathlib import Path

from ksim.cli.progress import duration
from ksim.simulation.extent import MANY_REQUESTS, MANY_TOKENS, Extent
from ksim.workload.replay import DAY, UNITS_HINT

__all__ = ["LOST", "streams", "warnings"]

#: Days that are worth a remark, and seconds from one request to the next that make a single day worth one.
MANY_DAYS, RARE = 30, 60.0
#: What a run that is written while it goes on does not have.
LOST = "plots, trace, kernels or attribution"


def streams(extent: Extent, output: Path | None, wished: bool | None, whole: bool) -> bool:
    """Whether to write rows while the run goes on: as *wished*, else where the run is long, has a directory to write
    to, and nothing was asked for that needs the *whole* of it."""
    return wished if wished is not None else extent.is_long and output is not None and not whole


def warnings(extent: Extent, streamed: bool, wished: bool | None) -> Iterator[str]:
    """What to say before a long run, or one whose arrivals span such a time that their unit may be another."""
    days = extent.span / DAY
    if days >= MANY_DAYS or (days >= 1 and extent.span >= RARE * extent.requests):
        yield f"arrivals span {days:,.0f} days; {UNITS_HINT}"
    if not extent.is_long:
        return
    size = f"about {extent.requests:,} requests and {extent.tokens:,} output tokens"
    whole = f"{extent.memory / 1e9:.1f} GB of memory and {duration(extent.seconds)}"
    if not streamed:
        yield (f"{size}: keeping the whole run may take {whole}; --stream -o DIR keeps only what is in flight, but has"
               f" no {LOST}")
    elif wished is None:
        yield (f"{size}: above {MANY_REQUESTS:,} requests or {MANY_TOKENS:,} output tokens, rows are written while the"
               f" run goes on, without {LOST}; --no-stream keeps the whole run, which may take {whole}")

"""Releases of engines: from an image's tag or an option to what ksim simulates."""

import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from ksim.deploy.commands.command import Command
from ksim.deploy.launches import Note, Wanted
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

#: The releases that ksim simulates, the oldest first: the number from which on, and the name.  A release is taken as
#: the newest of those before it.
RELEASES: Mapping[str, Sequence[tuple[tuple[int, ...], str]]] = {
    "vllm": (((0, 22), "vllm-0.22"), ((0, 33), "vllm-0.33")),
    "sglang": (((0, 5), "sglang-0.5"), ((0, 5, 8), "sglang-0.5.8")),
    "trtllm": (((1, 0), "trtllm-1.0"), ((1, 2), "trtllm-1.2")),
}
_TAG = re.compile(r"[:@-]v?(\d+(?:\.\d+)+)")


@frozen
class Release:
    """An engine of ksim/data/engines, and what was assumed."""

    engine: str
    remarks: tuple[Note, ...] = ()
    number: str = ""
    """The release that the user names; empty where nobody does."""


def release_of(program: str, command: Command, wanted: Wanted) -> Release:
    """The engine that is simulated for *command*: as the option says, or the image's tag, or else the newest.

    Raises ConfigError for a version that is none.
    """
    releases = RELEASES[program]
    if wanted.version in catalog.entries("engines"):
        return Release(str(wanted.version))
    said, where = wanted.version, "--version"
    if said is None and command.image is not None:
        said, where = tag_of(command.image.text), command.image.where
    if said is None:
        newest = releases[-1][1]
        why = "the newest that ksim simulates; nothing says which release runs (--version, or the image's tag)"
        return Release(newest, (Note("", f"engine = {newest}", why),))
    return named(program, said, where)


def tag_of(image: str) -> str | None:
    """The release that an image's tag names, or None."""
    match = _TAG.search(image)
    return match[1] if match else None


def named(program: str, said: str, where: str) -> Release:
    """The engine for the release that is *said*; raises ConfigError for one that is no release."""
    numbers = re.fullmatch(r"v?(\d+(?:\.\d+)*).*", said)
    if numbers is None:
        raise ConfigError(where, f"{said!r} is no release; name one such as {RELEASES[program][-1][0][0]}."
                                 f"{RELEASES[program][-1][0][1]}.0, or one of ksim's engines"
                                 f" ({', '.join(catalog.entries('engines'))})")
    number = tuple(map(int, numbers[1].split(".")))
    engine = _nearest(program, number)
    exact = any(number[:len(first)] == first and name == engine for first, name in RELEASES[program])
    if exact:
        return Release(engine, number=numbers[1])
    return Release(engine, (Note(where, said, f"simulated as {engine}, the nearest release that ksim has"),),
                   numbers[1])


def _nearest(program: str, number: tuple[int, ...]) -> str:
    """The newest release of those up to *number*; of vLLM, where defaults changed between two, the next one."""
    releases = RELEASES[program]
    earlier = [name for first, name in releases if first <= number]
    if program == "vllm" and number > (0, 22, 999):
        return releases[-1][1]
    return earlier[-1] if earlier else releases[0][1]

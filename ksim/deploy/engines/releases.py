"""Releases of engines: from an image's tag or an option to what ksim simulates."""

import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from ksim.deploy.commands.command import Command
from ksim.deploy.launches import Note, Wanted
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

#: The releases that ksim simulates, the oldest first: the number from which on, and the name.  Of vLLM, defaults
#: changed with 0.19 and 0.20 and between 0.22 and 0.33; releases between these two are taken as 0.33.
RELEASES: Mapping[str, Sequence[tuple[tuple[int, ...], str]]] = {
    "vllm": (((0,), "vllm-0.18"), ((0, 19), "vllm-0.19"), ((0, 20), "vllm-0.22"), ((0, 23), "vllm-0.33")),
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
        newest = ".".join(map(str, _number_of(RELEASES[program][-1][1])[:2]))
        raise ConfigError(where, f"{said!r} is no release; name one such as {newest}.0, or one of ksim's engines"
                                 f" ({', '.join(catalog.entries('engines'))})")
    number = tuple(map(int, numbers[1].split(".")))
    engine = _nearest(program, number)
    own = _number_of(engine)
    if number[:len(own)] == own:
        return Release(engine, number=numbers[1])
    return Release(engine, (Note(where, said, f"simulated as {engine}, the nearest release that ksim has"),),
                   numbers[1])


def _number_of(engine: str) -> tuple[int, ...]:
    """The release in the name of an *engine*, such as (0, 33) of vllm-0.33."""
    return tuple(map(int, engine.partition("-")[2].split(".")))


def _nearest(program: str, number: tuple[int, ...]) -> str:
    """What stands for the release *number*."""
    releases = RELEASES[program]
    earlier = [name for first, name in releases if first <= number]
    return earlier[-1] if earlier else releases[0][1]

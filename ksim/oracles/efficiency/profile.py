"""Profiles: fitted efficiencies of kernel families, as files.

A profile is one .npz file: a JSON `header` that says what it is and where it
comes from, and the arrays that its models are made of, read when they are asked for.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, fields
from numpy.typing import NDArray

from ksim.foundation.catalog import DATA
from ksim.foundation.errors import DataError
from ksim.foundation.files import DAMAGED, FileVersion, arrays, regular_file, version
from ksim.oracles.efficiency.fitted import Efficiency, Region, Spread
from ksim.oracles.efficiency.models import KINDS

#: Where the profiles are that come with ksim.
PROFILES = DATA / "profiles"
#: Counts up whenever old files would be read wrongly.
FORMAT = 1
#: What the header says of an efficiency; the rest are arrays.
_SAID = ("constants", "inputs", "place", "rows", "error", "source")
_PARTS = {kind.__name__: kind for kind in (*KINDS.values(), Region, Spread)}


def shipped(name: str) -> Path:
    """The profile that comes with ksim for the GPU that the catalogue calls *name*, or `learned` for any."""
    return PROFILES / f"{name}.npz"


def without(name: str, architecture: str) -> str:
    """What an efficiency is called that was learned from all architectures but one."""
    return f"{name} without {architecture}"


@define(eq=False)
class Profile:
    """The efficiencies in a file, by name such as ``gemm/bf16``; `gpu` is whose they are, or empty for any."""

    path: Path
    header: Mapping[str, Any]
    _arrays: Mapping[str, NDArray[np.generic]] = field(repr=False)
    _read: dict[str, Efficiency] = field(factory=dict, init=False)

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """Open a profile, or return it as it was opened before.

        Raises DataError for a file that is none, or that another version's format made.
        """
        try:
            return cls._opened(regular_file(path), version(path))
        except OSError as error:
            raise DataError(str(path), error.strerror or str(error)) from None

    @classmethod
    @lru_cache(maxsize=32)
    def _opened(cls, path: Path, _: FileVersion) -> "Profile":
        try:
            found = arrays(path)
            header = json.loads(str(found["header"]))
        except DAMAGED:
            raise DataError(str(path), f"is no profile; `ksim calibrate SWEEP -o {path.name}` makes one") from None
        if header.get("format") != FORMAT:
            raise DataError(str(path), f"has format {header.get('format')}, and this ksim reads format {FORMAT};"
                                       f" rebuild it with `{header.get('command', f'ksim calibrate SWEEP -o {path}')}`")
        return cls(path, header, found)

    @property
    def gpu(self) -> str:
        return str(self.header["gpu"])

    def __contains__(self, name: object) -> bool:
        return name in self.header["entries"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.header["entries"])

    def __getitem__(self, name: str) -> Efficiency:
        if name not in self._read:
            said = self.header["entries"][name]
            parts = {part: self._part(f"{name}/{part}") for part in ("model", "region", "spread")}
            self._read[name] = Efficiency(
                constants=said["constants"], inputs=tuple(said["inputs"]), place=tuple(said["place"]), **parts,
                rows=said["rows"], error=said["error"], source=said["source"])
        return self._read[name]

    def _part(self, name: str) -> Any:
        try:
            return _built(self._arrays, name)
        except DAMAGED as error:
            raise DataError(str(self.path), f"is damaged, or of another version of ksim: {name}: {error};"
                                            f" rebuild it with `{self.header['command']}`") from None


def save(path: Path, gpu: str, command: str, entries: Mapping[str, Efficiency], **more: Any) -> None:
    """Write a profile; `command` is what rebuilds it, `more` goes into the header as it is."""
    header = {"format": FORMAT, "gpu": gpu, "command": command, **more, "entries": {
        name: {said: getattr(entry, said) for said in _SAID} for name, entry in entries.items()}}
    stored: dict[str, NDArray[np.generic]] = {"header": np.array(json.dumps(header))}
    for name, entry in entries.items():
        for part in ("model", "region", "spread"):
            _store(getattr(entry, part), f"{name}/{part}", stored)
    with path.open("wb") as file:
        np.savez_compressed(file, **stored)  # type: ignore[arg-type]


def _store(part: Any, name: str, arrays: dict[str, NDArray[np.generic]]) -> None:
    """Name the arrays that *part* is made of, in single precision."""
    arrays[f"{name}/kind"] = np.array(type(part).__name__)
    for attribute in fields(type(part)):
        value, place = getattr(part, attribute.name), f"{name}/{attribute.name}"
        if isinstance(value, np.ndarray):
            arrays[place] = value.astype(np.float32)
        else:
            _store(value, place, arrays)


def _built(arrays: Mapping[str, NDArray[np.generic]], name: str) -> Any:
    """The reverse of `_store`."""
    kind = _PARTS[str(arrays[f"{name}/kind"])]
    places = {attribute.name: f"{name}/{attribute.name}" for attribute in fields(kind)}
    return kind(**{member: arrays[place] if place in arrays else _built(arrays, place)
                   for member, place in places.items()})

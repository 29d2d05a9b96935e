"""An oracle whose answers many runs share: what it has said before is read, and it is asked about the rest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, evolve, field, fields

from ksim.compute.kernels import Kernel
from ksim.cost.remembering.origins import code, of_kernel, of_kinds, of_oracle, of_sizes
from ksim.cost.remembering.rows import packed, packed_sizes, sealed, unpacked, unpacked_sizes, whole
from ksim.oracles import Estimate, estimates
from ksim.oracles.efficiency.answers import Estimates, offers
from ksim.oracles.efficiency.several import Several
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.cost.remembering.book import Book

__all__ = ["Remembered", "remembered"]

#: Rows of new answers that are held before they are written.
HELD = 20_000
#: GPUs whose origins are kept: a few with fewer SMs come again and again where products overlap with their sums.
GPUS = 256
#: Lists of kinds of kernels whose origins are kept: a few for each part of a model.
KINDS = 1024


def remembered(oracle: Any, folder: Path | None) -> "Remembered | None":
    """*oracle*, whose answers are kept in *folder*; None where there is none, or it does not say what they follow from.

    That is its `basis(gpu)`: bytes which differ wherever the oracle, asked about a kernel on that GPU, could say
    something else, but for ksim's own code.
    """
    return Remembered(oracle, folder) if folder is not None and offers(oracle, "basis") else None


@define(eq=False)
class Remembered:
    """Says what `oracle` says, to the last bit, which is the same whatever it is asked about together."""

    oracle: Any
    folder: Path
    _book: "Book | None" = field(default=None, init=False)
    _problem: str = field(default="", init=False)
    _origins: dict[int, tuple[Gpu, bytes]] = field(factory=dict, init=False, repr=False)
    _known_kinds: dict[tuple[int, int], tuple[Sequence[Kernel], Gpu, bytes]] = field(factory=dict, init=False,
                                                                                     repr=False)
    _new: dict[bytes, bytes] = field(factory=dict, init=False, repr=False)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """All of *kernels*; those that are not known are asked about together."""
        if self._opened() is None:
            return estimates(self.oracle, kernels, gpu)
        origin = self._origin(gpu)
        keys = [of_kernel(origin, kernel) for kernel in kernels]
        bodies = self._known(keys)
        asked = [place for place, body in enumerate(bodies) if body is None]
        new = dict(zip(asked, estimates(self.oracle, [kernels[place] for place in asked], gpu) if asked else (),
                       strict=True))
        self._keep({keys[place]: packed(answer) for place, answer in new.items()})
        return [new[place] if body is None else unpacked(body) for place, body in enumerate(bodies)]

    def several(self, kernels: Several, gpu: Gpu) -> Estimates | None:
        """Of many kernels that are one; `oracle`, if it has columns, is asked about the sizes that are not known of all
        kinds together."""
        if not offers(self.oracle, "several"):
            return None
        if self._opened() is None:
            return self._answered(kernels, gpu)
        keys = of_sizes(self._kinds(kernels.kinds, gpu), kernels)
        bodies = self._known(keys)
        asked = [place for place, body in enumerate(bodies) if body is None]
        answers = self._answered(_of_sizes(kernels, asked), gpu) if asked else None
        if asked and answers is None:
            return None
        new = dict(zip(asked, packed_sizes(answers, len(asked)) if answers else (), strict=True))
        self._keep({keys[place]: body for place, body in new.items()})
        return answers if len(asked) == len(keys) else unpacked_sizes(
            [new[place] if body is None else body for place, body in enumerate(bodies)], len(kernels.kinds))

    def close(self) -> None:
        """Write what is new, and let go of the file."""
        if self._book is not None:
            self._write()
            self._book.close()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What users should know of the file: why answers are not kept."""
        problem = self._problem or (self._book.problem if self._book else "")
        return (problem,) if problem else ()

    def _answered(self, kernels: Several, gpu: Gpu) -> Estimates | None:
        found: Estimates | None = self.oracle.several(kernels, gpu)
        return found

    def _known(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept under each of *keys*; None where that is nothing that is whole."""
        book = self._opened()
        rows = book.rows(keys) if book else {}
        return [whole(key, rows.get(key) or self._new.get(key)) for key in keys]

    def _keep(self, bodies: Mapping[bytes, bytes]) -> None:
        self._new.update((key, sealed(key, body)) for key, body in bodies.items())
        if len(self._new) >= HELD:
            self._write()

    def _opened(self) -> "Book | None":
        """The file; None where there can be none, or Python was built without what reads it."""
        if self._book is None and not self._problem:
            try:
                from ksim.cost.remembering.book import ENDING, Book

                self._book = Book(self.folder / f"{code()}{ENDING}")
            except (ImportError, OSError) as error:
                self._problem = f"prices are not kept: {error}"
        return self._book if self._book and not self._book.problem else None

    def _origin(self, gpu: Gpu) -> bytes:
        found = self._origins.get(id(gpu))
        if found is None:
            if len(self._origins) >= GPUS:
                self._origins.clear()
            found = self._origins[id(gpu)] = gpu, of_oracle(self.oracle, gpu)
        return found[1]

    def _kinds(self, kinds: Sequence[Kernel], gpu: Gpu) -> bytes:
        """Stands for *kinds*, which the same part of a model brings at every step."""
        found = self._known_kinds.get((id(kinds), id(gpu)))
        if found is None:
            if len(self._known_kinds) >= KINDS:
                self._known_kinds.clear()
            found = self._known_kinds[id(kinds), id(gpu)] = kinds, gpu, of_kinds(self._origin(gpu), kinds)
        return found[2]

    def _write(self) -> None:
        if self._book is not None:
            self._book.write(self._new)
        self._new.clear()


def _of_sizes(kernels: Several, places: Sequence[int]) -> Several:
    """Of *kernels* those of the sizes at *places*."""
    if len(places) == kernels.sizes:
        return kernels
    columns = {each.name: column.reshape(-1, kernels.sizes)[:, places].ravel() for each in fields(type(kernels.kernel))
               if isinstance(column := getattr(kernels.kernel, each.name), np.ndarray)}
    return Several(evolve(kernels.kernel, **columns), kernels.kinds, len(places))

"""An oracle whose answers many runs share: what it has said before is read, and it is asked about the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ksim.compute.kernels import Kernel
from ksim.compute.several import Several
from ksim.cost.answers import Estimates, offers
from ksim.cost.oracles import Estimate, estimates
from ksim.cost.remembering.origins import code, of_kernel, of_oracle
from ksim.cost.remembering.rows import packed, unpacked
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.cost.remembering.book import Book

__all__ = ["Remembered", "remembered"]

#: New answers that are held before they are written.
HELD = 20_000
#: GPUs whose origins are kept: a few with fewer SMs come again and again where products overlap with their sums.
GPUS = 256


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
    _new: dict[bytes, bytes] = field(factory=dict, init=False, repr=False)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """All of *kernels*; those that are not known are asked about together."""
        keys = self._keys(kernels, gpu)
        if keys is None:
            return estimates(self.oracle, kernels, gpu)
        known = self._known(keys)
        asked = [place for place, found in enumerate(known) if found is None]
        if asked:
            answers = estimates(self.oracle, [kernels[place] for place in asked], gpu)
            self._keep([keys[place] for place in asked], answers)
            for place, answer in zip(asked, answers, strict=True):
                known[place] = answer
        return [found for found in known if found is not None]

    def several(self, kernels: Several, gpu: Gpu) -> Estimates | None:
        """Of many kernels that are one; where one is not known, `oracle` is asked about all, if it has columns."""
        if not offers(self.oracle, "several"):
            return None
        keys = self._keys(kernels.each(), gpu)
        known = [] if keys is None else self._known(keys)
        whole = [found for found in known if found is not None]
        if keys is not None and len(whole) == len(keys):
            return Estimates.of(whole)
        answers: Estimates | None = self.oracle.several(kernels, gpu)
        if answers is not None and keys is not None:
            new = [place for place, found in enumerate(known) if found is None]
            each = answers.each()
            self._keep([keys[place] for place in new], [each[place] for place in new])
        return answers

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

    def _keys(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[bytes] | None:
        """What answers about *kernels* stand under; None where nothing is kept."""
        if self._opened() is None:
            return None
        origin = self._origin(gpu)
        return [of_kernel(origin, kernel) for kernel in kernels]

    def _known(self, keys: Sequence[bytes]) -> list[Estimate | None]:
        book = self._opened()
        rows = book.rows(keys) if book else {}
        return [unpacked(key, rows.get(key) or self._new.get(key)) for key in keys]

    def _keep(self, keys: Sequence[bytes], answers: Sequence[Estimate]) -> None:
        self._new.update((key, packed(key, answer)) for key, answer in zip(keys, answers, strict=True))
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

    def _write(self) -> None:
        if self._book is not None:
            self._book.write(self._new)
        self._new.clear()

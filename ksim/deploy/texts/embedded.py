"""Texts inside texts: a shell script in a container, a file in a ConfigMap."""

from attrs import evolve, frozen

from ksim.deploy.texts.entries import Entry
from ksim.deploy.texts.pasted import Pasted

__all__ = ["Embedded"]


@frozen
class Embedded(Pasted):
    """A text inside a manifest, whose places are the manifest's."""

    entry: Entry | None = None

    def at(self, line: int, column: int = 0) -> str:
        assert self.entry is not None, "an embedded text stands somewhere"
        entry, literal = self.entry, getattr(self.entry.node, "style", None) == "|"
        first = entry.node.start_mark.line + 1
        return evolve(entry, line=first + line if literal else first).where

"""Damage to a file: bytes that are flipped somewhere, and the rest that is cut off."""

from pathlib import Path

from hypothesis import strategies as st

__all__ = ["cuts", "damage", "flips"]

#: Where bytes are changed, as a share of the file, and by what; and the share of it that is left, None for all.
flips = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=40)
cuts = st.none() | st.floats(0, 1)


def damage(folder: Path, flipped: list[tuple[float, int]], cut: float | None) -> None:
    """Spoil the only file in *folder*."""
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    for place, changed in flipped:
        content[int(place * len(content))] ^= changed
    path.write_bytes(content[:int(cut * len(content))] if cut is not None else content)

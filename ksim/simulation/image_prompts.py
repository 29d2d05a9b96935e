"""Prompts with images as a model sees them: the images' tokens in their places, and names that know of them."""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from attrs import evolve

from ksim.compute.vision import Processor
from ksim.flow.images import Image, PlacedImage
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["prepare"]


class _Run(NamedTuple):
    """So many `tokens`: of the text, from its `offset`-th on, or of the image called `name`."""

    tokens: int
    offset: int
    name: Hashable = None


def prepare(request: Request, processor: Processor) -> Request:
    """*request* with its images placed, and their tokens in its prompt; as it is where the processor refuses one."""
    if not request.images:
        return request
    try:
        request = _text_alone(request, processor)
        placed = _placed(request, processor)
    except ConfigError:
        return request
    runs = list(_runs(request, placed, processor.around))
    added = sum(run.tokens for run in runs if run.name is not None)
    return evolve(request, prompt=request.prompt + added, images=placed, chunks=tuple(_names(request, runs)))


def _text_alone(request: Request, processor: Processor) -> Request:
    """*request* without the tokens of images that its prompt counts already; one is left at least."""
    counted = sum(processor.tokens(image.width, image.height) + processor.around for image in request.images
                  if image.counted)
    return evolve(request, prompt=max(request.prompt - counted, 1)) if counted else request


def _placed(request: Request, processor: Processor) -> list[PlacedImage]:
    placed, shift = list[PlacedImage](), processor.around // 2
    for number, image in enumerate(sorted(request.images, key=_place)):
        patches = processor.patches(image.width, image.height)
        tokens = processor.tokens(image.width, image.height)
        placed.append(PlacedImage(
            image.width, image.height, image.at, image.name or ("image", request.id, number),
            start=min(image.at, request.prompt) + shift, tokens=tokens, patches=patches,
            lead=processor.lead))
        shift += tokens + processor.around
    return placed


def _place(image: Image) -> int:
    return image.at


def _runs(request: Request, placed: Sequence[PlacedImage], around: int) -> Iterator[_Run]:
    """Text and images in turn, up to the end of the output; the tokens *around* an image count as its own."""
    offset = 0
    for image in placed:
        place = min(image.at, request.prompt)
        if place > offset:
            yield _Run(place - offset, offset)
        yield _Run(image.tokens + around, 0, image.name)
        offset = place
    yield _Run(request.prompt + request.output - offset, offset)


def _names(request: Request, runs: Sequence[_Run]) -> Iterator[Hashable]:
    """Names of the full chunks of *runs*, as far as the text has names."""
    size, ends = request.chunk_tokens, [*accumulate(run.tokens for run in runs)]
    for begin in range(0, ends[-1] - size + 1, size):
        parts = [_part(request, runs[place], begin - start, size)
                 for place, start in _overlapping(ends, runs, begin, size)]
        if None in parts:
            return
        yield parts[0] if len(parts) == 1 else tuple(parts)


def _overlapping(ends: Sequence[int], runs: Sequence[_Run], begin: int, size: int) -> Iterator[tuple[int, int]]:
    """The places and starts of the *runs*, which have these *ends*, with any of *size* tokens from *begin* on."""
    for place in range(bisect_right(ends, begin), len(runs)):
        start = ends[place] - runs[place].tokens
        if start >= begin + size:
            return
        yield place, start


def _part(request: Request, run: _Run, begin: int, size: int) -> Hashable:
    """The name of what a chunk has of *run*, in which it begins at *begin*, maybe before it; None without one."""
    first, last = max(begin, 0), min(begin + size, run.tokens)
    if run.name is not None:
        return run.name, first, last
    first, last, chunk = run.offset + first, run.offset + last, request.chunk_tokens
    if last > request.named:
        return None
    chunks = request.chunks[first // chunk:-(-last // chunk)]
    return chunks[0] if last - first == chunk and not first % chunk else (first % chunk, last - first, *chunks)

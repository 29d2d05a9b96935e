"""Images of requests, drawn at random as by ``vllm bench serve --dataset-name random-mm``."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, repeat
from math import ceil, floor
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from attrs.validators import ge, gt, le, optional

from ksim.flow.request import Image, Request
from ksim.foundation.rng import stream
from ksim.workload.rows import LARGEST_SIDE, shown

_BLOCK = 4096


@frozen
class Images:
    """Images after the text of each request, with the names and defaults of random-mm (vLLM 0.33).

    In a session, each turn adds some, and has those of earlier turns in their places.
    """

    base_items_per_request: int = field(default=1, validator=(ge(0), le(1000)))
    """Images of a request, around which their number is drawn. Unit: images. Source: vllm bench serve
    --random-mm-base-items-per-request."""
    num_mm_items_range_ratio: float = field(default=0.0, validator=(ge(0), le(1)))
    """How far the number may lie from that: of n, it is drawn from n x (1 - ratio) to n x (1 + ratio), all equally
    likely. Unit: ratio. Source: vllm bench serve --random-mm-num-mm-items-range-ratio."""
    bucket_config: Mapping[str, float] = field(factory=lambda: {"(256, 256, 1)": 0.5, "(720, 1280, 1)": 0.5})
    """Sizes and how likely each is: height, width and number of frames, which is 1. Unit: none. Source: vllm bench
    serve --random-mm-bucket-config. Example: {"(256, 256, 1)" = 0.5, "(720, 1280, 1)" = 0.5}."""
    pool: int | None = field(default=None, validator=optional((gt(0), le(10**7))))
    """Different images, of which requests have some, all equally likely. Unit: images. Default: no two are alike.
    Source: ksim. Example: 100."""

    def __attrs_post_init__(self) -> None:
        shares = [share for _, share in self._buckets()]
        if min(shares, default=0.0) < 0 or not 0 < sum(shares) < float("inf"):
            raise ValueError("bucket_config must have shares of 0 or more, and not all 0")

    def _buckets(self) -> list[tuple[tuple[int, int], float]]:
        """Widths and heights, and the share of each."""
        return [(_size(text), share) for text, share in self.bucket_config.items()]

    def attached(self, requests: Iterable[Request], seed: int) -> Iterator[Request]:
        """*requests* with images, the same for the same *seed*."""
        numbers, draws = self._numbers(stream(seed, "workload.images")), self._draws(seed)
        session, before = "", list[Image]()
        for request in requests:
            if not request.session or request.session != session:
                session, before = request.session, []
            for _ in range(next(numbers)):
                name, (width, height) = next(draws)
                before.append(Image(width, height, request.prompt, name))
            yield evolve(request, images=tuple(before)) if before else request

    def _numbers(self, rng: "np.random.Generator") -> Iterator[int]:
        """The number of images that each request adds."""
        base, ratio = self.base_items_per_request, self.num_mm_items_range_ratio
        least, most = floor(base * (1 - ratio)), ceil(base * (1 + ratio))
        if least == most:
            yield from repeat(base)
        while True:
            yield from rng.integers(least, most + 1, _BLOCK).tolist()

    def _draws(self, seed: int) -> Iterator[tuple[Any, tuple[int, int]]]:
        """Names and sizes of images."""
        sizes = self._sizes(stream(seed, "workload.image_sizes"))
        if self.pool is None:
            yield from ((("image", number), size) for number, size in zip(count(), sizes, strict=False))
            return
        of, rng = [next(sizes) for _ in range(self.pool)], stream(seed, "workload.image_names")
        while True:
            yield from ((("image", number), of[number]) for number in rng.integers(self.pool, size=_BLOCK).tolist())

    def _sizes(self, rng: "np.random.Generator") -> Iterator[tuple[int, int]]:
        sizes, shares = zip(*self._buckets(), strict=True)
        while True:
            for place in rng.choice(len(sizes), _BLOCK, p=np.array(shares) / sum(shares)).tolist():
                yield sizes[place]


def _size(text: str) -> tuple[int, int]:
    """Width and height of the bucket that *text* names."""
    try:
        height, width, frames = ast.literal_eval(text)
        known = all(type(side) is int and 0 < side <= LARGEST_SIDE for side in (height, width))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        known = False
    if not known:
        raise ValueError(f"bucket_config has {shown(text)}; expected height, width and frames, such as"
                         f" '(720, 1280, 1)', with sides of at most {LARGEST_SIDE} pixels")
    if frames != 1:
        raise ValueError(f"bucket_config has {shown(text)}, a video; ksim knows images, of 1 frame")
    return width, height

"""Image processors: how many patches and tokens an image of so many pixels becomes.

Sizes are what the processors of transformers (5.23) and vLLM (0.33) make of them; each class names its source.
"""

from functools import lru_cache
from math import ceil, floor, isqrt, sqrt
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import gt, in_, instance_of

from ksim.flow.request import Patches
from ksim.foundation.errors import ConfigError

__all__ = ["FixedProcessor", "MosaicProcessor", "PixelProcessor", "TileProcessor"]

_WHOLE = (instance_of(int), gt(0))
#: No side is longer than so many times the other (smart_resize).
NARROWEST = 200


@frozen
class PixelProcessor:
    """Qwen's: sides become multiples of `patch` x `merge` pixels, the area lies between `min_pixels` and `max_pixels`.

    Source: transformers, qwen2_vl/image_processing_qwen2_vl.py, `smart_resize`; the limits are those of each family's
    preprocessor_config.json.  The chat template has a token before an image and one after it.  Without
    `most_frames`, a video has as many tokens as two frames of `video_pixels`, else so many frames of the largest image,
    if the prompt is long enough (vLLM, qwen2_vl.py and qwen3_vl.py, `get_max_video_tokens`).
    """

    min_pixels: int = field(validator=_WHOLE)
    max_pixels: int = field(validator=_WHOLE)
    _patch: int
    _merge: int
    _video_pixels: int = 0
    _most_frames: int = 0

    around: ClassVar[int] = 2
    lead: ClassVar[int] = 0
    shares_images: ClassVar[bool] = True
    keeps_heads: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels = {self.min_pixels} is more than max_pixels = {self.max_pixels}")

    @property
    def unit(self) -> int:
        """The side of the square of pixels that becomes one token."""
        return self._patch * self._merge

    def patches(self, width: int, height: int) -> Patches:
        if max(width, height) > NARROWEST * min(width, height):
            raise ConfigError("image", f"of {width} x {height} pixels is more than {NARROWEST} times as long as wide,"
                                       " and this model's processor refuses it")
        rows, columns = (side // self._patch for side in self._resized(height, width))
        return Patches(1, rows, columns, rows * columns // self._merge**2)

    def tokens(self, width: int, height: int) -> int:
        return self.patches(width, height).embeds

    def _resized(self, *sides: int) -> list[int]:
        """The *sides* of an image in pixels after it was resized."""
        unit, area = self.unit, sides[0] * sides[1]
        rounded = [round(side / unit) * unit for side in sides]
        if rounded[0] * rounded[1] > self.max_pixels:
            shrunk = sqrt(area / self.max_pixels)
            return [max(unit, floor(side / shrunk / unit) * unit) for side in sides]
        if rounded[0] * rounded[1] < self.min_pixels:
            stretched = sqrt(self.min_pixels / area)
            return [ceil(side * stretched / unit) * unit for side in sides]
        return rounded

    def largest(self) -> tuple[int, int]:
        high, wide = _oblong(self.max_pixels // self.unit**2)
        return self.unit * wide, self.unit * high

    def video_embeds(self, longest: int) -> int:
        if not self._most_frames:
            high, wide = _oblong(self._video_pixels // self.unit**2)
            return high * wide
        image = self.patches(*self.largest()).embeds
        return image * max(1, min(longest // image, ceil(self._most_frames / 2)))  # frames are taken in twos


@lru_cache(maxsize=64)
def _oblong(area: int) -> tuple[int, int]:
    """The sides of the largest oblong of at most *area* squares that is as square as can be, and not too narrow."""
    for squares in range(area, 0, -1):
        high = next(side for side in range(isqrt(squares), 0, -1) if squares % side == 0)
        if squares // high <= NARROWEST * high:
            return high, squares // high
    return 1, 1


@frozen
class TileProcessor:
    """InternVL's: tiles of `side` x `side` pixels, as many along and across as come closest to the image's shape, and a
    thumbnail beside several.

    Source: vLLM, transformers_utils/processors/internvl.py.  With a thumbnail, the tiles may be one more than
    `max_dynamic_patch`, as there.  ``<img>`` and ``</img>`` stand around the tokens.
    """

    min_dynamic_patch: int = field(validator=_WHOLE)
    max_dynamic_patch: int = field(validator=_WHOLE)
    dynamic_image_size: bool = field(validator=instance_of(bool))
    use_thumbnail: bool = field(validator=instance_of(bool))
    _side: int
    _rows: int
    _embeds: int

    around: ClassVar[int] = 0
    lead: ClassVar[int] = 1
    shares_images: ClassVar[bool] = True
    keeps_heads: ClassVar[bool] = True

    @property
    def _limits(self) -> tuple[int, int]:
        least, most = (self.min_dynamic_patch, self.max_dynamic_patch) if self.dynamic_image_size else (1, 1)
        return least, most + (self.use_thumbnail and most != 1)

    def patches(self, width: int, height: int) -> Patches:
        along, across = _closest(width, height, self._side, *self._limits)
        tiles = along * across
        tiles += self.use_thumbnail and tiles != 1
        return Patches(tiles, self._rows, self._rows, tiles * self._embeds, extra=1)

    def tokens(self, width: int, height: int) -> int:
        return self.patches(width, height).embeds + 2

    def largest(self) -> tuple[int, int]:
        sizes = [(self._side * along, self._side * across) for along, across in _grids(*self._limits)]
        return max(sizes, key=lambda size: self.patches(*size).tiles)

    def video_embeds(self, longest: int) -> int:
        """The tokens of as many frames, of a tile each, as fit beside an image (vLLM, internvl.py)."""
        return max((longest - self.patches(*self.largest()).embeds) // self._embeds, 1) * self._embeds


@lru_cache(maxsize=64)
def _grids(least: int, most: int) -> list[tuple[int, int]]:
    """The numbers of tiles along and across, fewest tiles first."""
    grids = {(along, across) for along in range(1, most + 1) for across in range(1, most // along + 1)
             if along * across >= least}
    return sorted(grids, key=lambda grid: (grid[0] * grid[1], grid))


def _closest(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """The grid that is closest in shape; of equal ones the largest that the image fills by half."""
    best, off = (1, 1), float("inf")
    for along, across in _grids(least, most):
        difference = abs(width / height - along / across)
        if difference < off or (difference == off and width * height > 0.5 * side * side * along * across):
            best, off = (along, across), difference
    return best


@frozen
class MosaicProcessor:
    """Llama 4's: at most `max_patches` tiles, on the canvas that magnifies the image least, and the whole image as one
    more tile beside several.

    Source: transformers, llama4/image_processing_llama4.py, `get_best_fit`, and processing_llama4.py,
    `_prompt_split_image`: separators between tiles, at the ends of rows, and around all.
    """

    max_patches: int = field(default=16, validator=_WHOLE)
    resize_to_max_canvas: bool = field(default=False, validator=instance_of(bool))
    _side: int = 336
    _rows: int = 24
    _embeds: int = 144

    around: ClassVar[int] = 0
    lead: ClassVar[int] = 1
    shares_images: ClassVar[bool] = True
    keeps_heads: ClassVar[bool] = False

    def patches(self, width: int, height: int) -> Patches:
        tiles = self._tiles(width, height)
        return Patches(tiles, self._rows, self._rows, tiles * self._embeds, extra=1)

    def tokens(self, width: int, height: int) -> int:
        across, along = self._canvas(width, height)
        separators = across * along if across * along > 1 else 0  # one after each tile
        return self._tiles(width, height) * self._embeds + separators + 3

    def _tiles(self, width: int, height: int) -> int:
        across, along = self._canvas(width, height)
        return across * along + (across * along > 1)

    def _canvas(self, width: int, height: int) -> tuple[int, int]:
        """The number of tiles above and beside each other."""
        scales = {(across, along): min(across * self._side / height, along * self._side / width)
                  for along, across in _grids(1, self.max_patches)}
        larger = [scale for scale in scales.values() if scale >= 1]
        pick = (max if self.resize_to_max_canvas else min)(larger) if larger else max(scales.values())
        fitting = [grid for grid, scale in scales.items() if scale == pick]
        return min(fitting, key=lambda grid: grid[0] * grid[1])

    def largest(self) -> tuple[int, int]:
        return self._side, self.max_patches * self._side

    def video_embeds(self, longest: int) -> int:
        return 0


@frozen
class FixedProcessor:
    """Gemma 3's: every image is resized to one square, and becomes `embeds` tokens; pan-and-scan is off by default.

    Source: transformers, gemma3/processing_gemma3.py: two newlines, which are one token, and a token for the begin and
    the end of the image stand around the tokens.
    """

    do_pan_and_scan: bool = field(default=False, validator=in_((False,)))
    _rows: int = 64
    _embeds: int = 256

    around: ClassVar[int] = 0
    lead: ClassVar[int] = 2
    shares_images: ClassVar[bool] = False
    keeps_heads: ClassVar[bool] = False

    def patches(self, width: int, height: int) -> Patches:
        return Patches(1, self._rows, self._rows, self._embeds)

    def tokens(self, width: int, height: int) -> int:
        return self._embeds + 4

    def largest(self) -> tuple[int, int]:
        return 1, 1

    def video_embeds(self, longest: int) -> int:
        return 0

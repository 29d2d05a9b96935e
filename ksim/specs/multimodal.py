"""What an engine does with images: how many it takes, and how its processor resizes them."""

from attrs import field, fields, frozen
from attrs.validators import ge, gt, in_, optional

#: vLLM's `mm_encoder_tp_mode`.
ENCODER_MODES = ("weights", "data")
_COUNT = optional(gt(0))


@frozen
class LimitMmPerPrompt:
    """What vLLM's flag ``--limit-mm-per-prompt`` takes (0.33, vllm/config/multimodal.py)."""

    image: int = field(default=999, validator=ge(0))
    """Most images in a prompt. Unit: images. Source: vLLM."""
    video: int = field(default=999, validator=ge(0))
    """Most videos in a prompt. ksim has no videos, but vLLM makes its encoder's budget and cache large enough for the
    longest one; 0 leaves it at that of images. Unit: videos. Source: vLLM."""


@frozen
class MmProcessorKwargs:
    """What vLLM's flag ``--mm-processor-kwargs`` takes; each family of models has some of these keys."""

    min_pixels: int | None = field(default=None, validator=_COUNT)
    """Fewest pixels of an image after it is resized (Qwen). Unit: pixels. Default: that of the family.
    Source: vLLM. Example: 200704."""
    max_pixels: int | None = field(default=None, validator=_COUNT)
    """Most pixels of an image after it is resized (Qwen). Unit: pixels. Default: that of the family.
    Source: vLLM. Example: 1003520."""
    min_dynamic_patch: int | None = field(default=None, validator=_COUNT)
    """Fewest tiles of an image (InternVL). Unit: tiles. Default: that of config.json. Source: vLLM. Example: 1."""
    max_dynamic_patch: int | None = field(default=None, validator=_COUNT)
    """Most tiles of an image (InternVL). Unit: tiles. Default: that of config.json. Source: vLLM. Example: 4."""
    dynamic_image_size: bool | None = None
    """Cut images into tiles (InternVL). Default: that of config.json. Source: vLLM. Example: false."""
    use_thumbnail: bool | None = None
    """Have the whole image as one more tile (InternVL). Default: that of config.json. Source: vLLM. Example: false."""
    max_patches: int | None = field(default=None, validator=_COUNT)
    """Most tiles of an image (Llama 4). Unit: tiles. Default: 16. Source: vLLM. Example: 4."""
    resize_to_max_canvas: bool | None = None
    """Magnify images as far as tiles allow (Llama 4). Default: false. Source: vLLM. Example: true."""
    do_pan_and_scan: bool | None = field(default=None, validator=optional(in_((False,))))
    """Add crops of the image (Gemma 3); ksim knows false alone. Default: false. Source: vLLM. Example: false."""

    @property
    def given(self) -> dict[str, int | bool]:
        """Those that are set."""
        return {each.name: value for each in fields(MmProcessorKwargs)
                if (value := getattr(self, each.name)) is not None}

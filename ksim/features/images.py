"""Images in prompts: the vision encoder of a model, its budget, its memory, and its pass before the decoder's.

Prompts with images have the images' tokens in their places, and names that know of them.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

from attrs import asdict, evolve, frozen, has

from ksim.compute.model import Decoder, FurtherModel, Model, whole_attention
from ksim.compute.notation.product import Product
from ksim.compute.vision import Processor, adjusted
from ksim.cost.graphs import Graphs
from ksim.cost.step import Pass, StepTimer
from ksim.flow.batch import Batch, encoder_batch
from ksim.flow.request import Image, Patches, PlacedImage, Request
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.cache_layout import Memory
from ksim.scenario.defaults import Deployment
from ksim.scenario.sizing import activations
from ksim.scheduling.image_scheduler import encoding
from ksim.scheduling.job import EncoderLimits
from ksim.scheduling.scheduler import Rules
from ksim.simulation.features import WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.configs import LimitMmPerPrompt
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Shard
from ksim.workload.replay import Workload

__all__ = ["FEATURE", "Vision", "prepare", "vision_of"]


#: Settings that only a model with an encoder has.
OF_IMAGES = ("limit_mm_per_prompt", "mm_processor_kwargs", "disable_chunked_mm_input", "language_model_only")


@frozen
class Vision:
    """The encoder of a model, as an engine with complete `settings` runs it."""

    model: FurtherModel
    processor: Processor
    settings: EngineSettings

    @property
    def shard(self) -> Shard:
        """What a rank has of it: a share of each layer, or all of it where ranks share the images."""
        shares = self.settings.mm_encoder_tp_mode == "data" and self.processor.shares_images
        return Shard(tensor=1 if shares else self.settings.tensor_parallel_size)

    @property
    def ways(self) -> int:
        """Among how many ranks images are dealt."""
        return self.settings.tensor_parallel_size // self.shard.tensor

    @property
    def limits(self) -> EncoderLimits:
        """The encoder's budget of a step and its cache (vLLM, v1/core/encoder_cache_manager.py,
        `compute_mm_encoder_budget`); raises ConfigError for what vLLM refuses."""
        limit, tokens, most = _limit(self.settings), self.settings.max_num_batched_tokens, self.most_embeds
        assert tokens, "complete the settings first"
        if self.settings.disable_chunked_mm_input and most > tokens:
            raise ConfigError("serve.disable_chunked_mm_input", f"an item of {most} tokens may come, which is more than"
                                                                f" max_num_batched_tokens = {tokens}; raise it, or"
                                                                " limit items by limit_mm_per_prompt or"
                                                                " mm_processor_kwargs")
        budget = max(tokens, most)
        return EncoderLimits(budget, budget, limit.image, not self.settings.disable_chunked_mm_input)

    @property
    def most_embeds(self) -> int:
        """The embeddings of the largest image, or of the longest video, that a prompt may have."""
        return max(self.largest.embeds if _limit(self.settings).image else 0, self._video)

    @property
    def _video(self) -> int:
        longest = self.settings.max_model_len
        assert longest, "complete the settings first"
        return self.processor.video_embeds(longest) if _limit(self.settings).video else 0

    @property
    def largest(self) -> Patches:
        """What the encoder computes of the largest image."""
        return self.processor.patches(*self.processor.largest())

    @property
    def weights(self) -> float:
        """Bytes of its weights on one rank; raises ConfigError where ranks cannot share them."""
        try:
            return self.model.weights(self.shard)
        except ConfigError as error:
            advice = ("; set mm_encoder_tp_mode to 'data', which leaves it whole" if self.processor.shares_images
                      else "")
            raise ConfigError("serve.tensor_parallel_size", f"{self.shard.tensor} does not divide the vision encoder of"
                                                            f" {self.model.name} ({error}){advice}") from None

    @property
    def cache(self) -> float:
        """Bytes of the embeddings that are kept, when the cache is full."""
        sizes = self.model.decoder.sizes
        outputs = sum(isinstance(operation, Product) and operation.tensors.results[0] == "sN"
                      for operation in self.model.decoder.head)
        return self.limits.cache * outputs * sizes["N"] * DType.BF16.bytes

    @property
    def activations(self) -> float:
        """Bytes that the encoder needs for as many of the largest items as its budget allows, as vLLM profiles it."""
        image, embeds = self.largest, self.limits.budget // self.most_embeds * self.most_embeds
        share = max(embeds // self.ways, self.most_embeds) / image.embeds
        batch = encoder_batch([image])
        return share * activations(self.model, batch, batch.logits, self.shard)

    def table(self) -> dict[str, float]:
        """What `ksim model` shows of it, as plain keys and values."""
        return {
            "parameters": self.model.parameters(), "weight_bytes": 2.0 * self.model.parameters(),
            "layers": self.model.layers, "image_tokens_256x256": self.processor.tokens(256, 256),
            "image_tokens_1280x720": self.processor.tokens(1280, 720), "largest_image_tokens": self.largest.embeds,
            "largest_item_tokens": self.most_embeds, "encoder_budget_tokens": self.limits.budget,
            "encoder_cache_bytes": self.cache, "activation_bytes": self.activations,
        }

    def batches(self, batch: Batch) -> Sequence[Batch]:
        """What the encoder computes before *batch*: on the rank with the most patches, where images are dealt."""
        if not batch.images:
            return ()
        return (encoder_batch(batch.images if self.ways == 1 else _dealt(batch.images, self.ways)),)


def vision_of(model: Model, settings: EngineSettings) -> Vision | None:
    """The vision encoder that an engine with *settings* runs beside *model*, if it has one.

    Raises ConfigError for settings of images where the model takes none.
    """
    encoder = model.decoder.encoder
    if encoder is None or encoder.images is None:
        for name in _keys_of_images(settings):
            raise ConfigError(f"serve.{name}", f"{model.name} takes no images; leave it out")
        return None
    limit, given = _limit(settings), settings.mm_processor_kwargs
    processor = adjusted(encoder.images, given.given if given else {})
    if settings.language_model_only or not (limit.image or (limit.video and processor.video_embeds(1))):
        return None  # no item may come; some models have no videos anyway
    vision = Vision(_tower(model.name, encoder), processor, settings)
    if processor.keeps_heads and encoder.sizes["K"] % vision.shard.tensor:
        return evolve(vision, model=_tower(model.name, whole_attention(encoder)))
    return vision


def _keys_of_images(settings: EngineSettings) -> Iterator[str]:
    """The keys that are set and that only models with an encoder have."""
    for name in OF_IMAGES:
        value = getattr(settings, name)
        if value and has(type(value)):
            plain = type(value)()
            yield from (f"{name}.{key}" for key in asdict(value) if getattr(value, key) != getattr(plain, key))
        if value:
            yield name


@lru_cache(maxsize=16)
def _named(name: str) -> str:
    return f"{name}, vision"


def _tower(name: str, encoder: Decoder) -> FurtherModel:
    return FurtherModel(_named(name), encoder, prefix="encoder.")


def _limit(settings: EngineSettings) -> LimitMmPerPrompt:
    return settings.limit_mm_per_prompt or LimitMmPerPrompt()


def _dealt(images: Sequence[Patches], ways: int) -> Sequence[Patches]:
    """The images of the rank with the most patches, where each goes to the rank with the fewest, largest first, as in
    vLLM (`get_load_balance_assignment`)."""
    loads: list[list[Patches]] = [[] for _ in range(ways)]
    for image in sorted(images, key=lambda each: -each.tokens):
        min(loads, key=_patches).append(image)
    return max(loads, key=_patches)


def _patches(images: Sequence[Patches]) -> int:
    return sum(image.tokens for image in images)


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


class ImagesFeature(WiredFeature):
    """An engine whose model sees."""

    def check(self, model: Model, serve: EngineSettings, workload: Workload) -> None:
        if vision := vision_of(model, serve):
            _ = vision.limits

    def memory(self, rank: Memory, model: Model, shard: Shard, serve: EngineSettings) -> Memory:
        """With the encoder's: vLLM profiles the largest batch of images, and then the decoder with the embeddings that
        were kept."""
        vision = vision_of(model, serve) if shard.first else None
        if vision is None:
            return rank
        return evolve(rank, weights=rank.weights + vision.weights,
                      activations=max(rank.activations + vision.cache, vision.activations))

    def passes(self, timer: StepTimer, serve: EngineSettings) -> Sequence[Pass]:
        """The encoder's, on the first stage: it runs kernel by kernel, as vLLM launches it by default."""
        vision = vision_of(timer.model, serve)
        if vision is None or not timer.shard.first:
            return []
        return [Pass(timer.beside(vision.model, vision.shard, Graphs(eager=True)), vision.batches, before=True)]

    def remarks(self, model: Model, serve: EngineSettings) -> Iterator[str]:
        if vision_of(model, serve):
            yield "what the host does to images, and their way to the GPU, takes no time here"

    def card(self, model: Model, serve: EngineSettings) -> Mapping[str, Any]:
        vision = vision_of(model, serve)
        return {"vision_encoder": vision.table()} if vision else {}

    def rules(self, deployment: Deployment) -> Sequence[Rules]:
        vision = vision_of(deployment.model, deployment.serve)
        return encoding(vision.limits) if vision else ()

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        return {"encodes": vision_of(pool.deployment.model, pool.deployment.serve) is not None}

    def preparation(self, deployment: Deployment) -> Callable[[Request], Request] | None:
        vision = vision_of(deployment.model, deployment.serve)
        return partial(prepare, processor=vision.processor) if vision else None


FEATURE = ImagesFeature()

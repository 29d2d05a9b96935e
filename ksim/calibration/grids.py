"""The shapes that a sweep measures, by family: grids that depend on no model, and points off them as checks.

To add a family, add a function of its points to `GRIDS`; `ksim.calibration.kernels` has the kernels of a point.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from attrs import frozen

from ksim.calibration.batches import PointBatches
from ksim.calibration.measurements import Points, tagged
from ksim.compute.model import Model
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
COLUMNS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
DEPTHS = (512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 28672)
FP8_ROWS = (1, 4, 16, 32, 64, 128, 192, 320, 512, 1024, 2048, 4096, 8192)
FP8_SIZES = (1024, 2048, 4096, 8192, 16384, 28672)
TOKENS = tuple(2**i for i in range(15))
#: Query heads, KV heads, head dimension.
HEADS = ((32, 8, 128), (64, 8, 128), (16, 4, 128), (8, 1, 128), (40, 8, 128), (32, 32, 128), (16, 8, 256),
         (32, 4, 128), (16, 2, 128), (64, 8, 64))
#: The most cached tokens of a decode batch, and the most new tokens of a prefill.
MOST_CACHED, MOST_NEW = 2**21, 2**15
#: Experts, experts per token, hidden size, size of one expert.
EXPERTS = ((8, 2, 4096, 14336), (16, 4, 4096, 1536), (32, 4, 2880, 2880), (64, 8, 2048, 1536), (128, 8, 2048, 768),
           (128, 8, 4096, 192))
HIDDEN, INTER, VOCABULARIES = (1024, 2048, 4096, 5120, 8192), (768, 3072, 7168, 14336, 28672), (32000, 128256, 151936)
#: Points off the grid, per family of products and per family that only moves memory.
CHECKED, CHECKED_MOVING = 120, 10
#: Rows at which the layers of models are measured.
MODEL_ROWS = (1, 4, 16, 64, 256, 1024, 4096, 8192)


@frozen
class Layers:
    """Shapes of the layers of models, each once."""

    products: tuple[tuple[int, int], ...] = ()
    heads: tuple[tuple[int, int, int], ...] = ()
    experts: tuple[tuple[int, int, int, int], ...] = ()
    hidden: tuple[int, ...] = ()
    inter: tuple[int, ...] = ()
    vocabularies: tuple[int, ...] = ()

    @classmethod
    def of(cls, models: Sequence[Model]) -> "Layers":
        """Return the layers of *models*, each on one GPU."""
        products: list[tuple[int, int]] = []
        for model in models:
            size = model.decoder.sizes
            m, kv, group, d = (size[index] for index in "mKrh")
            products += [(kv * (group + 2) * d, m), (m, kv * group * d), (size["V"], m)]
            products += [] if model.decoder.top_k else [(2 * size["F"], m), (m, size["F"])]
        sizes = [model.decoder.sizes for model in models]
        mixtures = [(model.decoder.sizes, model.decoder.top_k) for model in models if model.decoder.top_k]
        return cls(
            products=tuple(dict.fromkeys(products)),
            heads=tuple({(size["K"] * size["r"], size["K"], size["h"]): None for size in sizes}),
            experts=tuple({(size["E"], top, size["m"], size["f"]): None for size, top in mixtures}),
            hidden=tuple({size["m"]: None for size in sizes}),
            inter=tuple({model.decoder.sizes["F"]: None for model in models if not model.decoder.top_k}),
            vocabularies=tuple({size["V"]: None for size in sizes}),
        )


def gemm(gpu: Gpu, layers: Layers) -> Iterator[Points]:
    """Yield every n and k of the grid, and the layers of models, at every number of rows; also FP8 if *gpu* has it."""
    rng = np.random.default_rng(1)
    yield _table("gemm", "grid", ("m", "n", "k"), [*product(ROWS, COLUMNS, DEPTHS), *_of_layers(layers)])
    yield _table("gemm", "random", ("m", "n", "k"), _products(rng, CHECKED))
    if DType.FP8 in gpu.flops:
        grid = [*product(FP8_ROWS, FP8_SIZES, FP8_SIZES), *_of_layers(layers)]
        yield _table("gemm", "grid", ("m", "n", "k"), grid, "fp8")
        yield _table("gemm", "random", ("m", "n", "k"), _products(rng, CHECKED // 2), "fp8")


def _of_layers(layers: Layers) -> list[tuple[int, ...]]:
    return [(m, n, k) for m in MODEL_ROWS for n, k in layers.products]


def _products(rng: np.random.Generator, count: int) -> list[tuple[int, ...]]:
    sizes = (64 * np.exp(rng.uniform(np.log(10), np.log(400), (count, 2)))).astype(np.int64) // 64 * 64
    rows = np.exp(rng.uniform(0, np.log(8192), count)).astype(np.int64)
    return [(int(m), int(n), int(k)) for m, (n, k) in zip(rows, sizes, strict=True)]


def attention(gpu: Gpu, layers: Layers) -> Iterator[Points]:
    """Yield decodes and prefills of equal sequences, and, as checks, ragged decodes and mixed batches."""
    heads = tuple(dict.fromkeys((*HEADS, *layers.heads)))
    counts, contexts = [2**i for i in range(10)], [64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
    decodes = [(1, length, count) for count in counts for length in contexts if count * length <= MOST_CACHED]
    chunks, before = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], (0, 1024, 4096, 16384)
    prefills = [(new, new + cached, count) for count in (1, 2, 4, 8) for new in chunks for cached in before
                if count * new <= MOST_NEW]
    for tag, batches in (("decode", decodes), ("prefill", prefills)):
        shapes = list(product(heads, batches))
        yield _attention_points(tag, [head for head, _ in shapes],
                                [[(new, length)] * count for _, (new, length, count) in shapes])
    rng = np.random.default_rng(2)
    for tag, made in (("random", _ragged), ("mixed", _mixed)):
        yield _attention_points(tag, [heads[i] for i in rng.integers(len(heads), size=CHECKED // 2)],
                                [made(rng) for _ in range(CHECKED // 2)])


def _ragged(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw decodes after contexts of many lengths."""
    count = int(np.exp(rng.uniform(np.log(2), np.log(257))))
    lengths = np.clip(rng.lognormal(7.0, 1.2, count), 1, 32768).astype(np.int64)
    return [(1, int(length)) for length in lengths]


def _mixed(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw decodes, and one to three chunks of prompts."""
    chunks = [int(new) for new in np.exp(rng.uniform(np.log(32), np.log(4096), rng.integers(1, 4)))]
    cached = [int(length) for length in rng.integers(0, 4096, len(chunks)) * rng.integers(0, 2, len(chunks))]
    return [*_ragged(rng), *((new, new + before) for new, before in zip(chunks, cached, strict=True))]


def moe(gpu: Gpu, layers: Layers) -> Iterator[Points]:
    """Yield expert layers whose experts are chosen evenly (`skew` 0), or by a Zipf law with exponent `skew`."""
    shapes = tuple(dict.fromkeys((*EXPERTS, *layers.experts)))
    names = ("t", "e", "topk", "h", "inter", "skew")
    grid = [(tokens, *shape, skew) for skew in (0.0, 1.0) for shape in shapes for tokens in TOKENS[:14]]
    yield _table("moe", "grid", names, grid)
    rng = np.random.default_rng(3)
    tokens = np.exp(rng.uniform(0, np.log(8192), CHECKED // 4)).astype(np.int64)
    yield _table("moe", "random", names,
                 [(int(t), *shapes[rng.integers(len(shapes))], float(rng.choice((0.3, 0.6)))) for t in tokens])


def _moving(family: str, names: Sequence[str], shapes: Callable[[Layers], Sequence[tuple[int, ...]]],
            tokens: Sequence[int] = TOKENS, dtype: str = "bf16") -> Callable[[Gpu, Layers], Iterator[Points]]:
    """Return the grid of a family that moves the numbers of tokens: each shape for every number of tokens."""
    def points(gpu: Gpu, layers: Layers) -> Iterator[Points]:
        known = tuple(dict.fromkeys(shapes(layers)))
        yield _table(family, "grid", ("t", *names), [(t, *shape) for shape in known for t in tokens], dtype)
        rng = np.random.default_rng(4)
        off = np.exp(rng.uniform(0, np.log(max(tokens)), CHECKED_MOVING)).astype(np.int64)
        yield _table(family, "random", ("t", *names), [(int(t), *known[rng.integers(len(known))]) for t in off], dtype)
    return points


def quantize(gpu: Gpu, layers: Layers) -> Iterator[Points]:
    """Yield quantisation of activations to FP8, with a scale per token, if *gpu* computes in FP8."""
    if DType.FP8 in gpu.flops:
        yield from _moving("quantize", ("h",), _hidden, dtype="fp8")(gpu, layers)


def copy(gpu: Gpu, layers: Layers) -> Iterator[Points]:
    yield _table("copy", "grid", ("bytes",), [(2**i,) for i in range(12, 31)])


def _hidden(layers: Layers) -> list[tuple[int, ...]]:
    return [(h,) for h in (*HIDDEN, *layers.hidden)]


def _table(family: str, tag: str, names: Sequence[str], rows: Sequence[Sequence[float]], dtype: str = "bf16") -> Points:
    """Return points of one tag, each shape once."""
    columns = zip(*dict.fromkeys(map(tuple, rows)), strict=True)
    made = {name: np.array(column, dtype=np.float64 if name == "skew" else np.int64)
            for name, column in zip(names, columns, strict=True)}
    return Points(family=family, dtype=dtype, columns=made, tags=tagged(tag, len(made[names[0]])))


def _attention_points(tag: str, heads: Sequence[tuple[int, ...]],
                      batches: Sequence[Sequence[tuple[int, int]]]) -> Points:
    columns = dict(zip(("hq", "hkv", "d"), np.array(heads, dtype=np.int64).T, strict=True))
    return Points(family="attention", dtype="bf16", columns=columns, tags=tagged(tag, len(heads)),
                  batches=PointBatches.of(*batches))


GRIDS: Mapping[str, Callable[[Gpu, Layers], Iterator[Points]]] = {
    "gemm": gemm,
    "attention": attention,
    "moe": moe,
    "rms_norm": _moving("rms_norm", ("h",), _hidden),
    "fused_add_rms_norm": _moving("fused_add_rms_norm", ("h",), _hidden),
    "silu_mul": _moving("silu_mul", ("inter",), lambda layers: [(f,) for f in (*INTER, *layers.inter)]),
    "rope": _moving("rope", ("hq", "hkv", "d"), lambda layers: [*HEADS[:4], *layers.heads]),
    "kv_write": _moving("kv_write", ("hkv", "d"), lambda layers: [shape[1:] for shape in (*HEADS[:4], *layers.heads)]),
    "argmax": _moving("argmax", ("vocab",), lambda layers: [(v,) for v in (*VOCABULARIES, *layers.vocabularies)],
                      (1, 4, 8, 32, 128, 256, 512)),
    "quantize": quantize,
    "copy": copy,
}

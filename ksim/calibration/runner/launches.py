"""TODO"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

import numpy as np

from ksim.calibration.measurements import Ints
from ksim.calibration.runner.device import Launch, Point, Toolbox, Unmeasurable

#: Tokens in a block of the KV cache, and the epsilon of norms: neither changes the time.
BLOCK, EPSILON = 16, 1e-6


def gemm(tools: Toolbox, point: Point, copies: int) -> Launch:
    """cuBLAS, as `torch.nn.functional.linear`; in FP8 vLLM's CUTLASS kernel with a scale a token and a column."""
    torch, (m, n, k) = tools.torch, (point["m"], point["n"], point["k"])
    inputs, weights = tools.filled(copies, m, k), tools.filled(copies, n, k)
    if point.dtype == "bf16":
        outputs = tools.filled(copies, m, n)
        return lambda i: torch.mm(inputs[i % copies], weights[i % copies].t(), out=outputs[i % copies])
    if point.dtype != "fp8":
        raise Unmeasurable(f"no product in {point.dtype} is known to the runner")
    scaled_mm = tools.ops.cutlass_scaled_mm
    inputs, weights = ([tensor.to(torch.float8_e4m3fn) for tensor in tensors] for tensors in (inputs, weights))
    rows, columns = (torch.ones(size, 1, device=tools.place, dtype=torch.float32) for size in (m, n))
    return lambda i: scaled_mm(inputs[i % copies], weights[i % copies].t(), rows, columns, torch.bfloat16)


def attention(tools: Toolbox, point: Point, copies: int) -> Launch:
    """FlashAttention over a paged KV cache whose blocks lie in any order, as vLLM calls it."""
    function = tools.vllm("vllm.vllm_flash_attn", "flash_attn_varlen_func")
    torch, heads, size = tools.torch, point["hq"], point["d"]
    blocks = [ceil(length / BLOCK) for length in point.kvlens]
    order = torch.randperm(sum(blocks), device=tools.place, dtype=torch.int32)
    table = torch.zeros(len(blocks), max(blocks), device=tools.place, dtype=torch.int32)
    for row, start, count in zip(table, np.cumsum([0, *blocks]), blocks, strict=False):
        row[:count] = order[start:start + count]
    queries = tools.filled(copies, int(point.qlens.sum()), heads, size)
    outputs = tools.filled(copies, int(point.qlens.sum()), heads, size)
    caches = tools.filled(copies, 2, sum(blocks), BLOCK, point["hkv"], size)
    fixed = {
        "cu_seqlens_q": tools.whole(np.cumsum([0, *point.qlens]), torch.int32),
        "seqused_k": tools.whole(point.kvlens, torch.int32), "block_table": table,
        "max_seqlen_q": int(point.qlens.max()), "max_seqlen_k": int(point.kvlens.max()),
        "softmax_scale": size**-0.5, "causal": True, "fa_version": tools.flash_attention,
    }

    def launch(i: int) -> None:
        keys, values = caches[i % copies].unbind(0)
        function(q=queries[i % copies], k=keys, v=values, out=outputs[i % copies], **fixed)

    return launch


def moe(tools: Toolbox, point: Point, copies: int) -> Launch:
    """vLLM's fused experts in Triton: gate and up, SiLU, down, and combining."""
    function = tools.vllm("vllm.model_executor.layers.fused_moe", "fused_experts")
    torch, (tokens, experts, hidden, inter) = tools.torch, (point["t"], point["e"], point["h"], point["inter"])
    inputs = tools.filled(copies, tokens, hidden)
    up, down = tools.filled(copies, experts, 2 * inter, hidden), tools.filled(copies, experts, hidden, inter)
    ids = tools.whole(chosen(point), torch.int32)
    weights = torch.full(ids.shape, 1 / point["topk"], device=tools.place, dtype=torch.float32)
    return lambda i: function(inputs[i % copies], up[i % copies], down[i % copies], weights, ids)


def rms_norm(tools: Toolbox, point: Point, copies: int) -> Launch:
    inputs, outputs = (tools.filled(copies, point["t"], point["h"]) for _ in range(2))
    (scale,), function = tools.filled(1, point["h"]), tools.ops.rms_norm
    return lambda i: function(outputs[i % copies], inputs[i % copies], scale, EPSILON)


def fused_add_rms_norm(tools: Toolbox, point: Point, copies: int) -> Launch:
    inputs, residuals = (tools.filled(copies, point["t"], point["h"]) for _ in range(2))
    (scale,), function = tools.filled(1, point["h"]), tools.ops.fused_add_rms_norm
    return lambda i: function(inputs[i % copies], residuals[i % copies], scale, EPSILON)


def silu_mul(tools: Toolbox, point: Point, copies: int) -> Launch:
    inputs = tools.filled(copies, point["t"], 2 * point["inter"])
    outputs = tools.filled(copies, point["t"], point["inter"])
    function = tools.op("_C", "silu_and_mul")
    return lambda i: function(outputs[i % copies], inputs[i % copies])


def rope(tools: Toolbox, point: Point, copies: int) -> Launch:
    torch, tokens, size = tools.torch, point["t"], point["d"]
    queries = tools.filled(copies, tokens, point["hq"] * size)
    keys = tools.filled(copies, tokens, point["hkv"] * size)
    (angles,), function = tools.filled(1, max(tokens, 8192), size), tools.ops.rotary_embedding
    positions = torch.arange(tokens, device=tools.place)
    return lambda i: function(positions, queries[i % copies], keys[i % copies], size, angles, True)


def kv_write(tools: Toolbox, point: Point, copies: int) -> Launch:
    """Keys and values of some tokens into slots of a paged cache in any order."""
    torch, tokens, shape = tools.torch, point["t"], (point["hkv"], point["d"])
    blocks = ceil(tokens / BLOCK)
    keys, values = (tools.filled(copies, tokens, *shape) for _ in range(2))
    caches = tools.filled(copies, 2, blocks, BLOCK, *shape)
    slots = torch.randperm(blocks * BLOCK, device=tools.place)[:tokens]
    one = torch.ones(1, device=tools.place, dtype=torch.float32)
    function = tools.ops.reshape_and_cache_flash

    def launch(i: int) -> None:
        into = caches[i % copies].unbind(0)
        function(keys[i % copies], values[i % copies], *into, slots, "auto", one, one)

    return launch


def argmax(tools: Toolbox, point: Point, copies: int) -> Launch:
    logits = [tensor.float() for tensor in tools.filled(copies, point["t"], point["vocab"])]
    return lambda i: logits[i % copies].argmax(dim=-1)


def quantize(tools: Toolbox, point: Point, copies: int) -> Launch:
    """To FP8 with a scale for each token."""
    inputs, function = tools.filled(copies, point["t"], point["h"]), tools.ops.scaled_fp8_quant
    return lambda i: function(inputs[i % copies], use_per_token_if_dynamic=True)


def copy(tools: Toolbox, point: Point, copies: int) -> Launch:
    torch, size = tools.torch, point["bytes"]
    pairs = [torch.zeros(2, size, device=tools.place, dtype=torch.uint8) for _ in range(copies)]
    return lambda i: pairs[i % copies][0].copy_(pairs[i % copies][1])


#: Families that can be measured.  A launch may return something; it is dropped.
LAUNCHES: Mapping[str, Callable[[Toolbox, Point, int], Callable[[int], Any]]] = {
    function.__name__: function for function in (
        gemm, attention, moe, rms_norm, fused_add_rms_norm, silu_mul, rope, kv_write, argmax, quantize, copy)}


def chosen(point: Point) -> Ints:
    """For each of `t` tokens the `topk` different ones of `e` experts it goes to, the same at every call.

    Experts are popular by a Zipf law whose exponent is `skew`; 0 makes them equal.
    """
    rng = np.random.default_rng(0)
    experts = point["e"]
    popularity = -float(point.shape.get("skew", 0.0)) * np.log(np.arange(1, experts + 1))
    # The largest of logarithms of weights plus Gumbel noise are a sample without replacement.
    noise = rng.gumbel(size=(point["t"], experts)) + rng.permutation(popularity)
    return np.argpartition(-noise, point["topk"] - 1, axis=1)[:, :point["topk"]].astype(np.int64)


def loads(point: Point) -> Ints:
    """How many tokens each expert gets."""
    return np.bincount(chosen(point).ravel(), minlength=point["e"]).astype(np.int64)

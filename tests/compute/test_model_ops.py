"""Operations: parameters, weights on a rank, what is launched, and what is refused."""


import pytest

from ksim.compute.expert_rows import expert_rows
from ksim.compute.graph import Collective, Op
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import Gemm, GroupedGemm, Pointwise
from ksim.compute.model import Decoder, Model
from ksim.compute.model_ops import Lookup, attend, communicate, op, pointwise
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.shard import Precision, Shard

#: Llama 3.1 8B's sizes and 8 experts of 512, in a step of 100 tokens, 10 sampled, 2 experts each.
SPREAD = expert_rows(100, 2, 8)
SIZES = Sizes({"m": 4096, "K": 8, "r": 4, "i": 6, "h": 128, "F": 14336, "g": 2, "V": 128256,
               "E": 8, "f": 512, "t": 100, "T": 100, "s": 10, "x": 200, "top_k": 2}, SPREAD)
WHOLE, HALF = Shard(), Shard(tensor=2)
FP8 = Shard(precision=Precision(DType.FP8, DType.FP8, DType.FP8))


def launched(operation, shard=WHOLE):
    return {launch.label: launch.kernel for launch in operation.lower(SIZES, shard)}


def test_an_einsum_is_a_gemm():
    qkv = op("tm,miKh->tiKh", "qkv", parallel="K")
    assert qkv.parameters(SIZES) == 25_165_824  # 4096 x (32 + 2 x 8) x 128
    assert launched(qkv) == {"qkv": Gemm(100, 6144, 4096)}
    assert launched(qkv, HALF) == {"qkv": Gemm(100, 3072, 4096)}
    assert qkv.weights(SIZES, HALF) == 25_165_824  # half of them, 2 bytes each


def test_a_contracted_parallel_index_is_followed_by_an_all_reduce():
    """Each of 2 ranks has half of the heads, and the result of 100 x 4096 numbers in BF16 is summed."""
    o_proj = op("tKrh,Krhm->tm", "o_proj", parallel="K")
    assert launched(o_proj) == {"o_proj": Gemm(100, 4096, 4096)}
    assert launched(o_proj, HALF) == {
        "o_proj": Gemm(100, 4096, 2048), "o_proj_all_reduce": Collective("all_reduce", 819_200, "tensor")}


def test_biases_are_parameters_of_the_result():
    assert op("tm,miKh->tiKh", "qkv", bias=True).parameters(SIZES) == 25_165_824 + 6144
    assert op("tKrh,Krhm->tm", "o_proj", bias=True).parameters(SIZES) == 16_777_216 + 4096
    assert op("Tm,Emgf->xgf", "experts", routed="E", bias=True).parameters(SIZES) == 8 * 1024 * 4096 + 8 * 1024


def test_experts_gather_tokens_and_are_summed_by_an_operation_of_their_own():
    """100 tokens go to 2 of 8 experts each: 25 rows an expert, and 100 different ones to read."""
    gate_up = op("Tm,Emgf->xgf", "gate_up", parallel="f", routed="E")
    down = op("xf,Efm->xm", "down", parallel="f", routed="E")
    assert gate_up.parameters(SIZES) == 33_554_432  # 8 x 4096 x 2 x 512
    assert launched(gate_up) == {"gate_up": GroupedGemm(SPREAD, 1024, 4096, 100, inputs=100)}
    assert launched(down) == {"down": GroupedGemm(SPREAD, 4096, 512, 100, inputs=200)}
    assert launched(down, HALF) == {"down": GroupedGemm(SPREAD, 4096, 256, 100, inputs=200)}


def test_fp8_activations_are_quantized_before_the_product():
    """100 x 4096 numbers come in BF16 and leave in FP8."""
    assert launched(op("tm,mgF->tgF", "gate_up"), FP8) == {
        "gate_up_quantize": Pointwise("quantize", 819_200, 409_600, 409_600, 100),
        "gate_up": Gemm(100, 28672, 4096, DType.FP8, DType.FP8)}


def test_tokens_are_quantized_once_however_many_experts_they_go_to():
    assert launched(op("Tm,Emgf->xgf", "gate_up", routed="E"), FP8)["gate_up_quantize"].read_bytes == 819_200


def test_weights_alone_in_fp8_need_no_quantizing():
    shard = Shard(precision=Precision(weights=DType.FP8))
    gate_up = op("tm,mgF->tgF", "gate_up")
    assert launched(gate_up, shard) == {"gate_up": Gemm(100, 28672, 4096, DType.FP8, DType.BF16)}
    assert gate_up.weights(SIZES, shard) == 28672 * 4096


def test_what_is_not_quantized_stays_in_bf16():
    lm_head = op("sm,mV->sV", "lm_head", parallel="V", quantized=False)
    assert launched(lm_head, FP8) == {"lm_head": Gemm(10, 128256, 4096)}
    assert lm_head.weights(SIZES, FP8) == 2 * 128256 * 4096


def test_no_rows_no_launch():
    sizes = Sizes({**SIZES.of, "s": 0})
    assert not list(op("sm,mV->sV", "lm_head").lower(sizes, WHOLE))
    assert not list(pointwise("argmax", "sV->s", "sample").lower(sizes, WHOLE))
    assert not list(communicate("all_gather", "sV", "gather").lower(sizes, HALF))


def test_a_map_reads_and_writes():
    """Gate and up of 100 tokens come in, their product goes out: 100 x 14336 x 2 bytes each."""
    act = pointwise("silu_mul", "tgF->tF", "act", parallel="F")
    assert launched(act) == {"act": Pointwise("silu_mul", 5_734_400, 2_867_200, 2_867_200, 100)}
    assert launched(act, HALF) == {"act": Pointwise("silu_mul", 2_867_200, 1_433_600, 1_433_600, 100)}


def test_a_scale_is_weights_that_are_read_too():
    norm = pointwise("fused_add_rms_norm", "tm,tm->tm,tm", "norm", scale="m")
    assert norm.parameters(SIZES) == 4096
    assert norm.weights(SIZES, HALF) == 8192  # every rank has all of them
    assert launched(norm) == {"norm": Pointwise("fused_add_rms_norm", 1_638_400 + 8192, 1_638_400, 819_200, 100)}


def test_the_cache_is_written_in_its_own_format():
    write = pointwise("kv_write", "tKh,tKh->tKh,tKh", "kv_write", parallel="K", writes="cache")
    assert launched(write, WHOLE)["kv_write"].write_bytes == 409_600
    assert launched(write, FP8)["kv_write"].write_bytes == 204_800


def test_an_embedding_shared_out_is_summed():
    embedding = Lookup("Vm->tm", "embedding", parallel="V")
    assert embedding.parameters(SIZES) == 525_336_576
    assert launched(embedding) == {"embedding": Pointwise("embedding", 819_200, 819_200, 0.0, 100, 819_200)}
    assert launched(embedding, HALF)["embedding_all_reduce"] == Collective("all_reduce", 819_200, "tensor")


def test_attention_waits_for_its_batch():
    attention = attend(window=4096)
    assert launched(attention, HALF) == {"attention": AttentionLayer(16, 4, 128, 4096)}
    assert attention.parameters(SIZES) == attention.weights(SIZES, WHOLE) == 0


def test_a_collective_that_no_einsum_implies():
    gather = communicate("all_gather", "sV", "logits_gather")
    assert launched(gather) == {}
    assert launched(gather, HALF) == {"logits_gather": Collective("all_gather", 2_565_120, "tensor")}


@pytest.mark.parametrize("equation, settings, problem", [
    ("tm,mF->tG", {}, "index 'G' of the result is in no input"),
    ("tm,mgF->tF", {}, "index 'g' is in one input only and not in the result"),
    ("tKh,Khm->tKm", {}, "index 'K' is in both inputs and in the result"),
    ("tm,mF->tF", {"parallel": "K"}, "parallel index 'K' is not one of the weights"),
    ("tm,Emf->xf", {}, "index 'x' of the result is in no input"),
])
def test_equations_that_make_no_sense(equation, settings, problem):
    with pytest.raises(ValueError) as error:
        op(equation, "bad", **settings)
    assert str(error.value) == f"{equation!r}: {problem}"


@pytest.mark.parametrize("make, equation, problem", [
    (op, "tm->tF", "expected 2 operands"), (op, "tm,mF", "expected one arrow"), (op, "tm, mF -> tF", "' ' is no index"),
    (lambda e, label: pointwise("norm", e, label), "tm", "expected one arrow"),
    (Lookup, "V,m->tm", "expected 1 operand"),
])
def test_equations_that_are_none(make, equation, problem):
    with pytest.raises(ValueError, match=f"'{equation}': {problem}"):
        make(equation, "bad")


def test_a_plug_in_may_bring_operations_of_its_own():
    """One that has no weights, and one that reads the sizes of its rank as in earlier releases."""
    class Own:
        label, parallel = "own", "F"

        def parameters(self, sizes):
            return sizes.volume("mF")

        def weights(self, sizes, shard):
            return 2 * sizes.on(self.parallel, shard).volume("mF")

        def lower(self, sizes, shard):
            yield Op(self.label, Gemm(sizes.of["t"], sizes.on(self.parallel, shard).of["F"], sizes.of["m"]))

    own = Own()
    decoder = Decoder(SIZES.of, (), ((own,),), (), 100)
    model = Model("own", decoder)
    assert model.parameters() == 4096 * 14336 and model.weights(HALF) == 4096 * 14336
    assert [op.kernel for op in model.body(100, HALF)[1].ops] == [Gemm(100, 7168, 4096)]

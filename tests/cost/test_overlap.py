"""Products beside their sums: what both lanes take, from the spans that they are made of."""

from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective, Op
from ksim.compute.kernels.basic import BatchedGemm, Gemm
from ksim.cost.pricer import Overlap, Pricer, Summed, left, overlapped, paired
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.foundation.errors import ConfigError
from ksim.network.collectives.all_reduces import Ring
from ksim.network.links import NCCL, Protocol
from ksim.network.network import Network
from ksim.oracles.roofline import Roofline
from ksim.oracles.waves import Waves
from ksim.scenario.hardware import gpu_of
from ksim.specs.hardware import Link, System, Timing
from tests.cost.toys import ALL, TOY, network
from tests.properties import examples

A100 = gpu_of("a100-80g")
WIRED = network("hgx-a100", *ALL)
WIRED.channel = A100.channel


def pricer(ranks: int = 8, oracle=None, gpu=A100, wired=WIRED) -> Pricer:
    return Pricer(gpu, oracle or Waves(), wired, {"tensor": range(ranks)})


def summed(m: int, n: int = 8192, k: int = 1024) -> Summed:
    product = Gemm(m, n, k)
    return Summed("o_proj", product, "o_proj_all_reduce", Collective("all_reduce", product.work.writes, "tensor"))


def costs(price: Pricer, one: Summed, overlap: Overlap) -> list[KernelCost]:
    return [launch.cost for launch in overlapped(price, one, overlap)]


def lanes(spans):
    """The seconds from start to end of each product, and of each collective."""
    return [[span.lasts for span in spans if bool(span.group) is group] for group in (False, True)]


sizes = st.builds(summed, st.integers(1, 9000), st.sampled_from([64, 1024, 8192]), st.sampled_from([64, 1024, 8192]))
overlaps = st.builds(Overlap, st.integers(1, 6), st.integers(1, 107))
pricers = st.builds(pricer, st.sampled_from([2, 4, 8]), st.sampled_from([Waves(), Roofline()]))


@given(st.integers(1, 5000), overlaps)
def test_pieces_are_all_rows_and_as_even_as_can_be(rows, overlap):
    pieces = overlap.pieces(rows)
    assert sum(pieces) == rows and len(pieces) <= overlap.stages and max(pieces) - min(pieces) <= 1
    assert len(pieces) == 1 or min(pieces) >= 16


@given(sizes, overlaps, pricers)
@examples(100)
def test_each_sum_runs_beside_the_next_product(one, overlap, price):
    """Neither lane is faster than alone, and both together not slower than one after the other."""
    spans = costs(price, one, overlap)
    products, sums = lanes(spans)
    seconds = sum(span.seconds for span in spans)
    beside = sum(max(product, message) for product, message in zip(products[1:], sums, strict=False))
    assert seconds == pytest.approx(products[0] + beside + sums[-1])
    assert max(sum(products), sum(sums)) <= seconds * (1 + 1e-9) and seconds <= sum(products) + sum(sums)
    for span, following in pairwise(spans):
        assert not span.hidden or span.hidden <= following.seconds


@given(sizes, overlaps, pricers)
@examples(50)
def test_no_work_is_lost(one, overlap, price):
    """The FLOP and the message are the product's own; weights are read for each piece."""
    launches, whole = overlapped(price, one, overlap), price.kernel("whole", one.product)
    spans = [launch.cost for launch in launches]
    assert sum(span.flops for span in spans) == pytest.approx(whole.flops)
    assert sum(span.bytes for span in spans) >= whole.bytes * (1 - 1e-9)
    assert sum(launch.kernel.bytes for launch in launches if launch.cost.group) == pytest.approx(one.message.bytes)
    power = price.gpu.power
    least = whole.flops * power.flop[one.product.activations] + whole.bytes * power.hbm
    total = StepCost.of([PricedBlock.of(spans)])
    assert total.joules == pytest.approx(sum(span.joules for span in spans)) and total.joules > least


@given(sizes, st.integers(2, 6), st.integers(1, 106), st.integers(1, 106), pricers)
@examples(100)
def test_more_sms_make_no_sum_slower_and_no_product_faster(one, stages, some, more, price):
    few, many = (lanes(costs(price, one, Overlap(stages, sms))) for sms in sorted((some, more)))
    if len(one_stage := few[0]) > 1:
        assert all(a <= b * (1 + 1e-9) for a, b in zip(one_stage, many[0], strict=True))
        assert all(a >= b for a, b in zip(few[1], many[1], strict=True))


@given(sizes, st.integers(1, 107), pricers)
@examples(30)
def test_one_stage_is_no_overlap(one, sms, price):
    plain = price.kernels([("o_proj", one.product), ("o_proj_all_reduce", one.message)])
    assert costs(price, one, Overlap(1, sms)) == plain


def test_too_few_rows_to_cut_are_left_whole():
    """31 rows are less than two of the 16 that tensor cores take at a time."""
    assert len(costs(pricer(), summed(31), Overlap(4, 8))) == 2
    assert len(costs(pricer(), summed(32), Overlap(4, 8))) == 4


#: What only memory bounds.
FAST = {"bandwidth": 4e9, "flops": {"bf16": 4e15}}


def pair(rate: float = 0.25e9, **changes) -> Pricer:
    """Two GPUs on links of 1 GB/s each, of which an SM fills *rate*; their messages start at once."""
    system = System("toy", "toy", 2, "nvlink", Link(1e9))
    at_once = {protocol.name: Protocol(protocol.name, {"nvlink": Timing(0.0, 1.0)}) for protocol in NCCL}
    wired = Network(system, {"ring": Ring()}, at_once, channel=rate)
    return pricer(2, Roofline(), evolve(TOY, **changes), wired)


def test_a_collective_is_as_fast_as_its_sms_until_its_links_are_full():
    """Two GPUs swap half of it twice."""
    message = Collective("all_reduce", 1e9, "tensor")
    assert [pair().collective("sum", evolve(message, sms=sms)).seconds for sms in (1, 2, 4, 100, 0)] == pytest.approx(
        [4, 2, 1, 1, 1])


def test_kernels_with_thread_blocks_of_their_own_number_are_no_way():
    """vLLM's, and what the switch adds."""
    message = Collective("all_reduce", 2**20, "tensor")
    assert WIRED.route(message, range(8)).algorithm == "two_shot"
    assert WIRED.route(evolve(message, sms=8), range(8)).algorithm == "ring"
    alone = network("hgx-a100", "direct", "two_shot")
    alone.channel = 20e9
    with pytest.raises(ConfigError, match="over these links on 8 SMs; 'ring' does"):
        alone.route(evolve(message, sms=8), range(8))


def test_what_both_move_of_memory_they_share():
    """A product that memory bounds takes as long beside a sum as moving all that both move: here the sum ends first."""
    price, one = pair(**FAST), Summed("a", Gemm(64, 16, 4096), "b", Collective("all_reduce", 2048.0, "tensor"))
    first, hidden, second, last = costs(price, one, Overlap(2, 1))
    work = Gemm(32, 16, 4096).work
    assert first.bound == "memory" and first.seconds == pytest.approx(work.bytes / 4e9)
    assert second.seconds == pytest.approx((work.bytes + 2 * 1024) / 4e9)  # what is sent is read, and written by others
    assert hidden.hidden == pytest.approx(1024 / 0.25e9) == last.seconds < second.seconds
    assert hidden.seconds == hidden.low == hidden.high == 0


def test_beside_a_sum_that_goes_on_the_product_never_has_all_the_bandwidth():
    price, one = pair(**FAST), Summed("a", Gemm(64, 16, 64), "b", Collective("all_reduce", 2048.0, "tensor"))
    _, hidden, message, _ = costs(price, one, Overlap(2, 1))
    assert message.group and hidden.hidden == pytest.approx(Gemm(32, 16, 64).work.bytes / (4e9 - 0.5e9))


def test_sms_that_send_draw_their_share_of_power_and_so_do_those_that_compute():
    price = pair(power=evolve(TOY.power, busy=8.0, flop={}, hbm=0.0, link=0.0))
    spans = costs(evolve(price, gpu=evolve(price.gpu, bandwidth=1e15)), summed(64), Overlap(2, 1))
    assert [span.joules for span in spans] == pytest.approx(
        [(2.0 if span.group else 6.0) * span.lasts for span in spans])
    assert {(span.sms, bool(span.group)) for span in spans} == {(3, False), (1, True)}


def test_what_is_left_of_a_gpu():
    rest = left(A100, 27, 0.5e12)
    assert (rest.name, rest.sms, rest.bandwidth) == (A100.name, 81, A100.bandwidth - 0.5e12)
    assert all(rest.flops[dtype] == pytest.approx(0.75 * flops) for dtype, flops in A100.flops.items())


@pytest.mark.parametrize("sms", [108, 200])
def test_a_collective_cannot_have_all_sms(sms):
    with pytest.raises(ConfigError, match=f"overlap_sms: {sms} leaves nothing .* A100 SXM 80 GB has 108 SMs; set it to"
                                          f" 107 or less"):
        overlapped(pricer(), summed(64), Overlap(2, sms))


def test_a_collective_cannot_have_all_bandwidth():
    with pytest.raises(ConfigError, match="takes all the bandwidth of toy's memory"):
        overlapped(pair(rate=1e9), summed(64), Overlap(2, 1))


def test_nobody_guesses_what_an_sm_sends():
    with pytest.raises(ConfigError, match="give its file a `channel`"):
        overlapped(pair(rate=None), summed(64), Overlap(2, 1))


def test_products_are_paired_with_what_adds_up_their_results():
    gemm, batched = Op("a", Gemm(64, 8, 16)), Op("b", BatchedGemm(2, 64, 8, 16))
    own, other, gather, scatter = (Op("sum", Collective(kind, size, "tensor")) for kind, size in (
        ("all_reduce", 1024.0), ("all_reduce", 1025.0), ("all_gather", 1024.0), ("reduce_scatter", 2048.0)))
    ops = [own, gemm, gemm, own, own, gemm, other, gemm, gather, batched, scatter, batched]
    found = list(paired(ops, Overlap(2, 1)))
    assert found == [own, gemm, Summed("a", gemm.kernel, "sum", own.kernel), own, gemm, other, gemm, gather,
                     Summed("b", batched.kernel, "sum", scatter.kernel), batched]
    assert list(paired(ops, Overlap(1, 1))) == ops
    assert list(paired([], Overlap(2, 1))) == []

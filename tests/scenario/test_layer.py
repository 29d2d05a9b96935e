"""Layers of a user's own: the kernels of ksim's models, priced as its engines price them, and what is refused."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim import Layer, PowerSettings, communicate, op, ring, ulysses
from ksim.compute.graph import bind
from ksim.flow.batch import Batch
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.scenario.defaults import Deployment
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.specs.shard import Shard
from tests.properties import examples
from tests.scenario.layers import ATTEND, LLAMA, SIZES
from tests.scenario.tables import TABLE


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize("new, context", [(4096, 0), (512, 1000), (1, 2047)])
def test_a_llama_layer_in_einsums_has_the_kernels_of_the_catalogues_llama(tensor, new, context):
    """One sequence in one layer: the same shapes, FLOP, bytes and messages, one after the other."""
    block = model_of("llama-3.1-8b").graph(new, 1, Shard(tensor=tensor)).blocks[1]
    ours = [(op.label, bind(op.kernel, Batch.of((new, context)))) for op in block.ops]
    written = LLAMA.with_sizes(s=new, z=new + context).tasks(tensor=tensor)
    assert [(task.label, task.kernel) for task in written] == ours


def test_a_layer_is_priced_as_an_engine_prices_it():
    """The spans of a step: by the same oracle, network and power."""
    scenario = Scenario.of({**TABLE, "model": "llama-3.1-8b", "gpu": "a100-80g", "serve": {"tensor_parallel_size": 8}})
    timeline, = (timer.step_cost(Batch.of((4096, 0))) for timer in Deployment.of(scenario).timers())
    step = {span.label: span for span, _ in timeline.counted()}
    priced = LLAMA.on("a100-80g", tensor=8)
    for row in priced.rows:
        assert row.cost == step[row.label]


def test_a_row_costs_its_actions_and_idle_power_for_its_time():
    priced = LLAMA.on("a100-80g", tensor=8)
    for row in priced.rows:
        assert row.joules == pytest.approx(row.cost.joules + 70.0 * row.seconds)
    assert priced.joules == pytest.approx(sum(row.joules for row in priced.rows))
    assert (priced.all_joules, priced.all_flops) == (8 * priced.joules, 8 * priced.flops)
    assert priced.watts == priced.joules / priced.seconds


def test_ranks_of_a_group_are_neighbours_from_the_innermost():
    """Tensor groups on one node of eight GPUs: expert groups span both nodes, over the network."""
    dispatch = Layer([communicate("all_reduce", "bsm"), communicate("all_reduce", "bsm", "expert")], SIZES)
    near, far = dispatch.on("h200", nodes=2, tensor=8, expert=2, oracle="waves").rows
    assert far.seconds > near.seconds


def test_ulysses_sends_all_but_its_own_part_of_queries_keys_values_and_outputs():
    """Of each tensor, a rank keeps one of 4 parts of its share: 8 and 2 KV heads, 32 query heads of 128."""
    priced = Layer([ulysses(ATTEND)], SIZES).on("h200", tensor=2, context=4, oracle="waves")
    queries, keys = 4096 * 32 * 128 * 2 / 8, 4096 * 8 * 128 * 2 / 8
    assert priced.sent == pytest.approx(3 / 4 * (2 * queries + 2 * keys))


@given(st.sampled_from([2, 4, 8]), st.booleans())
@examples(6)
def test_a_ring_sends_the_keys_and_values_of_all_but_the_last(ranks, overlap):
    priced = Layer([ring(ATTEND, overlap=overlap)], SIZES).on("h200", context=ranks, oracle="waves")
    assert priced.sent == pytest.approx((ranks - 1) * 2 * 4096 * 8 * 128 * 2 / ranks)


def test_an_overlapped_ring_hides_what_its_rounds_are_long_enough_for():
    """Rounds over long contexts hide all; over short ones they are shorter than a message."""
    def both(tokens: int) -> list:
        layer = Layer([ring(ATTEND)], SIZES).with_sizes(s=tokens, z=tokens)
        apart = evolve(layer, operations=[ring(ATTEND, overlap=False)])
        return [each.on("h200", context=4, oracle="waves") for each in (layer, apart)]

    beside, apart = both(65536)
    shift, = (row for row in apart.rows if row.kernel == "shift")
    assert beside.seconds == pytest.approx(apart.seconds - shift.seconds)
    beside, apart = both(256)
    hidden = sum(row.hidden for row in beside.rows)
    assert 0 < hidden < sum(row.seconds for row in apart.rows if row.kernel == "shift")
    assert apart.joules - beside.joules == pytest.approx(hidden * beside.gpu.power.idle)


@pytest.mark.parametrize("power, watts", [(PowerSettings(), 700), (PowerSettings(cap=500), 500)])
def test_a_sustained_layer_keeps_to_the_power_limit(power, watts):
    """Products slow down, and messages keep their time; what the clock saves is more than what the time costs."""
    layer = Layer([op("bsF,Fm->bsm", "F", "down")], SIZES).with_sizes(s=16384)
    short, long = (layer.on("h200", tensor=2, power=each) for each in (None, power))
    assert short.watts > 720 and long.watts == pytest.approx(watts, rel=2e-3)
    assert long.rows[0].seconds > short.rows[0].seconds and long.rows[1].seconds == short.rows[1].seconds
    assert long.joules < short.joules and long.flops == short.flops


def test_power_settings_that_a_layer_cannot_have_are_refused():
    layer = Layer([op("bsF,Fm->bsm", "F", "down")], SIZES)
    for power, problem in ((PowerSettings(cap=60), "power: cap: 60 W cannot be kept"),
                           (PowerSettings(governor=Choice("slack")), "a layer has none; give a cap or a clock")):
        with pytest.raises(ConfigError, match=problem):
            layer.on("h200", power=power)


def test_a_repeated_launch_is_one_row():
    rows = Layer([ring(ATTEND)], SIZES).on("h200", context=4, oracle="waves").rows
    assert [(row.label, row.runs) for row in rows] == [
        ("attention", 1), ("attention_shift", 3), ("attention", 3), ("attention_merge", 3)]


def test_a_product_in_pieces_hides_the_sums_of_all_but_the_last():
    """As the engine prices it: the same spans, one after another or side by side."""
    def down(**overlap):
        return Layer([op("bsF,Fm->bsm", "F", "down", **overlap)], SIZES).on("a100-80g", tensor=8, oracle="waves")

    whole, pieces = down(), down(overlap_stage=4, overlap_sms=16)
    products, sums = [row for row in pieces.rows if row.kernel == "gemm"], [row for row in pieces.rows if row.sent]
    assert sum(row.runs for row in products) == sum(row.runs for row in sums) == 4
    assert pieces.sent == pytest.approx(whole.sent) and pieces.flops == pytest.approx(whole.flops)
    assert sum(row.hidden for row in pieces.rows) > 0
    assert max(row.seconds for row in whole.rows) < pieces.seconds < sum(row.seconds for row in pieces.rows)


@pytest.mark.parametrize("splits, ranks, problem", [
    ("F", 1, "down: overlap_stage = 4 has nothing to overlap"), ("m", 2, "no sum over ranks follows"),
    ("F", 2, "200 leaves nothing to compute with: A100 SXM 80 GB has 108 SMs")])
def test_overlap_without_an_all_reduce_is_refused(splits, ranks, problem):
    sms = 200 if "200" in problem else 16
    layer = Layer([op("bsF,Fm->bsm", splits, "down", overlap_stage=4, overlap_sms=sms)], SIZES)
    with pytest.raises(ConfigError, match=problem):
        layer.on("a100-80g", tensor=ranks, oracle="waves")


@pytest.mark.parametrize("sizes, problem", [
    ({"bs": 1}, "'bs' is no index; each is one letter"),
    ({"b": 0}, "index 'b' is 0; expected a whole number of 1 or more"),
    ({"b": 1.5}, "index 'b' is 1.5; expected a whole number of 1 or more"),
])
def test_invalid_sizes_are_refused(sizes, problem):
    with pytest.raises(ConfigError) as error:
        LLAMA.with_sizes(**sizes)
    assert str(error.value) == f"sizes: {problem}"


def test_lists_of_operations_are_unpacked():
    with pytest.raises(ConfigError, match="not a list; lists go in as"):
        Layer([[ATTEND]], SIZES)


def test_an_index_without_a_size_is_refused():
    with pytest.raises(ConfigError, match="up: index 'q' has no size; sizes has b, s, z"):
        Layer([op("bsm,mq->bsq", label="up")], SIZES).on("h200")


def test_a_layer_is_refused_on_unknown_or_too_little_hardware():
    with pytest.raises(UnknownName, match="no gpu named 'h2000'"):
        LLAMA.on("h2000")
    with pytest.raises(UnknownName, match="no group of ranks named 'tensors'; did you mean 'tensor'"):
        LLAMA.on("h200", tensors=8)
    with pytest.raises(ConfigError, match="ranks: tensor is 0; expected"):
        LLAMA.on("h200", tensor=0)
    with pytest.raises(DoesNotFit, match="8 tensor x 2 context are 16 GPUs, and HGX H200 has 8; set nodes to 2"):
        LLAMA.on("h200", tensor=8, context=2)
    with pytest.raises(ConfigError, match="index 'K' has size 8, which does not divide over 16 ranks"):
        LLAMA.on("h200", tensor=16, nodes=2)

"""Steps priced: plans that are shared, and totals that are those of every launch."""

from collections import Counter
from functools import cache

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import Gemm
from ksim.cost.energy import actions, joules, sending
from ksim.cost.graphs import Graphs, Launching
from ksim.cost.pricer import Overlap
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.steps import KernelCost, StepCost
from ksim.foundation.errors import ConfigError
from ksim.oracles import estimate, least_seconds
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.properties import examples
from tests.scenario.tables import TABLE

#: Two decodes and a chunk; two of the three sample.
BATCH = Batch.of((1, 700), (1, 5000), (61, 200), samples=2)


@cache
def site(model: str = "gemma-2-2b", tensor: int = 1, pipeline: int = 1) -> Deployment:
    """Gemma 2 has layers of two kinds."""
    serve = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "max_model_len": 8192}
    return Deployment.of(Scenario.of({**TABLE, "model": model, "serve": serve}))


def timer(model: str = "gemma-2-2b", tensor: int = 1) -> StepTimer:
    return site(model, tensor).timers()[0]


def one_by_one(timer: StepTimer, batch: Batch) -> tuple[float, float, float, float]:
    """Seconds, joules, FLOP and bytes of every launch, each asked for by itself; of the host's doings, seconds."""
    costs, (how, tokens) = timer.host.inputs, timer.graphs.of(batch)
    totals = [costs.copy + costs.copy_sequence * batch.sequences, 0.0, 0.0, 0.0]
    ask = cache(lambda kernel: estimate(timer.oracle, kernel, timer.gpu))
    for label, kernel in timer.model.graph(tokens, batch.logits, timer.shard).over(batch):
        gaps = {Launching.COMPILED: 1, Launching.PIECEWISE: 2 * (label == "o_proj")}  # once a layer
        totals[0] += costs.gap * gaps.get(how, 0)
        if isinstance(kernel, Collective):
            ranks = timer.groups[kernel.group]
            route, seconds = timer.network.route(kernel, ranks), timer.network.seconds(kernel, ranks)
            done = sending(route.sent * kernel.bytes, route.routed * kernel.bytes, seconds)
            amounts = [seconds, joules(done, timer.gpu.power).total, 0, 0]
        else:
            found, clocks = ask(kernel), timer.gpu.power.clocks
            warm = found.bound == "compute" and found.source.removesuffix(", extrapolated") in ("measured", "learned")
            weights = kernel.n * kernel.k * kernel.weights.bytes if isinstance(kernel, Gemm) else 0.0
            pace = clocks.cool(kernel.family, weights) if warm else 1.0
            pace = max(pace, min(1.0, least_seconds([kernel], timer.gpu)[0] / found.seconds))
            energy = joules(actions(kernel, pace * found.seconds, timer.gpu), timer.gpu.power)
            amounts = [pace * found.seconds, energy.total, kernel.work.flops, kernel.work.bytes]
        totals = [total + amount for total, amount in zip(totals, amounts, strict=True)]
    return tuple(totals)


def told(step: StepCost) -> tuple[object, ...]:
    """All that a step says."""
    return list(step), step.costs, step.launch, step.launch_seconds


def test_a_step_waits_for_the_experts_of_all_ranks():
    """Longer where others have more tokens, by default as many; in graphs all of them have what the fullest has."""
    for eager in (True, False):
        serve = {"data_parallel_size": 4, "enable_expert_parallel": True, "max_model_len": 8192, "enforce_eager": eager}
        pricer = Deployment.of(Scenario.of({**TABLE, "model": "qwen3-30b-a3b", "serve": serve})).timers()[0]
        alone, alike, default, busy = (pricer.step_cost(BATCH, brought).seconds for brought in (
            (63, 0, 0, 0), (63, 63, 63, 63), (), (63, 1000, 2000, 937)))
        assert (alone < alike) if eager else (alone == alike)
        assert alike == default < busy


def test_without_data_ranks_it_is_no_matter_what_others_do():
    assert told(timer().step_cost(BATCH, (4000,))) == told(timer().step_cost(BATCH))


sequences = st.one_of(st.tuples(st.just(1), st.integers(1, 8000)), st.tuples(st.integers(2, 500), st.integers(0, 7000)))


@pytest.mark.parametrize("model, tensor", [
    ("gemma-2-2b", 1), ("gemma-2-2b", 2), ("qwen3-30b-a3b", 4), ("deepseek-v3", 8)])
@given(batch=st.lists(sequences, min_size=1, max_size=6), share=st.floats(0, 1))
@examples(15)
def test_a_step_is_all_of_its_launches(model, tensor, batch, share):
    """Whether folded, unfolded or asked for one by one."""
    pricer, step = timer(model, tensor), Batch.of(*batch, samples=round(share * len(batch)))
    timeline = pricer.step_cost(step)
    totals = (timeline.seconds, timeline.joules, timeline.flops, timeline.bytes)
    # Kernels that are priced together differ in the last digits.
    expected, spans = one_by_one(pricer, step), list(timeline)
    assert totals == pytest.approx(expected, rel=1e-8)
    sums = [sum(getattr(span, name) for span in spans) for name in ("seconds", "joules", "flops", "bytes")]
    assert totals == pytest.approx(sums, rel=1e-12)
    assert timeline.compute_bound == pytest.approx(sum(span.seconds for span in spans if span.bound == "compute"))
    _, tokens = pricer.graphs.of(step)
    launched = [kernel for _, kernel in pricer.model.graph(tokens, step.logits, pricer.shard).over(step)]
    assert [span.label for span in (spans[0], spans[-1])] == ["inputs", "gaps"]
    assert [span.shape for span in spans[1:-1]] == list(map(str, launched))


def test_steps_of_equal_tokens_and_sequences_share_one_plan():
    pricer = timer()
    one, other = pricer.step_cost(Batch.of((1, 700), (63, 0))), pricer.step_cost(Batch.of((32, 90), (32, 5000)))
    assert one.blocks is other.blocks
    assert one.batch_kernels != other.batch_kernels
    assert pricer.step_cost(Batch.of((1, 700), (1, 700), (62, 0))).blocks is not one.blocks


def test_equal_layers_are_folded_and_share_their_attention():
    """26 layers, every other one with a window: 13 times two attentions that depend on the batch."""
    timeline = timer().step_cost(BATCH)
    assert [lap.repeat for lap in timeline.blocks] == [1, 1, 13, 1, 1, 1]
    *attention, inputs = timeline.batch_kernels
    keys = [span.shape.split(", ")[2] for span in attention]
    assert keys == [f"{701 + context + 261} keys" for context in (4096, 5001)]
    assert inputs.label == "inputs"


def test_what_a_batch_has_nothing_of_leaves_no_hole():
    """Decodes alone launch nothing of prompts, and prompts alone nothing of decodes; all of a kind share their laps."""
    pricer = timer("deepseek-v3", 8)
    decodes, prompt, both = (pricer.step_cost(batch) for batch in (
        Batch.of(*[(1, 500)] * 64, samples=1), Batch.of((64, 0), samples=1), Batch.of((1, 9), (63, 8), samples=1)))
    attention = [{span.label for span in step} & {"attention_prompts", "attention_decodes", "context_kv_up"}
                 for step in (decodes, prompt, both)]
    assert attention == [{"attention_decodes"}, {"attention_prompts"},
                         {"attention_prompts", "attention_decodes", "context_kv_up"}]
    assert pricer.step_cost(Batch.of((64, 0), samples=1)).blocks is prompt.blocks
    assert pricer.step_cost(Batch.of((64, 64), samples=1)).blocks is not prompt.blocks


def test_the_oracle_is_asked_once_for_each_shape():
    """A second step of as many tokens asks about its own attention only, which Gemma 2 has two of."""
    asked = Counter()

    class Counting:
        def seconds(self, kernel, gpu):
            asked[kernel.family] += 1
            return 1e-6

    pricer = evolve(timer(), oracle=Counting())
    pricer.step_cost(Batch.of((1, 700), (63, 0)))
    first = Counter(asked)
    pricer.step_cost(Batch.of((1, 5000), (63, 64)))
    assert asked - first == {"attention": 2}
    assert first["gemm"] == 4 + 1  # qkv, o_proj, gate_up, down and the head


def test_tensor_parallelism_inserts_collectives():
    """Two all-reduces a layer and the embedding's, and the gathering of logits; none on one GPU."""
    assert not [span for span in timer().step_cost(BATCH) if span.group]
    messages = Counter(span.family for span in timer(tensor=2).step_cost(BATCH) if span.group == "tensor")
    assert messages == {"all_reduce": 1 + 2 * 26, "all_gather": 1}


def overlapping(sms: int = 16) -> StepTimer:
    """Two GPUs, with four pieces of what is long enough."""
    return evolve(timer(tensor=2), overlap=Overlap(4, sms))


def test_products_run_beside_the_sums_of_their_pieces():
    """Those of o_proj and down, which all-reduces follow; the same FLOP in four times as many launches."""
    batch = Batch.of((4000, 0))
    plain, cut = timer(tensor=2).step_cost(batch), overlapping().step_cost(batch)
    pieces = Counter(span.label for span in cut if span.sms)
    names = {"o_proj", "o_proj_all_reduce", "down", "down_all_reduce"}
    assert pieces == dict.fromkeys(names, 4 * 26)
    assert cut.flops == pytest.approx(plain.flops) and cut.bytes > plain.bytes
    assert cut.seconds == pytest.approx(sum(span.seconds for span in cut))
    assert cut.compute_bound == pytest.approx(sum(span.seconds for span in cut if span.bound == "compute"))
    untouched = [[span.seconds for span in step if span.label not in {*names, "gaps"}] for step in (plain, cut)]
    assert untouched[0] == pytest.approx(untouched[1], rel=1e-9)


def test_what_is_hidden_is_launched_and_waits_for_nothing():
    """A product and its sum become eight launches, of which three have their gaps beside others."""
    batch, costs = Batch.of((4000, 0)), timer().host
    plain, cut = (list(pricer.step_cost(batch)) for pricer in (timer(tensor=2), overlapping()))
    assert cut[-1].seconds - plain[-1].seconds == pytest.approx(2 * 26 * 3 * costs.inputs.gap)
    more = overlapping().step_cost(batch).launch_seconds - timer(tensor=2).step_cost(batch).launch_seconds
    assert more == pytest.approx(2 * 26 * 6 * costs.worker.compiled)


def test_a_step_of_few_tokens_is_not_cut():
    few = Batch.of(*[(1, 700)] * 24)
    assert told(overlapping().step_cost(few)) == told(timer(tensor=2).step_cost(few))


def test_sms_that_a_gpu_has_not_are_an_error_before_anything_is_priced():
    with pytest.raises(ConfigError, match="overlap_sms: 132 leaves nothing to compute with: H200 SXM has 132 SMs"):
        overlapping(132)


def test_a_collective_says_how_it_is_carried_out():
    messages = [span for span in timer(tensor=2).step_cost(BATCH) if span.group]
    assert {(span.bound, span.source) for span in messages} == {("communication", "network")}
    assert messages[0].launch == "direct one-shot"


def test_a_collective_has_its_interval_and_its_distance_from_the_links_peak():
    pricer = timer(tensor=2)
    for message, span, _ in pricer.launches(BATCH):
        if isinstance(message, Collective):
            assert (span.low, span.high) == pytest.approx(pricer.network.interval(message, pricer.groups[span.group]))
            assert span.low < span.seconds < span.high
            # Two GPUs: half of what is gathered passes each one's link, and all of what is summed.
            passed = message.bytes * (0.5 if span.family == "all_gather" else 1)
            assert span.roofline_ratio == pytest.approx(span.seconds / (passed / 450e9))


def test_a_kernel_says_how_it_is_launched_and_what_binds_it():
    spans = {span.label: span for span in timer().step_cost(BATCH)}
    assert spans["qkv"].bound == "memory" and spans["qkv"].source == "measured"
    assert spans["qkv"].launch and spans["qkv"].waves > 0
    assert spans["rope"].bound == "launch"


def test_every_stage_of_every_replica_meets_on_its_own_gpus():
    """The second of two replicas of 2 x 2 GPUs has GPUs 4 to 7: 4 and 5 first, then 6 and 7."""
    groups = [timer.groups["tensor"] for timer in site(tensor=2, pipeline=2).timers(first=4)]
    assert groups == [(4, 5), (6, 7)]


def test_stages_divide_the_step():
    """The first has the embedding, the last the head; the layers are shared out, and what is between them is sent."""
    whole = timer().step_cost(BATCH)
    stages = [timer.step_cost(BATCH) for timer in site(pipeline=2).timers()]
    sends = sum(span.seconds for stage in stages for span in stage if span.family == "send")
    copied = next(iter(whole)).seconds  # inputs come to both
    taken = sum(span.seconds for stage in stages for span in stage if span.family == "gaps")
    gaps = sum(span.seconds for span in whole if span.family == "gaps")
    assert sum(stage.seconds for stage in stages) == pytest.approx(
        whole.seconds + sends + copied + taken - gaps, rel=1e-12) and sends > 0
    assert [[span.label for span in stage].count("attention") for stage in stages] == [13, 13]
    assert [[span.label for span in stage].count("lm_head") for stage in stages] == [0, 1]


def test_a_step_is_padded_to_the_graph_that_it_is_replayed_in():
    """Three decodes to four, 62 tokens with a chunk to 64, and 600 to none."""
    pricer = timer()
    for batch, launch, tokens in ((Batch.of(*[(1, 700)] * 3), "CUDA graph", 4),
                                  (BATCH, "piecewise CUDA graphs", 64),
                                  (Batch.of((600, 0)), "compiled code", 600)):
        timeline = pricer.step_cost(batch)
        (shape,) = {span.shape for span in timeline if span.label == "qkv"}
        assert (timeline.launch, shape.split("x")[0]) == (launch, str(tokens))


def test_launching_takes_longer_the_less_of_it_a_graph_does():
    """26 layers of eleven kernels: 0.3 ms, a few, and more than ten."""
    pricer = timer()
    replayed, pieces, compiled = (pricer.step_cost(batch) for batch in (
        Batch.of((1, 700)), Batch.of((2, 0)), Batch.of((513, 0))))
    costs = pricer.host.worker
    assert replayed.launch_seconds == costs.replay
    assert pieces.launch_seconds == pytest.approx(costs.replay + 26 * costs.piece)
    kernels = sum(1 for span in compiled if span.label not in ("inputs", "gaps"))
    assert compiled.launch_seconds == pytest.approx(kernels * costs.compiled)
    eager = evolve(pricer, graphs=Graphs(eager=True)).step_cost(Batch.of((1, 700)))
    assert eager.launch == "one by one" and eager.launch_seconds == pytest.approx(kernels * costs.eager)


def test_logits_are_computed_for_every_sequence_whether_its_prompt_ends_or_not():
    for batch in ([(64, 0)], [(30, 10), (34, 0)], [(1, 9), (30, 10), (33, 7)]):
        partial, ending = (timer().step_cost(Batch.of(*batch, samples=samples)) for samples in (0, len(batch)))
        assert told(partial) == told(ending)
        (head,) = (span.shape for span in partial if span.label == "lm_head")
        assert head.startswith(f"{len(batch)}x")


def test_a_step_waits_for_the_fullest_rank_and_spends_what_the_average_one_does():
    """Skew lengthens the experts' products, whose joules, FLOP and bytes over all ranks are those of one that has all.

    But each rank reads for itself, on average, as many tokens as there are: a token has eight experts on eight ranks.
    """
    def experts(exponent: float, tokens: int, **serve: object) -> list[tuple[Kernel, KernelCost]]:
        table = {**TABLE, "model": "qwen3-30b-a3b", "routing": {"name": "zipf", "exponent": exponent},
                 "serve": {"max_model_len": 8192, **serve}}
        launches = Deployment.of(Scenario.of(table)).timers()[0].launches(Batch.of((tokens, 0)))
        return [(kernel, cost) for kernel, cost, _ in launches if cost.family == "grouped_gemm"]

    dealt = {"data_parallel_size": 8, "enable_expert_parallel": True}
    alone, even, skewed = experts(1.0, 8000), experts(0.0, 1000, **dealt), experts(1.0, 1000, **dealt)
    assert sum(span.seconds for _, span in skewed) > 1.1 * sum(span.seconds for _, span in even)
    assert sum(span.joules for _, span in skewed) == pytest.approx(sum(span.joules for _, span in even), rel=0.05)
    for (_, one), (fullest, mean), again in zip(alone, skewed, (7 * 8000 * 2048 * 2, 0), strict=True):
        assert 8 * mean.flops == pytest.approx(one.flops, rel=1e-12)
        assert 8 * mean.bytes == pytest.approx(one.bytes + again, rel=1e-12)
        assert 8 * mean.joules == pytest.approx(one.joules, rel=0.1)  # SMs of ranks are busy a little longer
        assert fullest.work.flops > 1.2 * mean.flops


def test_a_timer_keeps_no_more_plans_than_so_many(monkeypatch):
    """A long run meets ever new numbers of tokens and sequences; those that come again are priced as before."""
    for module in ("ksim.cost.step", "ksim.cost.plans"):
        monkeypatch.setattr(f"{module}.MOST", 8)
    bounded, batches = timer(), [Batch.of((1000 + more, 0)) for more in range(30)]
    first = [bounded.summarize(batch).seconds for batch in batches]
    assert [bounded.summarize(batch).seconds for batch in batches] == first
    assert len(bounded._known) <= 10
    assert len(bounded._plans._plans) <= 10

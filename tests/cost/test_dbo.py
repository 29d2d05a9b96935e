"""Two micro-batches that overlap: their order on the streams of a GPU, how a batch is cut, and what the step costs."""

from collections.abc import Generator, Iterator
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ksim.cost.dbo import DboTimer, turns_of
from ksim.cost.graphs import Graphs
from ksim.cost.micro_batches import DboTurn, Halver, MicroBatches, interleaved, waits
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.events import Stepped
from ksim.foundation.errors import ConfigError
from ksim.network.network import Network
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from tests.properties import examples
from tests.scenario.tables import BURST

seconds = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 5.0)
programs = st.lists(st.builds(DboTurn, seconds, seconds), min_size=1, max_size=8)
pairs = programs.flatmap(lambda program: st.tuples(st.just(program), st.lists(
    st.builds(DboTurn, seconds, seconds), min_size=len(program), max_size=len(program))))


class Stream:
    """A CUDA stream: runs what is put into it in order, each once its events have come."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env, self.work = env, simpy.Store(env)
        env.process(self._run())

    def put(self, seconds: float, *after: simpy.Event) -> simpy.Event:
        done = self.env.event()
        self.work.put((seconds, after, done))
        return done

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            seconds, after, done = yield self.work.get()
            yield from after
            yield self.env.timeout(seconds)
            done.succeed()


def played(*halves: list[DboTurn]) -> float:
    """The seconds of both *halves* as two threads put them into streams of one GPU, which hand over to each other."""
    env = simpy.Environment()
    compute, communicate = Stream(env), Stream(env)

    def thread(turns: list[DboTurn]) -> Iterator[simpy.Event]:
        last: tuple[simpy.Event, ...] = ()
        for turn in turns:
            computed = compute.put(turn.compute, *last)
            yield computed  # to the other thread
            # An event on an empty all-to-all is one on the compute before it.
            last = (communicate.put(turn.collective, computed) if turn.collective else computed,)
            ends.append(last[0])

    ends: list[simpy.Event] = []
    for _ in zip_longest(*map(thread, halves)):
        pass
    env.run(env.all_of(ends))
    return env.now


@given(programs, programs)
@examples(400)
@example([DboTurn(1.0, 2.0), DboTurn(1.0)], [DboTurn(1.0, 2.0), DboTurn(1.0)])
def test_the_recursion_is_what_two_threads_and_two_streams_do(one, other):
    assert interleaved(one, other) == pytest.approx(played(one, other))


@given(pairs)
@examples(400)
def test_nothing_is_faster_than_what_has_to_come_one_after_another(both):
    total, compute = interleaved(*both), sum(turn.compute for program in both for turn in program)
    chains = [sum(map(sum, program)) for program in both]
    bounds = (compute, *chains, sum(turn.collective for program in both for turn in program))
    assert max(bounds) <= total * (1 + 1e-12) + 1e-12 and total <= sum(chains) * (1 + 1e-12)


@given(pairs)
@examples(400)
def test_waits_and_compute_are_all_seconds_and_no_wait_is_longer_than_its_message(both):
    waited = waits(*both)
    compute = sum(turn.compute for program in both for turn in program)
    assert compute + sum(map(sum, waited)) == pytest.approx(interleaved(*both))
    for program, own in zip(both, waited, strict=True):
        assert all(0 <= wait <= turn.collective + 1e-9 for turn, wait in zip(program, own, strict=True))


@given(st.integers(1, 500), st.floats(0.01, 10.0))
def test_equal_compute_and_communication_take_half(layers, each):
    """All but the first all-to-all and the last are hidden: 2 n + 1 of 4 n parts."""
    program = [DboTurn(each, each)] * layers
    assert interleaved(program, program) == pytest.approx((2 * layers + 1) * each)


@given(pairs)
@examples(100)
def test_without_communication_halves_take_what_they_compute(both):
    silent = [[DboTurn(turn.compute) for turn in program] for program in both]
    assert interleaved(*silent) == pytest.approx(sum(turn.compute for program in silent for turn in program))


sequences = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 500)), min_size=1, max_size=12)


@given(sequences, st.sampled_from([1, 3]), st.integers(0, 30), st.data())
@examples(400)
def test_a_batch_is_cut_at_a_token_and_its_rest_is_padded(pairs, width, more, data):
    batch = Batch.of(*pairs, width=width)
    assume(batch.tokens > 1)
    size = data.draw(st.integers(1, batch.tokens - 1))
    halves = Halver().cut(batch, size, batch.tokens + more)
    assert [half.tokens for half in halves] == [size, batch.tokens + more - size]
    assert not any(half.logits for half in halves)

    def attended(*parts: Batch) -> list[int]:
        """Of each query, how many keys it sees, all in order."""
        spans = [(part.width, context) for part in parts for context in part.contexts]
        spans += [span for part in parts for span in part.chunks]
        return sorted(context + place for new, context in spans for place in range(new))

    assert attended(*halves) == attended(batch) and len(attended(halves[0])) == size
    assert all(new != width for half in halves for new, _ in half.chunks)


def test_halves_of_sequences_that_decode_on_keep_their_offsets():
    halver, batch = Halver(), Batch.of(*[(1, 10 + place) for place in range(9)])
    first, second = halver.cut(batch, 4, 10)
    again = halver.cut(batch, 4, 10)
    assert first.contexts.offsets is again[0].contexts.offsets and second.contexts.offsets is again[1].contexts.offsets


GRAPHS = Graphs(full=(8, 16, 64), piecewise=(8, 16, 64))


@pytest.mark.parametrize("tokens, ranks, padded", [
    (31, (), 0), (32, (), 64), (33, (), 64), (64, (), 64), (65, (), 65), (40, (40, 31), 0), (40, (40, 33), 64),
    (40, (40, 32), 0), (100, (100, 51), 100), (100, (100, 50), 0)])
def test_ranks_cut_together_or_not_at_all(tokens, ranks, padded):
    """vLLM: each has the threshold, and the second half is empty on none (v1/worker/ubatch_utils.py).

    64 sequences of a graph of 64 are cut at 32: with 32 tokens, the second half would be padding alone.
    """
    micro = MicroBatches(32, 512)
    expected = 0 if not ranks and padded // 2 >= tokens else padded
    assert micro.padded(Batch.of(*[(1, 50)] * tokens), ranks, GRAPHS) == expected


def test_prompts_have_a_threshold_of_their_own():
    micro, prompt = MicroBatches(32, 512), Batch.of((511, 0))
    assert not micro.padded(prompt, (), GRAPHS)
    assert micro.padded(Batch.of((511, 0), (1, 9)), (), GRAPHS) == 512
    assert not MicroBatches(0, 0).padded(Batch.of((1, 9)), (), Graphs())  # a token cannot be cut


SERVE = {"data_parallel_size": 4, "enable_expert_parallel": True, "max_model_len": 8192}
BACKENDS = ("deepep_low_latency", "deepep_high_throughput")
batches = st.one_of(
    st.builds(lambda count, context: Batch.of(*[(1, context)] * count), st.integers(2, 300), st.integers(0, 4000)),
    st.builds(lambda count, new: Batch.of(*[(1, 900)] * count, (new, 100)), st.integers(0, 100),
              st.integers(2, 3000)))


@cache
def timer(backend: str, oracle: str = "roofline", **more) -> StepTimer:
    made = Deployment.of(Scenario.of({
        "model": "qwen3-30b-a3b", "gpu": "h200", "oracle": oracle, "workload": {"synthetic": BURST},
        "serve": {**SERVE, "all2all_backend": backend, **more}})).timers()
    assert isinstance(made[0], StepTimer)
    return made[0]


def cutting(backend: str, oracle: str = "roofline", **more) -> StepTimer:
    return timer(backend, oracle, enable_dbo=True, **{"dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 8,
                                                      **more})


def exchanged(step) -> list:
    return [kernel for kernel in step if kernel.group == "expert"]


@given(batches, st.sampled_from(BACKENDS), st.sampled_from(["roofline", "measured"]))
@examples(120)
def test_a_step_is_its_kernels_and_its_halves(batch, backend, oracle):
    step = cutting(backend, oracle).step_cost(batch)
    if step.halves is None:
        return
    kernels = [*step]
    assert sum(kernel.seconds for kernel in kernels) == pytest.approx(step.seconds)
    assert sum(kernel.joules for kernel in kernels) == pytest.approx(step.joules)
    assert interleaved(*map(turns_of, step.halves)) == pytest.approx(step.seconds)
    assert sum(half.joules for half in step.halves) == pytest.approx(step.joules)
    assert sum(half.flops for half in step.halves) == pytest.approx(step.flops)
    alone = [kernel for half in step.halves for kernel in exchanged(half)]
    together = exchanged(step)
    assert sum(kernel.joules for kernel in together) == pytest.approx(sum(kernel.joules for kernel in alone))
    assert sum(kernel.lasts for kernel in together) == pytest.approx(sum(kernel.seconds for kernel in alone))
    compute = sum(kernel.seconds for kernel in kernels if kernel.group != "expert")
    assert max(compute, *(half.seconds for half in step.halves)) <= step.seconds * (1 + 1e-9)
    assert 0 < step.low <= step.seconds <= step.high or np.isnan(step.low)


@given(batches, st.sampled_from(BACKENDS), st.data())
@examples(100)
def test_a_step_below_the_threshold_is_the_plain_one_to_the_last_bit(batch, backend, data):
    plain, cut = timer(backend), cutting(backend, dbo_decode_token_threshold=10**6, dbo_prefill_token_threshold=10**6)
    ranks = data.draw(st.just(()) | st.lists(st.integers(1, 400), min_size=3, max_size=3).map(
        lambda others: (batch.tokens, *others)))
    step, other = cut.step_cost(batch, ranks), plain.step_cost(batch, ranks)
    assert [*step] == [*other] and (step.costs, step.launch_seconds) == (other.costs, other.launch_seconds)
    assert cut.summarize(batch).seconds == plain.summarize(batch).seconds
    assert cut.launches(batch, ranks) == plain.launches(batch, ranks)


@given(batches, st.sampled_from(BACKENDS))
@examples(100)
def test_halves_are_no_faster_than_the_whole_where_nothing_is_to_be_hidden(batch, backend):
    patch = pytest.MonkeyPatch()
    with patch.context() as during:
        during.setattr(Network, "seconds", lambda self, collective, ranks: 0.0)
        made = [Deployment.of(Scenario.of({
            "model": "qwen3-30b-a3b", "gpu": "h200", "oracle": "roofline", "workload": {"synthetic": BURST},
            "serve": {**SERVE, "all2all_backend": backend, **more}})).timers()[0]
            for more in ({}, {"enable_dbo": True, "dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 8})]
        plain, cut = (one.step_cost(batch).seconds for one in made)
    assert cut >= plain * (1 - 1e-9)


@given(batches, st.sampled_from(BACKENDS))
@examples(60)
def test_all_ways_to_ask_agree(batch, backend):
    cut = cutting(backend)
    step, priced, summary = cut.step_cost(batch), cut.price([batch])[0], cut.summarize(batch)
    assert priced.seconds == pytest.approx(step.seconds) and summary.seconds == pytest.approx(step.seconds)
    assert summary.joules == pytest.approx(step.joules) and summary.launch_seconds == step.launch_seconds
    launched = cut.launches(batch)
    gaps = sum(kernel.seconds for kernel in step if kernel.source == "host")
    if step.halves is None or backend == "deepep_low_latency":  # attention beside all-to-alls is between two prices
        assert sum(cost.seconds * runs for _, cost, runs in launched) + gaps == pytest.approx(step.seconds)
    assert cut.summarize([batch] * 30)[0].seconds == pytest.approx(step.seconds)


def test_halves_alternate_in_each_layer():
    """Drawn one after another, with each all-to-all as long as it lasts, no two are under way at once."""
    step = cutting("deepep_high_throughput").step_cost(Batch.of((1500, 0), (400, 0), *[(1, 900)] * 20))
    assert step.halves and max(block.repeat for block in step.blocks) == 48
    layer = next(block for block in step.blocks if block.repeat == 48)
    labels = [step.batch_kernels[launch].label if isinstance(launch, int) else launch.label
              for launch in layer.launches]
    assert [label for label in labels if label in ("dispatch", "experts_combine", "qkv")] == [
        "qkv", "dispatch", "qkv", "dispatch", "experts_combine", "experts_combine"]
    now = ended = late = 0.0
    for kernel in step:
        if kernel.group == "expert":
            late, ended = max(late, ended - now), now + kernel.lasts
        now += kernel.seconds
    assert late < 0.05 * max(kernel.lasts for kernel in exchanged(step))  # seconds of equal layers are their mean


def test_steps_of_one_shape_share_their_blocks():
    cut = cutting("deepep_low_latency")
    first, second = (cut.step_cost(Batch.of(*[(1, context)] * 64)) for context in (100, 3000))
    assert first.halves and first.blocks is second.blocks and first.seconds < second.seconds


def test_a_graph_of_both_halves_is_launched_once():
    cut, plain = cutting("deepep_low_latency"), timer("deepep_low_latency")
    decodes, prompt = Batch.of(*[(1, 100)] * 64), Batch.of((2000, 0))
    assert cut.step_cost(decodes).launch_seconds == plain.step_cost(decodes).launch_seconds
    assert cut.step_cost(prompt).launch_seconds > 1.9 * plain.step_cost(prompt).launch_seconds
    assert cut.step_cost(decodes).launch == "CUDA graph, two micro-batches"


def test_kernels_have_the_sms_that_high_throughput_all_to_alls_leave():
    prompt = Batch.of((4000, 0))
    few, many = (cutting("deepep_high_throughput", dbo_comm_sms=sms).step_cost(prompt) for sms in (1, 66))
    assert many.seconds > 1.2 * few.seconds
    alike = [cutting("deepep_low_latency", dbo_comm_sms=sms).step_cost(prompt).seconds for sms in (1, 66)]
    assert alike[0] == alike[1]
    with pytest.raises(ConfigError, match="dbo_comm_sms: 132 leaves nothing to compute with"):
        cutting("deepep_high_throughput", dbo_comm_sms=132)


def test_a_run_cuts_the_steps_that_are_large_enough():
    def steps(**more) -> list[Stepped]:
        result = simulate(Scenario.of({
            "model": "qwen3-30b-a3b", "gpu": "h200", "oracle": "roofline", "workload": {"synthetic": {
                "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 200}, "count": 40,
                "output": {"kind": "fixed", "value": 6}}},
            "serve": {**SERVE, "all2all_backend": "deepep_low_latency", **more}}))
        assert result.kernels  # tables of it can be made
        return [*result.log.of(Stepped)]

    plain = steps()
    never = steps(enable_dbo=True, dbo_decode_token_threshold=1000, dbo_prefill_token_threshold=10**5)
    cut = steps(enable_dbo=True, dbo_decode_token_threshold=8, dbo_prefill_token_threshold=512)
    assert [step.end for step in never] == [step.end for step in plain]
    halved = [step for step in cut if step.step_costs[0].launch.endswith("two micro-batches")]
    assert halved and len(halved) < len(cut)
    assert all(step.batch.tokens >= 8 for step in halved)


def test_pipeline_stages_and_drafters_go_with_micro_batches():
    timers = Deployment.of(Scenario.of({
        "model": "deepseek-v3", "gpu": "h200", "nodes": 2, "workload": {"synthetic": BURST}, "serve": {
            **SERVE, "data_parallel_size": 8, "all2all_backend": "deepep_low_latency", "enable_dbo": True,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 1,
                                   "acceptance": {"name": "geometric", "rate": 0.8}}}})).timers()
    batch = Batch.of(*[(2, 1000)] * 64, width=2)
    (step,) = (one.step_cost(batch) for one in timers)
    assert isinstance(timers[0].main, DboTimer) and step.seconds > timers[0].main.step_cost(batch).seconds
    assert timers[0].main.step_cost(batch).halves

"""Where requests' time went: phases add up, to the last digit, and are whose they are said to be."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.counting import lines
from ksim.flow.events import Admitted, Preempted, Stepped
from ksim.flow.log import Log
from ksim.results.activity import COMMUNICATION, KEYS, PAIRS, SharedKernels, Shares
from ksim.results.energy import Energy
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views.result import Result
from tests.laws.small import SMALL
from tests.laws.tiny import uniform
from tests.properties import examples

from . import by_hand, fabricate
from .partition import assert_a_partition, parts, total
from .strategies import logs


@given(logs())
@examples(60)
def test_phases_add_up_in_any_log(log):
    assert_a_partition(Result(log))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small runs with everything in them: preemption, chunks, prefix caching, stages, ranks, overlapping steps."""
    serve = {
        "max_model_len": 2048, "num_gpu_blocks_override": draw(st.sampled_from([135, 200, 5000])),
        "max_num_batched_tokens": draw(st.sampled_from([20, 100, 300, 2048])), "max_num_seqs": draw(st.integers(2, 20)),
        "async_scheduling": draw(st.booleans()), "pipeline_parallel_size": draw(st.sampled_from([1, 1, 2])),
        "tensor_parallel_size": draw(st.sampled_from([1, 2])), "data_parallel_size": draw(st.sampled_from([1, 2])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "decode_first", "prefill_first", "shortest_remaining"])),
        "enforce_eager": draw(st.booleans()),
    }
    load = {"arrivals": {"process": "poisson", "rate": draw(st.sampled_from([20, 3000]))},
            "count": draw(st.integers(2, 25)), "max_tokens": 2000,
            "prompt": {"kind": "lognormal", "median": 300, "sigma": 1.0},
            "output": {"kind": "exponential", "mean": 15}, "prefixes": {"groups": 2, "tokens": 96}}
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h100", "oracle": "roofline", "serve": serve,
                        "seed": draw(st.integers(0, 99)), "workload": {"synthetic": load}})


@given(scenarios())
@examples(30)
def test_phases_add_up_in_any_run(scenario):
    result = simulate(scenario)
    assert_a_partition(result)
    first, after = parts(result)
    assert (first["intake"] > 0).all() and (first["delivery"] > 0).all() and (total(first, "prefill.") > 0).all()
    if not result.summary["preemptions"]:
        assert not any(columns[name].any() for columns in (first, after) for name in ("preempted", "recomputation"))


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_phases_add_up_beside_dummy_steps(async_scheduling):
    """Three requests on four data ranks that share experts."""
    load = {"arrivals": {"process": "poisson", "rate": 100}, "count": 3, "prompt": {"kind": "fixed", "value": 400},
            "output": {"kind": "fixed", "value": 5}}
    result = simulate(Scenario.of({"model": "qwen3-30b-a3b", "gpu": "h200", "oracle": "roofline",
                                   "workload": {"synthetic": load},
                                   "serve": {"data_parallel_size": 4, "async_scheduling": async_scheduling}}))
    assert (result.history.steps.tokens == 0).any()
    assert_a_partition(result)


@given(scenarios())
@examples(20)
def test_every_chunk_and_every_joule_of_a_step_is_somebodys(scenario):
    """Chunks of one token and those computed again too, where all requests complete."""
    result = simulate(scenario)
    history, requests = result.history, result.history.requests
    energy = Energy(Shares(history, result.usage))
    chunks, owner = energy.shares.stretches.prompt_chunks, energy.shares.stretches.stints.row
    there = [(row, *prompt) for row, step in enumerate(result.log.of(Stepped)) for prompt in step.batch.prompts]
    columns = (chunks.step, requests.ids[owner[chunks.stint]], chunks.new, chunks.context)
    assert requests.completed.all()
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(there)
    assert energy.unattributed == pytest.approx(0.0, abs=1e-9 * energy.joules.sum())


def naive(log: Log) -> dict[int, Counter]:
    """The phases of each completed request of a run on one stage without preemptions, by walking all its steps.

    Nothing is found out of chunks here: each request's own are followed from its admission on, in turn.
    """
    history = Result(log).history
    requests, steps, found = history.requests, list(log.of(Stepped)), {}
    computed = {event.request_id: [event.cached, event.known, event.time] for event in log.of(Admitted)}
    own: dict[tuple[int, int], tuple[int, int]] = {}
    for row, step in enumerate(steps):
        left = list(step.batch.chunks)
        for number, (done, known, since) in computed.items():
            if left and since <= step.scheduled and known - done > 1 and left[0][1] == done:
                new, _ = left.pop(0)
                computed[number][0] += new
                own[number, row] = new, done
    for row in np.flatnonzero(requests.completed).tolist():
        number = requests.requests[row].id
        emitted = steps[requests.token_steps[requests.first[row]]]
        spent = found[number] = Counter(queue=requests.admitted[row] - requests.arrival[row])
        last = steps[requests.token_steps[requests.first[row + 1] - 1]]
        for place, step in enumerate(steps):
            if requests.admitted[row] <= step.scheduled <= last.scheduled:
                before = steps[place - 1].end if place else 0.0
                spent["update"] += max(0.0, step.scheduled - max(before, requests.admitted[row]))
                spent["schedule"] += step.start - step.scheduled
                _spend(spent, step, own.get((number, place), (0, 0)), step.index > emitted.index)
        spent["update"] += last.taken - last.end
    return found


def _spend(spent: Counter, step, mine: tuple[int, int], decoding: bool) -> None:
    """One step's kernels, span by span."""
    weights = {"others": list(step.batch.chunks), "decode": [(1, context) for context in step.batch.contexts]}
    if mine[0]:
        weights["others"].remove(mine)
        weights["prefill"] = [mine]
    for span in step.step_costs[0]:
        part = SharedKernels.of(span)
        size = {PAIRS: lambda new, context: new * context + new * (new + 1) / 2,
                KEYS: lambda new, context: new + context}.get(part.by, lambda new, context: new)
        sizes = {name: sum(size(*each) for each in group) for name, group in weights.items()}
        for name, share in sizes.items():
            seconds = span.seconds * share / sum(sizes.values())
            kind = "communication" if part.family == COMMUNICATION else f"{name}.{part.family}"
            spent["others_prefill" if name == "others" else
                  "others_decode" if name == "decode" and not decoding else kind] += seconds


@pytest.mark.parametrize("ranks", [1, 2])
def test_phases_are_what_walking_through_all_steps_finds(ranks):
    log = fabricate.log(count=25, ranks=ranks, rate=60.0, preempt_every=0)
    result, expected = Result(log), naive(log)
    first, after = parts(result)
    for place, number in enumerate(result.attribution["id"].to_pylist()):
        got: Counter = Counter()
        for columns in (first, after):
            got.update({name: column[place] for name, column in columns.items()})
        wanted = expected[number]
        assert {name: got[name] for name in {*got, *wanted}} == pytest.approx(
            {name: wanted[name] for name in {*got, *wanted}}, abs=1e-9)


def test_the_small_log_by_hand():
    """Request 8 comes with 20 tokens to a step with one decode: 20 of 21 tokens are its own, and 20 of 31 keys."""
    first, after = parts(Result(by_hand.small()))
    assert first["queue"].tolist() == pytest.approx([0.0, 0.125])
    assert first["schedule"].tolist() == pytest.approx([0.5, 0.25])
    assert first["prefill.gemm"].tolist() == pytest.approx([0.2, 0.2 * 20 / 21])
    assert first["prefill.attention"].tolist() == pytest.approx([0.3, 0.3 * 20 / 31])
    assert first["others_decode"].tolist() == pytest.approx([0.0, 0.2 / 21 + 0.3 * 11 / 31])
    # Request 7 decodes in that step, and in one of its own, of which each takes a while to be taken in.
    assert after["others_prefill"].tolist() == pytest.approx([0.2 * 20 / 21 + 0.3 * 20 / 31, 0.0])
    assert after["decode.gemm"].tolist() == pytest.approx([0.2 / 21 + 0.2, 0.0])
    assert after["update"].tolist() == pytest.approx([0.25 + 0.5, 0.0])


def test_a_request_that_is_pushed_out_waits_and_computes_again():
    scenario = Scenario.of({
        "model": "llama-3.2-1b", "gpu": "l4", "oracle": "roofline",
        "serve": {"max_model_len": 2048, "num_gpu_blocks_override": 130, "enable_prefix_caching": False},
        "workload": {"synthetic": {
            "arrivals": {"process": "burst"}, "count": 4, "max_tokens": 2000,
            "prompt": {"kind": "fixed", "value": 400}, "output": {"kind": "fixed", "value": 200}}}})
    result = simulate(scenario)
    _, after = parts(result)
    again = result.history.requests.preemptions > 0
    assert 0 < again.sum() < 4
    assert ((after["preempted"] > 0) == again).all() and ((after["recomputation"] > 0) == again).all()
    assert_a_partition(result)


def test_a_sequence_that_is_pushed_out_with_its_last_token_in_flight_has_ended_but_not_the_request(tmp_path):
    model = tmp_path / "delta.json"
    model.write_text(json.dumps(SMALL["delta"]))
    result = simulate(Scenario.of({
        "model": str(model), "gpu": "h200", "oracle": "roofline", "seed": 593,
        "serve": {"max_model_len": 160, "max_num_seqs": 6, "max_num_batched_tokens": 256,
                  "num_gpu_blocks_override": 12},
        "workload": {"synthetic": {
            "count": 6, "n": 2, "max_completion_tokens": 20, "arrivals": {"process": "poisson", "rate": 400.0},
            "prompt": uniform(5, 120), "output": uniform(1, 12)}}}))
    pushed = [event.request_id for event in result.log.of(Preempted)]
    admitted = [event.request_id for event in result.log.of(Admitted)]
    assert pushed and all(admitted.count(request) == 1 for request in pushed)
    assert_a_partition(result)


def test_a_request_that_is_admitted_again_before_its_tokens_in_flight_come_is_counted_once(tmp_path):
    """In a pipeline, the step of a preempted sequence may end after the sequence was admitted again."""
    model = tmp_path / "tiny.json"
    model.write_text(json.dumps(SMALL["dense"]))
    result = simulate(Scenario.of({
        "model": str(model), "gpu": "h200", "oracle": "roofline", "nodes": 1, "seed": 221,
        "serve": {"pipeline_parallel_size": 2, "max_model_len": 160, "max_num_seqs": 6, "max_num_batched_tokens": 256,
                  "num_gpu_blocks_override": 14, "scheduling_policy": "prefill_first"},
        "workload": {"synthetic": {
            "count": 6, "n": 3, "max_completion_tokens": 20, "arrivals": {"process": "poisson", "rate": 400.0},
            "prompt": uniform(5, 120), "output": uniform(1, 12)}}}))
    assert any(result.log.of(Preempted))
    assert_a_partition(result)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_steps_of_ranks_are_split_alike(gpu):
    """Where a power limit rules the clock, too."""
    table = {"model": "llama-3.2-1b", "gpu": gpu, "serve": {"max_model_len": 4096, "tensor_parallel_size": 2},
             "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 200}, "count": 6,
                                        "prompt": {"kind": "uniform", "low": 500, "high": 3000},
                                        "output": {"kind": "uniform", "low": 2, "high": 9}}}}
    alike = {"detail": "rank", "ranks": {"slow": [{"gpu": 0}, {"gpu": 1}]}}
    whole, fine = (simulate(Scenario.of({**table, **detail})) for detail in ({}, alike))
    assert_a_partition(fine)
    assert whole.attribution.column_names == fine.attribution.column_names
    for name in whole.attribution.column_names:
        assert fine.attribution[name].to_numpy() == pytest.approx(whole.attribution[name].to_numpy(), abs=1e-9)


@pytest.mark.parametrize("budget", [1, 7, 1024])
def test_a_request_alone_waits_for_no_other(budget):
    """Also where a prompt is computed token by token, or has one left for its last chunk."""
    scenario = Scenario.of({"model": "llama-3.2-1b", "gpu": "l4", "oracle": "roofline", "workload": {"synthetic": {
        "arrivals": {"process": "burst"}, "count": 1, "prompt": {"kind": "fixed", "value": 2 * budget + 1},
        "output": {"kind": "fixed", "value": 20}}}, "serve": {"max_model_len": 4096, "max_num_batched_tokens": budget}})
    result = simulate(scenario)
    for columns in parts(result):
        assert columns["others_prefill"] == pytest.approx([0.0], abs=1e-12)
        assert columns["others_decode"] == pytest.approx([0.0], abs=1e-12)
    steps = result.steps.to_pydict()
    assert (sum(steps["prefills"]), sum(steps["prefill_tokens"]), sum(steps["decodes"])) == (3, 2 * budget + 1, 19)
    assert result.summary["unattributed_energy_joules"] == pytest.approx(0.0, abs=1e-9)
    assert result.requests["joules_to_first_token"][0].as_py() == pytest.approx(
        result.summary["prefill_energy_joules"])


def test_a_run_in_which_nothing_completed_has_no_rows():
    assert Result(Log([by_hand.ENGINE])).attribution.num_rows == 0
    assert Result(fabricate.cut(by_hand.small(), 2.25)).attribution.num_rows == 0


def test_attribution_takes_no_more_lines_for_more_steps():
    def counted(requests: int) -> int:
        result = Result(fabricate.log(count=requests, rate=40.0))
        assert len(result.history.steps) and len(result.history.requests.tokens) and result.usage
        return lines(lambda: result.attribution)

    assert counted(1500) < 1.05 * counted(300)

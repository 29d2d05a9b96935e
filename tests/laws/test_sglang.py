"""Engines with SGLang's scheduler keep the laws of all runs."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim import Scenario
from ksim.scheduling.sglang.drafts import SglangDraftScheduler
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.scheduling.sglang.windows import SglangWindowScheduler
from ksim.simulation.fleet import Fleet
from tests.explore.features import BASE, as_sglang_says, sglang, with_changes, with_files
from tests.explore.laws import LAWS, run_of
from tests.properties import examples

pytestmark = pytest.mark.filterwarnings("error")
#: Kinds of engines, and their schedulers.
KINDS = {
    SglangScheduler: {}, SglangWindowScheduler: {"model": "windows"},
    SglangDraftScheduler: {"model": "experts", "serve": {"speculative_config": {
        "method": "mtp", "num_speculative_tokens": 2, "acceptance": {"name": "geometric", "rate": 0.6}}}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@examples(12)
@given(kind=st.sampled_from([*KINDS]), seed=st.integers(0, 10**6), longer=st.booleans())
def test_runs_keep_all_laws(folder, kind, seed, longer):
    output = {"kind": "uniform", "low": 30, "high": 90} if longer else {"kind": "uniform", "low": 1, "high": 12}
    own = sglang(Random(seed))
    if kind is SglangDraftScheduler:
        own["serve"]["sglang"].pop("schedule_policy", None)
    if kind is SglangWindowScheduler and "max_total_tokens" in own["serve"]["sglang"]:
        own["serve"]["sglang"]["max_total_tokens"] = 512  # two pools, one of which must hold a prompt
    table = with_changes(with_changes({**BASE, "seed": seed}, KINDS[kind]), own)
    table = as_sglang_says(with_changes(table, {"workload": {"synthetic": {"output": output}}}))
    run = run_of(Fleet.of(Scenario.of(with_files(table, folder))))
    assert type(run.cluster.engines[0].scheduler) is kind or kind is SglangWindowScheduler
    for law in LAWS:
        law(run)


def test_whoever_cannot_wait_is_told():
    """With two places in the queue, of ten requests at once seven are refused: one is admitted in the meantime."""
    table = with_changes({**BASE, "engine": "sglang-0.5.23", "model": "llama-3.2-1b"}, {
        "serve": {"sglang": {"max_running_requests": 1, "max_queued_requests": 2}},
        "workload": {"synthetic": {"count": 10, "arrivals": {"process": "burst"}}}})
    fleet = Fleet.of(Scenario.of(as_sglang_says(table)))
    for each in (fleet, fleet.stepping()):
        rows = run_of(each).result.requests.to_pylist()
        assert {row["reason"] for row in rows if row["status"] == "failed"} == {"the request queue is full"}
        assert 2 <= sum(row["status"] == "completed" for row in rows) <= 3


def test_outputs_are_estimated_not_known():
    """Requests that may yield far more than they do wait longer for memory, as SGLang cannot foresee their ends."""
    table = {"model": "llama-3.2-1b", "gpu": "h200", "engine": "sglang-0.5.23", "oracle": "roofline",
             "serve": {"sglang": {"max_total_tokens": 8192, "context_length": 8000}},
             "workload": {"synthetic": {"count": 40, "arrivals": {"process": "burst"}, "prompt": {
                 "kind": "fixed", "value": 300}, "output": {"kind": "fixed", "value": 50}}}}
    asking = with_changes(table, {"workload": {"synthetic": {"max_completion_tokens": 3000}}})
    known, unknown = (run_of(Fleet.of(Scenario.of(each))).result.summary for each in (table, asking))
    assert unknown["mean_ttft_ms"] > 2 * known["mean_ttft_ms"]
    assert known["completed"] == unknown["completed"] == 40


def test_policies_of_ones_own_order_the_queue():
    table = {"model": "llama-3.2-1b", "gpu": "h200", "engine": "sglang-0.5.23", "oracle": "roofline",
             "serve": {"scheduling_policy": "shortest_prompt_first", "sglang": {"max_running_requests": 2}},
             "workload": {"synthetic": {"count": 30, "arrivals": {"process": "burst"}, "prompt": {
                 "kind": "uniform", "low": 10, "high": 2000}, "output": {"kind": "fixed", "value": 20}}}}
    rows = run_of(Fleet.of(Scenario.of(table))).result.requests.to_pylist()
    order = sorted((row["ttft_s"], row["prompt_tokens"]) for row in rows)[4:]  # those of one batch at once
    assert [prompt for _, prompt in order] == sorted(prompt for _, prompt in order)


DRAFTS = {"speculative_config": {"method": "draft_model", "model": "llama-3.2-1b", "num_speculative_tokens": 2,
                                 "acceptance": {"name": "geometric", "rate": 0.6}}}


@pytest.mark.parametrize("serve", [{}, DRAFTS], ids=["decodes", "verifications"])
def test_newcomers_are_seen_after_so_many_decodes(serve):
    """One runs when the other comes, which is seen after 80 decodes, drafted or not."""
    table = {"model": "llama-3.1-8b", "gpu": "h200", "engine": "sglang-0.5.23", "oracle": "roofline", "serve": serve,
             "workload": {"synthetic": {"count": 2, "arrivals": {"process": "constant", "rate": 10},
                                        "prompt": {"kind": "fixed", "value": 50},
                                        "output": {"kind": "fixed", "value": 900}}}}
    late = with_changes(table, {"serve": {"sglang": {"scheduler_recv_interval": 80}}})
    fleets = [Fleet.of(Scenario.of(each)) for each in (table, late)]
    for fleet in (*fleets, fleets[1].stepping()):
        rows = run_of(fleet).result.requests.to_pylist()
        assert (rows[1]["ttft_s"] > 10 * rows[0]["ttft_s"]) == (fleet is not fleets[0])


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_engine_that_becomes_idle_looks_at_once(synchronous):
    """The one that runs ends before the other is looked for, whose turn then comes."""
    table = {"model": "llama-3.1-8b", "gpu": "h200", "engine": "sglang-0.5.23", "oracle": "roofline",
             "serve": {"sglang": {"scheduler_recv_interval": 2000, "disable_overlap_schedule": synchronous}},
             "workload": {"synthetic": {"count": 2, "arrivals": {"process": "constant", "rate": 10},
                                        "prompt": {"kind": "fixed", "value": 50},
                                        "output": {"kind": "fixed", "value": 200}}}}
    fleet = Fleet.of(Scenario.of(table))
    for each in (fleet, fleet.stepping()):
        first, second = run_of(each).result.requests.to_pylist()
        assert 0 < second["arrival_s"] + second["ttft_s"] - (first["arrival_s"] + first["e2e_s"]) < first["ttft_s"]


def test_whom_a_policy_puts_first_is_chosen_of_those_that_were_seen():
    """Where newcomers are seen every other decode, an engine ahead of the clock must not see them a decode later."""
    table = {"model": "llama-3.2-1b", "gpu": "h200", "engine": "sglang-0.5.23", "oracle": "roofline", "seed": 58,
             "serve": {"sglang": {"max_running_requests": 6, "scheduler_recv_interval": 2, "context_length": 512},
                       "scheduling_policy": {"name": "shortest_remaining"}},
             "workload": {"synthetic": {"count": 100, "arrivals": {"process": "poisson", "rate": 700.0},
                                        "prompt": {"kind": "uniform", "low": 5, "high": 120},
                                        "output": {"kind": "uniform", "low": 1, "high": 12}}}}
    fleet = Fleet.of(Scenario.of(table))
    ahead, stepped = (run_of(each).result.requests for each in (fleet, fleet.stepping()))
    assert ahead["ttft_s"].to_pylist() == stepped["ttft_s"].to_pylist()

"""Each connector's timeline: who has a request when, what is held, and what is computed again."""

import re
from math import inf
from pathlib import Path

import pytest

from ksim.flow.events import Admitted, Arrived, Emitted, Failed, Finished, Prefilled, Received, Released, Transferred
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.kv.transfer.connectors.engines import Nixl, Sglang
from tests.kv.transfer.fleets import CONNECTORS, requests, run, scenario
from tests.laws.tiny import uniform

ALONE = requests(1, prompt={"kind": "fixed", "value": 100}, output={"kind": "fixed", "value": 5})


def one(log, kind, engine=None):
    (event,) = [event for event in log.of(kind) if engine is None or event.engine == engine]
    return event


@pytest.mark.parametrize("name", catalog.names("kv.transfer.connectors"))
def test_a_connector_answers_all_questions(name):
    connector = plugin("kv.transfer.connectors", Choice(name))
    answers = [getattr(connector, key) for key in ("concurrent", "by_chunk", "pull", "hands_over_token",
                                                   "equal_tensor_parallel", "renews")]
    assert all(isinstance(answer, bool) for answer in answers)
    assert connector.lease > 0 and connector.start >= 0 and 0 < connector.share <= 1
    assert name in CONNECTORS and connector.alias.endswith("Connector")


def test_the_documented_connector_moves_kv(model, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.+?)```", page, re.DOTALL) if "class PushChunks" in code)
    (tmp_path / "push_chunks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    log = run(scenario(model, "push_chunks:PushChunks", workload=ALONE)).log
    moved = one(log, Transferred)
    assert moved.allocated < one(log, Admitted, engine=0).time < moved.began
    assert one(log, Admitted, engine=1).cached == 99


def test_chunks_that_wait_for_nothing_are_sent_alike_by_engines_ahead_of_the_clock(model, monkeypatch):
    """Both engines get requests, and know of each other's blocks, at the very same moments; a lease does not matter."""
    monkeypatch.setattr(Sglang, "hands_over_token", False)
    for lease in (inf, 2e-4):
        monkeypatch.setattr(Sglang, "lease", lease)
        table = scenario(model, "sglang", workload=requests(6, 5000, output={"kind": "uniform", "low": 1, "high": 10}),
                         options={"start": 0, "share": 1e-3}, seed=159, max_num_batched_tokens=32,
                         num_gpu_blocks_override=40, async_scheduling=False, enable_prefix_caching=False)
        ahead, stepped = ([event.time for event in run(table, skips).log.of(Finished)] for skips in (True, False))
        assert ahead == pytest.approx(stepped, rel=1e-9) and len(ahead) == 6


def test_what_arrives_while_a_repeated_batch_is_launched_is_reported_with_it(model):
    """The load of one request ends while the other's decodes repeat their schedule, ahead of the worker."""
    load = requests(6, 300, prompt=uniform(5, 120), output=uniform(1, 12))
    table = scenario(model, "tensorrt_llm", workload=load, seed=21, tensor_parallel_size=2, max_num_batched_tokens=256,
                     num_gpu_blocks_override=300) | {"engine": "trtllm-1.2"}
    ahead, stepped = ([event.time for event in run(table, skips).log.of(Finished)] for skips in (True, False))
    assert ahead == pytest.approx(stepped, rel=1e-9) and len(ahead) == 6


def test_nixl_reads_after_the_answer_and_computes_one_token_again(model):
    log = run(scenario(model, "nixl", workload=ALONE)).log
    received, moved = one(log, Received, engine=1), one(log, Transferred)
    assert one(log, Prefilled).time < received.time < moved.allocated < moved.began
    assert moved.began - moved.allocated >= Nixl().start
    assert one(log, Admitted, engine=1).cached == 99
    assert one(log, Emitted).engine == 1


def test_mooncake_writes_before_the_answer_comes(model):
    log = run(scenario(model, "mooncake", workload=ALONE)).log
    moved = one(log, Transferred)
    assert one(log, Received, engine=1).time < moved.allocated < one(log, Prefilled).time
    assert one(log, Admitted, engine=1).cached == 99


def test_a_request_waits_for_the_engine_that_prefills_it(model):
    """The decode engine takes blocks for the KV of a request that the prefill engine has not got yet."""
    pools = {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}, "both": {"role": "both"}}
    load = requests(6, 3000, prompt=uniform(5, 120), output=uniform(1, 12), prompt_logprobs=2)
    rows = run(scenario(model, "mooncake", pools=pools, workload=load, seed=47) | {"engine": "vllm-0.33"}).requests
    assert min(rows["queue_s"].to_pylist()) >= 0


def test_sglang_prefills_once_there_is_room_and_sends_chunk_by_chunk(model):
    log = run(scenario(model, "sglang", workload=ALONE)).log
    moved, prefill = one(log, Transferred), one(log, Admitted, engine=0)
    assert moved.allocated < prefill.time < moved.began
    assert moved.began < one(log, Prefilled).time + plugin("kv.transfer.connectors", Choice("sglang")).start
    assert one(log, Admitted, engine=1).cached == 100


def test_chunks_that_are_computed_before_the_first_may_leave_go_with_it(model):
    whole, chunks = (one(run(scenario(model, "sglang", workload=ALONE, options={"start": "1 s"},
                                      max_num_batched_tokens=tokens)).log, Transferred) for tokens in (128, 32))
    assert whole.alone == chunks.alone == pytest.approx(chunks.time - chunks.began)


@pytest.mark.parametrize("name", ["sglang", "tensorrt_llm"])
def test_a_token_that_is_handed_over_comes_with_the_first_step(model, name):
    log = run(scenario(model, name, workload=ALONE)).log
    first, others = log.of(Emitted)
    assert (first.engine, first.first, first.last) == (1, others.first, others.first)
    assert others.last - others.first == 3


def test_the_prompt_that_waits_for_room_is_prefilled_late_by_sglang_alone(model):
    """The decode engine has room for one prompt."""
    workload = requests(2, 5000, prompt={"kind": "fixed", "value": 200}, output={"kind": "fixed", "value": 30})
    pools = {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "serve": {"num_gpu_blocks_override": 17}}}
    for name, late in (("sglang", True), ("mooncake", False), ("nixl", False)):
        log = run(scenario(model, name, workload=workload, pools=pools)).log
        ends = min(event.time for event in log.of(Finished))
        second = [event.time for event in log.of(Prefilled)][1]
        assert (second > ends) == late


def test_what_the_decode_engine_has_cached_does_not_move(model):
    """Turns of a session go to the same engine, which keeps what it decoded."""
    workload = requests(4, 1, prompt={"kind": "fixed", "value": 100}, output={"kind": "fixed", "value": 20},
                        sessions={"turns": {"kind": "fixed", "value": 2}, "think": {"kind": "fixed", "value": "0 s"}})
    log = run(scenario(model, "nixl", workload=workload, enable_prefix_caching=True)).log
    prompts = {event.request.id: event.request.prompt for event in log.of(Arrived)}
    lacked = [(moved.tokens, prompts[moved.request_id]) for moved in log.of(Transferred)]
    assert any(tokens < prompt for tokens, prompt in lacked)


LATE = {"kv_lease_duration": "0.01 ms"}


def test_requests_fail_whose_lease_ends_before_the_decode_engine_has_them(model):
    log = run(scenario(model, "nixl", options=LATE)).log
    assert not any(log.of(Finished)) and not any(log.of(Transferred))
    assert {event.engine for event in log.of(Failed)} == {1}
    assert len([*log.of(Failed)]) == 20 == len([event for event in log.of(Released) if event.lease])


def test_a_lease_that_ends_before_the_decode_engine_is_ready_fails_the_load_then(model):
    """The decode engine, ahead of the clock, had allocated blocks for a later moment than the lease's end."""
    table = scenario(model, "mooncake", options={"abort_request_timeout": "0.5 ms"}, policy="recompute",
                     workload=requests(12, 5000), max_num_batched_tokens=32, num_gpu_blocks_override=20)
    ahead, stepped = ([event.time for event in run(table, skips).log.of(Finished)] for skips in (True, False))
    assert ahead == pytest.approx(stepped, rel=1e-9) and len(ahead) == 12


@pytest.mark.parametrize("cache", ["vllm", "sglang"])
def test_or_their_prompts_are_computed_again(model, cache):
    log = run(scenario(model, "nixl", options=LATE, policy="recompute", num_gpu_blocks_override=500,
                       prefix_cache=cache)).log
    assert len([*log.of(Finished)]) == 20 and not any(log.of(Failed))
    assert all(event.cached == 0 for event in log.of(Admitted))


def test_a_lease_does_not_end_while_the_decode_engine_has_the_request(model):
    """The second waits for room, much longer than the lease."""
    workload = requests(2, 5000, prompt={"kind": "fixed", "value": 200}, output={"kind": "fixed", "value": 30})
    pools = {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "serve": {"num_gpu_blocks_override": 17}}}
    log = run(scenario(model, "nixl", workload=workload, pools=pools, options={"kv_lease_duration": "5 ms"})).log
    waited = max(moved.time - answered.time for moved, answered in zip(log.of(Transferred), log.of(Prefilled),
                                                                       strict=True))
    assert waited > 0.02 and len([*log.of(Finished)]) == 2


def test_a_prefill_engine_that_is_busy_notices_that_a_request_may_begin(model):
    """It did not ask for the request before, as other prompts took all tokens of its steps."""
    workload = requests(10, 100, output={"kind": "uniform", "low": 1, "high": 10})
    pools = {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "serve": {"num_gpu_blocks_override": 20}}}
    table = scenario(model, "sglang", pools=pools, workload=workload, seed=0, max_num_batched_tokens=32,
                     max_num_seqs=2, num_gpu_blocks_override=20, async_scheduling=False, enable_prefix_caching=False)
    ahead, stepped = ([event.time for event in run(table, skips).log.of(Admitted)] for skips in (True, False))
    assert ahead == pytest.approx(stepped, rel=1e-9)

"""benchmarks.research.silicon: rows read and refused, scenarios made of them, waves left out, errors by hand."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research.silicon import NotRun, Question, chosen, find, scenario, validate
from benchmarks.research.silicon.rows import prompts, read, recipes, reference, waves
from benchmarks.research.silicon.runs import Answer, Latency, answer, mean, median_of, score, weights
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.scenario.hardware import engine_of, host_of
from ksim.specs.shard import QUANTIZATIONS
from tests.research.silicon_rows import write


@pytest.fixture
def row(tmp_path):
    def make(**changes):
        return find(write(tmp_path / "table.parquet", changes), str(changes.get("id", "one")))

    return make


def settings(row):
    return scenario(row).serve


def test_a_row_is_read_in_seconds(row):
    one = row()
    assert (one.ttft, one.tpot) == pytest.approx((0.040, 0.005))
    assert (one.prompt, one.output, one.concurrency, one.attention_dp) == (256, 16, 4, 1)


@pytest.mark.parametrize("column, value, said", [
    ("silicon_ttft_ms", 0.0, "above 0"), ("silicon_tpot_ms", -1.0, "above 0"), ("silicon_ttft_ms", None, "above 0"),
    ("silicon_tpot_ms", float("inf"), "above 0"), ("isl", 0, "from 1 on"), ("osl", -4, "from 1 on"),
    ("tp_size", 0, "from 1 on"), ("tp_size", None, "from 1 on"), ("concurrency", -1, "from 0 on"),
    ("mode", "both", "'agg' or 'disagg'"), ("isl", 1.5, "a whole number"),
])
def test_impossible_values_are_named(tmp_path, column, value, said):
    path = write(tmp_path / "bad.parquet", {}, {"id": "two", column: value})
    with pytest.raises(DataError, match=said) as error:
        read(path)
    assert str(path) in str(error.value) and "row two" in str(error.value) and repr(column) in str(error.value)


def test_missing_columns_and_duplicate_ids_are_refused(tmp_path):
    with pytest.raises(DataError, match="no column 'silicon_ttft_ms'"):
        read(write(tmp_path / "a.parquet", {}, without=("silicon_ttft_ms",)))
    with pytest.raises(DataError, match="row one: column 'id' names two rows"):
        read(write(tmp_path / "b.parquet", {}, {}))
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no row with id 'three'"):
        find(write(tmp_path / "c.parquet", {}), "three")


def test_flags_and_copies_may_be_missing(tmp_path):
    (one,) = read(write(tmp_path / "table.parquet", {}, without=("flags", "primary", "group", "precision")))
    assert one.primary and not one.flags and one.group == "one"


def test_the_scenario_of_an_inferencex_run(row):
    played = scenario(row())
    assert (played.model, played.gpu, played.engine) == ("llama-3.1-8b", "h100", "vllm-0.18")
    assert played.serve.quantization == "fp8" and played.serve.max_num_seqs == 4
    assert not played.serve.enable_prefix_caching
    made = played.workload.synthetic
    assert (made.prompt.low, made.prompt.high, made.output.high) == pytest.approx((0.8 * 256, 256, 16))
    assert made.count == 40 and played.workload.max_concurrency == 4


def test_engines_have_settings_of_their_own(row):
    sglang, trtllm = settings(row(backend="sglang")), settings(row(backend="trtllm"))
    assert sglang.sglang.chunked_prefill_size == 32768 and sglang.sglang.disable_radix_cache
    assert trtllm.admission.name == "reserve_output" and not trtllm.enable_chunked_prefill
    # A whole prompt of TensorRT-LLM that no step of ours would hold is cut.
    assert settings(row(backend="trtllm", isl=8192, osl=1024)).enable_chunked_prefill


def test_the_later_rule_wins(row):
    llama = {"model_path": "meta-llama/Llama-3.1-70B", "backend": "trtllm", "tp_size": 2}
    assert settings(row(**llama)).max_num_batched_tokens == 16384
    assert settings(row(**llama)).kv_cache_dtype == "fp8" and settings(row()).kv_cache_dtype == "auto"


def test_rules_name_the_rows_own_values(row):
    llama = {"model_path": "meta-llama/Llama-3.1-70B", "backend": "trtllm", "isl": 1024, "osl": 1024, "tp_size": 2}
    policy = settings(row(**llama)).scheduling_policy
    assert (policy.name, policy.options["budget"], policy.options["iterations"]) == ("batch_wait", 16384, 20)
    assert settings(row(**llama | {"tp_size": 8})).scheduling_policy.name == "fcfs"
    assert settings(row(**llama)).max_num_seqs == 16  # its graphs are padded beyond the four in flight


def test_rules_change_the_load(row):
    campaign = {"backend": "trtllm", "source": "nvidia_gap_analysis", "osl": 1000}
    played, other = scenario(row(**campaign)), scenario(row(**campaign, model_path="Qwen/Qwen3-32B"))
    assert (played.workload.max_concurrency, other.workload.max_concurrency) == (5, 4)
    assert (other.workload.synthetic.output.low, other.workload.synthetic.output.high) == pytest.approx((970, 1030))


def test_experts_may_be_parallel_and_sliced_at_once(row):
    mixed = settings(row(model_path="openai/gpt-oss-120b", precision="fp4", tp_size=4, moe_tp_size=2, moe_ep_size=2))
    assert mixed.enable_expert_parallel and mixed.expert_parallel_size == 2 and mixed.slices == 2


def test_sglang_looks_for_prompts_as_its_scripts_say(row):
    sglang = {"backend": "sglang", "model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "tp_size": 8}
    few, many = (settings(row(**sglang, concurrency=number)).sglang for number in (4, 64))
    assert (few.scheduler_recv_interval, many.scheduler_recv_interval) == (10, 30)
    assert settings(row(**sglang | {"system": "h200_sxm"})).sglang.scheduler_recv_interval == 1


@pytest.mark.parametrize("path, precision, system, quantization, kept", [
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8", "h200_sxm", "fp8_block", None),
    ("MiniMaxAI/MiniMax-M2.5", "fp8", "b200_sxm", "fp8_block", None),
    ("MiniMaxAI/MiniMax-M2.5", "fp4", "b200_sxm", "nvfp4", ("attention",)),
    ("openai/gpt-oss-120b", "fp4", "h200_sxm", "mxfp4", None),
    ("openai/gpt-oss-120b", "fp4", "b200_sxm", "mxfp4_mxfp8", None),
    ("moonshotai/Kimi-K2.5", "int4", "h200_sxm", "int4_w4a16", ("attention", "mlp", "shared_experts")),
    ("moonshotai/Kimi-K2.5", "fp4", "b200_sxm", "nvfp4", ("attention", "mlp", "shared_experts")),
    ("meta-llama/Llama-3.1-70B", "fp8", "h100_sxm", "fp8", None),
])
def test_number_formats_are_those_of_the_checkpoint(row, path, precision, system, quantization, kept):
    serve = settings(row(model_path=path, precision=precision, system=system))
    assert (serve.quantization, serve.unquantized) == (quantization, kept)


def test_gpus_that_the_table_counts_twice_are_counted_once(row):
    """Rows of MiniMax in FP8 that say four attention ranks of four GPUs each have four GPUs in all."""
    twice = {"model_path": "MiniMaxAI/MiniMax-M2.5", "tp_size": 4, "attention_dp_size": 4, "moe_ep_size": 16}
    serve = settings(row(**twice, system="h100_sxm", backend_version="0.18.0"))
    assert (serve.tensor_parallel_size, serve.data_parallel_size, serve.enable_expert_parallel) == (4, 1, True)
    sliced = settings(row(model_path="Qwen/Qwen3-235B-A22B-FP8", tp_size=2, moe_tp_size=4))
    assert (sliced.tensor_parallel_size, sliced.data_parallel_size, sliced.enable_expert_parallel) == (2, 2, False)


def test_all_reduces_are_fused_as_the_release_does(row):
    minimax = {"model_path": "MiniMaxAI/MiniMax-M2.5", "tp_size": 4}
    fused = [settings(row(**minimax, system=system, backend_version=version)).fuse_allreduce_rms
             for system, version in (("h200_sxm", "0.16.0"), ("b200_sxm", "0.17.0"), ("b300_sxm", "0.17.0"),
                                     ("b300_sxm", "0.19.0"))]
    assert fused == [False, True, False, True]


def test_old_vllm_does_not_schedule_ahead(row):
    gap = {"source": "nvidia_gap_analysis", "backend_version": "0.12.0"}
    assert not settings(row(**gap)).async_scheduling
    assert settings(row(**gap | {"backend_version": "0.15.1"})).async_scheduling
    assert scenario(row(**gap)).workload.synthetic.prompt.value == 256


@pytest.mark.parametrize("changes, reason", [
    ({"mode": "disagg", "tp_size": None}, "disaggregated"), ({"model_path": "a/No-Such-Model"}, "'no-such-model'"),
    ({"system": "tpu"}, "system 'tpu'"), ({"backend": "llamacpp"}, "backend 'llamacpp'"),
    ({"precision": "fp2"}, "precision 'fp2'"), ({"concurrency": None}, "concurrency"),
    ({"attention_dp_size": 0}, "attention_dp_size"), ({"tp_size": 16}, "several nodes"),
    ({"source": "hearsay"}, "source 'hearsay'"),
])
def test_rows_that_cannot_be_simulated_say_why(row, changes, reason):
    one = row(**changes)
    with pytest.raises(NotRun, match=reason):
        scenario(one)
    assert reason in answer(one).reason


def test_a_refused_scenario_is_a_reason(row):
    assert answer(row(model_path="meta-llama/Llama-3.1-70B", precision="bf16")).reason.startswith("DoesNotFit")


def test_everything_that_recipes_name_exists():
    known = recipes()
    for backend in known.backends.values():
        assert engine_of(backend.engine) and host_of(backend.host)
    with pytest.raises(UnknownName):
        host_of("no such host")
    assert {"none", "fp8"} <= QUANTIZATIONS.keys() & set(known.quantizations.values())


@given(st.integers(1, 1024), st.integers(1, 8192), st.integers(2, 20))
def test_simulated_waves_stand_for_those_left_out(concurrency, output, full):
    played = prompts(concurrency, output, full)
    assert played == concurrency * waves(concurrency, output, full) and played <= full * concurrency
    weight = weights(concurrency, played, full)
    assert weight.sum() == pytest.approx(full * concurrency)
    assert (weight[:concurrency] == 1).all() and (weight[-concurrency:] == 1).all()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1))
def test_weighted_statistics_equal_those_of_copies(pairs):
    values, weight = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    copies = np.repeat(values, weight.astype(int))
    assert mean(values, weight) == pytest.approx(copies.mean())
    assert median_of(values, weight) == np.sort(copies)[(len(copies) - 1) // 2]
    assert np.isnan(mean(np.full(1, np.nan), np.ones(1))) and np.isnan(median_of(np.full(1, np.nan), np.ones(1)))


def test_scores_have_errors_computed_by_hand(row):
    one = row()  # measured 40 and 5 ms
    answers = [Answer(evolve(one, id=name), "", Latency(ttft, 9.0), Latency(tpot, 0.004), 1.0)
               for name, ttft, tpot in (("a", 0.044, 0.006), ("b", 0.030, 0.005), ("c", 0.040, 0.007))]
    found = score(("x",), [*answers, Answer(one, "why")], "", {"a": (0.020, 0.005), "one": (1.0, 1.0)})
    assert (found.rows, found.answered, found.referred) == (4, 3, 1)
    assert (found.ttft.error.bias, found.ttft.error.median, found.ttft.error.mean) == pytest.approx((0, 10, 35 / 3))
    assert (found.tpot.error.bias, found.tpot.error.median, found.tpot.error.mean) == pytest.approx((20, 20, 20))
    assert (found.ttft.reference.bias, found.ttft.same.bias) == pytest.approx((-50, 10))
    assert score(("x",), answers, "median", {}).tpot.error.median == pytest.approx(20)
    empty = score(("x",), [Answer(one, "why")], "", {})
    assert empty.ttft.error is None and empty.ttft.measured is None


def test_questions_select_rows(tmp_path):
    path = write(tmp_path / "table.parquet", {}, {"id": "two", "group": "g2", "backend": "sglang"},
                 {"id": "copy", "primary": False}, {"id": "flagged", "flags": "queueing"},
                 {"id": "disagg", "mode": "disagg", "tp_size": None, "pp_size": None})

    def names(**changes):
        return [row.id for row in chosen(Question(path=path, **changes))]

    assert names() == names(model="llama-3.1") == ["one", "two"] and names(backend="sglang") == ["two"]
    assert names(all_rows=True) == ["one", "two", "copy", "flagged", "disagg"]
    assert len(names(limit=1)) == 1 and names(limit=1) == names(limit=1) and names(limit=9) == names()
    with pytest.raises(ConfigError, match="no row that is asked for"):
        names(system="b300_sxm")


def test_two_processes_give_the_same_answers(tmp_path):
    path = write(tmp_path / "table.parquet", {}, {"id": "two", "isl": 64}, {"id": "three", "precision": "fp2"})
    pq.write_table(pa.table({"id": ["one"], "aic_ttft_ms": [20.0], "aic_tpot_ms": [5.0]}),
                   tmp_path / "aiconfigurator_predictions.parquet")
    alone, both = (validate(Question(path=path, jobs=jobs)) for jobs in (1, 2))
    assert [evolve(each, took=0.0) for each in alone.answers] == [evolve(each, took=0.0) for each in both.answers]
    assert alone.reasons == {next(iter(both.reasons)): 1} and alone.whole == both.whole
    assert alone.whole.referred == 1 and alone.whole.ttft.reference.bias == pytest.approx(-50)
    assert all(0.01 < each.predicted("ttft") < 1 and 0.001 < each.predicted("tpot") < 0.1
               for each in alone.answers if not each.reason)


def test_malformed_references_are_refused(tmp_path):
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"id": ["one"], "my_ttft_ms": [0.0], "my_tpot_ms": [5.0]}), path)
    with pytest.raises(DataError, match="row one: a time is not above 0"):
        reference(path)
    with pytest.raises(DataError, match="expected the columns"):
        reference(write(tmp_path / "t.parquet", {}, without=("id",)))

"""Disaggregated rows of benchmarks.research.silicon: joined with worker counts, made into pools, refused by name."""

from pathlib import Path

import pytest
from attrs import evolve

from benchmarks.research.silicon import NotRun, Question, chosen, find, scenario, workers
from benchmarks.research.silicon.rows import read, recipes
from benchmarks.research.silicon.runs import Answer, Latency, batch, score, splits, table_of, tier_of
from ksim.foundation.errors import ConfigError, DataError
from tests.research.silicon_rows import join, write

SHARED = Path(__file__).parents[3] / "shared/data"
#: A disaggregated row.
ROW = {"mode": "disagg", "tp_size": None, "pp_size": None, "model_path": "deepseek-ai/DeepSeek-R1", "system": "gb200",
       "backend": "trtllm", "precision": "fp4", "isl": 1024, "osl": 1024, "concurrency": 192}


@pytest.fixture
def row(tmp_path):
    def make(counts=(), **changes):
        path = write(tmp_path / "table.parquet", ROW | changes)
        return find(path, "one", join(tmp_path / "counts.csv", dict(counts)))

    return make


def pools(row):
    return table_of(row)["pools"]


def test_workers_become_pools(row):
    table = table_of(row())
    prefill, decode = table["pools"]["prefill"], table["pools"]["decode"]
    assert (prefill["role"], prefill["replicas"], decode["role"], decode["replicas"]) == ("prefill", 1, "decode", 4)
    assert prefill["serve"]["data_parallel_size"] == 4 and "tensor_parallel_size" not in prefill["serve"]
    assert prefill["serve"]["enable_expert_parallel"] and not prefill["serve"]["async_scheduling"]
    assert decode["serve"]["tensor_parallel_size"] == 8 and decode["serve"]["enable_expert_parallel"]
    assert decode["serve"]["max_num_seqs"] == 32  # the batch in the name of its recipe
    assert table["serve"]["kv_transfer_config"] == {"kv_connector": "tensorrt_llm"}


def test_the_load_is_that_of_whole_engines(row):
    made = table_of(row())["workload"]
    assert made["max_concurrency"] == 192
    assert made["synthetic"]["prompt"] == {"kind": "uniform", "low": 0.8 * 1024, "high": 1024}
    assert made["synthetic"]["count"] % 192 == 0 and made["synthetic"]["arrivals"] == {"process": "burst"}


def test_the_columns_of_the_measurements_do_not_count(row):
    """Attention data parallelism and the experts of a disaggregated row are wrong there."""
    assert pools(row(attention_dp_size=1, moe_ep_size=64, tp_size=3, pp_size=2)) == pools(row())


@pytest.mark.parametrize("counts, serve", [
    ({"decode_dp_attention": True}, {"data_parallel_size": 8, "enable_expert_parallel": True}),
    ({"decode_ep": 1}, {"tensor_parallel_size": 8}), ({"decode_ep": 0}, {"tensor_parallel_size": 8}),
    ({"decode_ep": 2}, {"tensor_parallel_size": 8, "enable_expert_parallel": True, "expert_parallel_size": 2}),
    ({"decode_dp_attention": True, "decode_ep": 1}, {"data_parallel_size": 8}),
])
def test_gpus_share_the_work_as_the_counts_say(row, counts, serve):
    decode = pools(row(counts))["decode"]["serve"]
    kinds = ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel", "expert_parallel_size")
    assert {key: decode[key] for key in kinds if key in decode} == serve


def test_engines_have_pools_of_their_own(row):
    eight = {"prefill_gpus_per_worker": 8, "prefill_ep": 8}
    sglang = pools(row(eight, backend="sglang", precision="fp8"))
    assert sglang["prefill"]["serve"]["max_num_batched_tokens"] == 131072 // 8  # eight ranks share a chunk
    assert sglang["prefill"]["serve"]["all2all_backend"] == "deepep_high_throughput"
    assert sglang["decode"]["serve"]["max_num_seqs"] == 96  # twice its share of 192, to the next multiple of 16
    tensor = pools(row({"prefill_dp_attention": False, "prefill_ep": 1}, backend="sglang"))
    assert tensor["prefill"]["serve"]["max_num_batched_tokens"] == 131072
    assert table_of(row(backend="vllm"))["serve"]["kv_transfer_config"] == {"kv_connector": "NixlConnector"}


@pytest.mark.parametrize("changes, sides", [
    ({"system": "b200_sxm", "precision": "fp8"}, (1, 1)),  # unlike scripts for one node
    ({"precision": "fp8", "counts": {"decode_gpus_per_worker": 4, "decode_ep": 1, "decode_workers": 1,
                                     "prefill_dp_attention": False, "prefill_ep": 1}}, (10, 10)),
])
def test_sglang_looks_for_requests_as_often_as_its_recipes_say(row, changes, sides):
    counts = changes.pop("counts", {})
    made = scenario(row(counts, backend="sglang", **changes))
    assert tuple(made.pools[side].serve["sglang"].get("scheduler_recv_interval", 1)
                 for side in ("prefill", "decode")) == sides


@pytest.mark.parametrize("method, host", [("none", "sglang-cudnn"), ("mtp", "sglang-disaggregated")])
def test_where_no_recipe_chooses_a_library_for_fp4_it_is_cudnn(row, method, host):
    table = table_of(row({"spec_method": method}, backend="sglang", system="b200_sxm"))
    assert table["host"] == host and table["pair_router"] == {"name": "each_side", "prefill": "random"}
    assert table_of(row(backend="sglang"))["host"] == "sglang-disaggregated"


def test_a_deployment_has_the_nodes_that_its_engines_need(row):
    hgx = {"prefill_workers": 3, "prefill_gpus_per_worker": 4, "decode_workers": 2, "decode_gpus_per_worker": 16}
    assert table_of(row(hgx, system="h200_sxm", precision="fp8"))["nodes"] == 2 + 4
    assert "nodes" not in table_of(row())  # a rack has room for all


@pytest.mark.parametrize("counts, concurrency, expected", [
    ({}, 192, 32), ({}, 666, 128), ({}, 7, 1), ({"decode_workers": 1, "decode_dp_attention": True}, 666, 64),
    ({"decode_workers": 1}, 1, 1),
])
def test_batches_are_those_of_recipes_or_what_the_concurrency_fills(row, counts, concurrency, expected):
    assert batch(row(counts, concurrency=concurrency)) == expected


def test_every_recipe_has_a_batch_in_its_name():
    for known in splits().batches:
        assert known.names and all("_batch" in name and runs for name, runs in known.names.items())
        assert {"_mtp" in name for name in known.names} == {"speculation" in known.when}


@pytest.mark.parametrize("counts, reason", [
    ({"spec_method": None}, "speculatively is not known"),
    ({"decode_workers": None}, "numbers of workers are not known"), ({"id": "another"}, "numbers of workers"),
])
def test_rows_that_cannot_be_split_say_why(row, counts, reason):
    with pytest.raises(NotRun, match=reason):
        scenario(row(counts))


@pytest.mark.parametrize("counts, drafts", [
    ({}, 3), ({"decode_workers": 1, "decode_dp_attention": True}, 3),
    ({"decode_workers": 1, "decode_dp_attention": True, "decode_gpus_per_worker": 4, "decode_ep": 4}, 3),
])
def test_runs_draft_as_their_recipes_say(row, counts, drafts):
    table = table_of(row({"spec_method": "mtp", **counts}))
    config = table["serve"]["speculative_config"]
    assert (config["method"], config["num_speculative_tokens"]) == ("mtp", drafts)
    assert config["synthetic_acceptance_rates"] == [*recipes().acceptances["deepseek-v3"].rates[:drafts]]


@pytest.mark.parametrize("counts, changes, expected", [
    ({}, {"concurrency": 48}, (8, 3)), ({"spec_method": "none"}, {"concurrency": 48}, (32, None)),
    ({"prefill_workers": 7, "decode_workers": 1, "decode_gpus_per_worker": 16, "decode_ep": 16,
      "decode_dp_attention": True}, {"concurrency": 1229, "isl": 8192}, (64, 1)),
    ({"decode_workers": 2, "decode_dp_attention": True},
     {"concurrency": 1600, "system": "b200_sxm", "precision": "fp8"}, (768, 2)),
])
def test_recipes_that_draft_have_batches_of_their_own_and_say_how_many_tokens(row, counts, changes, expected):
    one = row({"spec_method": "mtp", **counts}, **changes)
    config = table_of(one)["serve"].get("speculative_config", {})
    assert (batch(one), config.get("num_speculative_tokens")) == expected


def test_busy_ranks_draft_less_where_no_recipe_is_known(row):
    counts = {"spec_method": "mtp", "decode_workers": 1, "decode_dp_attention": True}
    assert table_of(row(counts, concurrency=8 * 128))["serve"]["speculative_config"]["num_speculative_tokens"] == 1


def test_without_worker_counts_rows_are_refused_with_that_reason(tmp_path):
    (alone,) = read(write(tmp_path / "table.parquet", ROW))
    with pytest.raises(NotRun, match=r"no table of worker counts \(silicon_join.csv\)"):
        scenario(alone)


@pytest.mark.parametrize("changes, reason", [
    ({"system": "tpu"}, "system 'tpu'"), ({"backend": "llamacpp"}, "backend 'llamacpp'"),
    ({"concurrency": None}, "concurrency"), ({"model_path": "a/None-Such"}, "no model"),
])
def test_rows_that_no_engine_runs_say_why(row, changes, reason):
    with pytest.raises(NotRun, match=reason):
        scenario(row(**changes))


def test_impossible_counts_are_named(tmp_path):
    with pytest.raises(DataError, match="line 2: column 'decode_workers' is 1.5; expected a whole number from 1 on"):
        workers.read(join(tmp_path / "a.csv", {"decode_workers": 1.5}))
    (tmp_path / "b.csv").write_text("id,tier\none,recipe\n")
    with pytest.raises(DataError, match="no column 'spec_method'"):
        workers.read(tmp_path / "b.csv")


@pytest.mark.parametrize("place", ["silicon/silicon_join.csv", "cluster/silicon_join.csv"])
def test_counts_are_found_beside_the_measurements(tmp_path, place):
    (tmp_path / "silicon").mkdir()
    (tmp_path / "cluster").mkdir()
    path = write(tmp_path / "silicon/table.parquet", ROW, ROW | {"id": "flagged", "flags": "repeats_disagree_tpot"},
                 ROW | {"id": "copy", "primary": False}, {"id": "whole"})
    assert [row.id for row in chosen(Question(path=path))] == ["whole"]
    with pytest.raises(ConfigError, match="no row"):
        chosen(Question(path=path, backend="trtllm"))
    assert len(chosen(Question(path=path, mode="disagg"))) == 2
    join(tmp_path / place, {})
    rows = chosen(Question(path=path))
    assert [row.id for row in rows] == ["one", "flagged", "whole"]
    assert rows[0].split.tier == "recipe" and rows[1].split == workers.UNKNOWN and rows[2].split is None
    assert [row.id for row in chosen(Question(path=path, mode="agg"))] == ["whole"]


def test_rates_follow_from_latencies(row):
    one = evolve(row(), ttft=0.5, tpot=0.01)
    answer = Answer(one, "", Latency(1.0, 9.0), Latency(0.01, 9.0), 1.0)
    output = 0.9 * 1024
    assert answer.rates == pytest.approx((192 * output / (1.0 + 0.01 * (output - 1)) / 36,
                                          192 * output / (0.5 + 0.01 * (output - 1)) / 36))
    found = score(("x",), [answer], "", {})
    predicted, measured = answer.rates
    assert found.throughput.error.bias == pytest.approx(100 * (predicted / measured - 1))
    assert tier_of(answer) == ("trtllm", "gb200", "recipe")
    whole = Answer(evolve(one, mode="agg", split=None), "", answer.ttft, answer.tpot, 1.0)
    assert whole.rates is None and score(("x",), [whole], "", {}).throughput.error is None


@pytest.mark.skipif(not (SHARED / "cluster/silicon_join.csv").exists(), reason="the measurements are not here")
def test_the_measured_rows_are_answered_or_refused_as_their_table_says():
    rows = chosen(Question(path=SHARED / "silicon/silicon_dev.parquet", mode="disagg"))
    reasons = []
    for one in rows:
        try:
            table_of(one)
        except NotRun as why:
            reasons.append(str(why))
    assert (len(rows), len(rows) - len(reasons)) == (469, 324)
    assert sum("numbers of workers" in reason for reason in reasons) == 124
    assert sum("speculatively" in reason for reason in reasons) == 21

"""Public deployments of wide expert parallelism beside priced steps."""

from pathlib import Path

import pytest
from attrs import evolve

from benchmarks.research import wide_ep
from benchmarks.research.wide_ep import EXCHANGES, Recipe, Result
from ksim.flow.batch import Batch
from ksim.flow.costs import Costs
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from tests.research.command import research

TABLE = Path(__file__).parents[3] / "shared" / "data" / "cluster" / "large_ep.csv"
CASES = {case.name: case for case in Recipe.read().cases}
ROWS = """who,gpu,nodes,prefill_gpus,decode_gpus,workload,out_tok_s_per_node,in_tok_s_per_node,conditions
a,H100,2,16,,prompts of 1K,,8000,"2 nodes; 9,000 with experts balanced"
same,same,2,16,,prompts of 2K,,7200,
b,GB200,3,,12,same,1234,,"2,345 tokens/s a GPU"
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "large_ep.csv"
    path.write_text(ROWS)
    return path


def test_same_is_what_the_row_above_says(table):
    rows = [*wide_ep._rows(table)]
    assert [(row["who"], row["gpu"], row["workload"]) for row in rows] == [
        ("a", "H100", "prompts of 1K"), ("a", "H100", "prompts of 2K"), ("b", "GB200", "prompts of 2K")]


def test_a_row_that_is_missing_is_named(table):
    rows = [*wide_ep._rows(table)]
    assert wide_ep._find(rows, {"gpu": "H100", "workload": "prompts of 2K"}, table)["in_tok_s_per_node"] == "7200"
    with pytest.raises(DataError, match="large_ep.csv: has no row with gpu = 'H20', nodes = '2'"):
        wide_ep._find(rows, {"gpu": "H20", "nodes": "2"}, table)


def test_measured_tokens_are_those_of_one_gpu(table):
    first, second, third = wide_ep._rows(table)
    case = CASES["SGLang, prefill EP32, 1K"]
    assert wide_ep._measured(case, first) == 8000 / 8 and wide_ep._measured(case, second) == 7200 / 8
    balanced = CASES["the same, experts balanced by design"]
    with pytest.raises(ConfigError, match=r"wide_ep.toml: the same, experts balanced by design: .* is not in ''"):
        wide_ep._measured(balanced, second)
    assert wide_ep._measured(CASES["SGLang, GB200, decode EP48, NVFP4"], third) == 2345
    assert wide_ep._measured(CASES["SGLang, decode EP72"], third) == 1234 / 4


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_deployed(name):
    gpu = CASES[name].row["gpu"].lower()
    serve = Deployment.of(Recipe.read().scenario(CASES[name], gpu)).serve
    assert serve.data_parallel_size > 1 and serve.enable_expert_parallel and "deepep" in serve.all2all_backend


def test_a_step_is_told_by_its_parts_and_as_it_would_be_otherwise():
    kernels = [KernelCost(label, family, Costs.of(seconds=seconds)) for label, family, seconds in (
        ("dispatch", EXCHANGES[0], 0.3), ("experts_down", "grouped_gemm", 0.5), ("attention_prompts", "mla", 0.2))]
    step = StepCost((PricedBlock.of(kernels),), (), Costs.of(seconds=1.0), "eager", 0.0)
    case = CASES["SGLang, prefill EP32, 1K"]
    result = Result(case, case.batch.tokens / 2.0, step, 2.0, 4.0, "")
    assert result.parts == {"experts": 0.5, "exchange": 0.3, "attention": 0.2}
    assert (result.ratio, result.ratio_of(result.undivided), result.ratio_of(result.drawn)) == (2.0, 1.0, 0.5)
    assert result.exchanged == 0.3


def test_drawn_steps_of_equal_ranks_are_those_of_expected_values():
    """Of 4 ranks with many rows each, the fullest has hardly more than the mean."""
    table = {"model": "qwen3-30b-a3b", "gpu": "h200", "workload": ANY_WORKLOAD, "serve": {
        "data_parallel_size": 4, "enable_expert_parallel": True, "all2all_backend": "deepep_high_throughput"}}
    batch = Batch.of(*[(1000, 0)] * 8)
    (timer,) = Deployment.of(Scenario.of(table)).timers()
    expected = timer.step_cost(batch, [batch.tokens] * 4).seconds
    assert wide_ep.drawn_seconds(Scenario.of({**table, "detail": "rank"}), batch) == pytest.approx(expected, rel=0.02)


@pytest.mark.skipif(not TABLE.exists(), reason="the table of deployments is not here")
def test_deployments_are_compared_and_misses_shown(tmp_path, monkeypatch):
    whole = Recipe.read()
    names = "SGLang, decode EP72", "SGLang, GB200, prefill EP2, NVFP4"
    some = evolve(whole, cases=tuple(CASES[name] for name in names))
    monkeypatch.setattr(Recipe, "read", lambda: some)
    out = research("wide_ep", TABLE, "--markdown", folder=tmp_path)
    assert "| SGLang, decode EP72 | 2,785 |" in out
    assert "within 20%" in out

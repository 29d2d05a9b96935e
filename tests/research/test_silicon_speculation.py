"""Public rows with speculative decoding: found by a table of deployments, drafted by recipes."""

from itertools import pairwise

import pytest

from benchmarks.research.silicon import NotRun, Question, chosen, find, scenario, workers
from benchmarks.research.silicon.rows import recipes
from ksim.foundation.errors import DataError
from tests.research.silicon_rows import COUNTS, WHOLE, join, write

#: An aggregated row whose own columns have the wrong parallelism.
ROW = {"model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "backend": "trtllm", "isl": 1024, "osl": 1024,
       "tp_size": 4, "backend_version": "1.2.0"}


@pytest.fixture
def row(tmp_path):
    def make(deployment=(), **changes):
        path = write(tmp_path / "table.parquet", ROW | changes)
        join(tmp_path / workers.WHOLE, dict(deployment), of=WHOLE)
        return find(path, "one", join(tmp_path / "silicon_join.csv", {"id": "other"}, of=COUNTS))

    return make


@pytest.mark.parametrize("deployment, changes, drafts, ranks", [
    ({}, {}, 3, (8, 1)), ({"dp_attention": True, "ep": 8}, {}, 1, (1, 8)), ({}, {"backend": "sglang"}, 2, (8, 1)),
    ({"tp": 4}, {"backend": "sglang", "model_path": "Qwen/Qwen3.5-397B-A17B-FP8"}, 3, (4, 1)),
])
def test_a_row_drafts_as_its_script_says_on_the_gpus_of_the_table(row, deployment, changes, drafts, ranks):
    serve = scenario(row(deployment, **changes)).serve
    assert serve.speculative_config.method == "mtp" and serve.speculative_config.num_speculative_tokens == drafts
    assert (serve.tensor_parallel_size, serve.data_parallel_size) == ranks


def test_rows_without_speculation_keep_their_columns(row):
    serve = scenario(row({"spec_method": "none"})).serve
    assert serve.speculative_config is None and serve.tensor_parallel_size == 4


@pytest.mark.parametrize("changes, reason", [
    ({"backend": "vllm"}, "how many tokens vllm drafts"),
    ({"model_path": "nvidia/Llama-3.1-70B"}, "how many drafts llama-3.1-70b accepts is not known"),
])
def test_a_row_of_which_too_little_is_known_says_what(row, changes, reason):
    with pytest.raises(NotRun, match=reason):
        scenario(row(**changes))


def test_flags_leave_a_row_with_known_speculation_in(tmp_path):
    """They say that rows of one setting differ, which is what speculation does."""
    path = write(tmp_path / "table.parquet", ROW | {"flags": "repeats_disagree_tpot"})
    join(tmp_path / "silicon_join.csv", {}, of=COUNTS)
    join(tmp_path / workers.WHOLE, {}, of=WHOLE)
    assert len(chosen(Question(path=path))) == 1


def test_acceptances_are_chances_that_fall():
    for acceptance in recipes().acceptances.values():
        assert acceptance.text and all(1 >= before >= after >= 0 for before, after in pairwise(acceptance.rates))


def test_a_table_without_a_column_says_which(tmp_path):
    (tmp_path / "a.csv").write_text("id,tp\none,8\n")
    with pytest.raises(DataError, match="no column 'spec_method'"):
        workers.read_whole(tmp_path / "a.csv")

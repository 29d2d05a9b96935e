"""Files of recorded runs: what is wrong with them is said, and where."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.research.serving import recordings
from ksim.foundation.errors import DataError
from tests.research.recorded_engines import record, run, sent


@pytest.fixture
def engine(tmp_path):
    """A good recording's engine file."""
    return record(tmp_path, [run("poisson-1", sent((100, 5), (50, 3), every=0.1))])


def change(path, column, values):
    """Put *values* in a column, or take it away."""
    table = pq.read_table(path)
    place = table.column_names.index(column)
    table = table.remove_column(place)
    pq.write_table(table if values is None else table.add_column(place, column, pa.array(values)), path)


def test_runs_keep_their_requests_in_the_order_of_sending(engine):
    change(engine.with_name("requests_tiny.parquet"), "sent_s", [0.5, 0.2])
    (found,) = recordings.read(engine).runs
    assert [(request.index, request.sent) for request in found.requests] == [(1, 0.2), (0, 0.5)]
    assert found.wall and found.joules and len(found.steps) > 3


@pytest.mark.parametrize(("column", "values", "said"), [
    ("ttft_s", None, r"requests_tiny\.parquet: has no column ttft_s; it has run, index"),
    ("isl", [100, 0], r"row 1 \(run 'poisson-1'\): isl is 0; expected a number of at least 1"),
    ("ttft_s", [-0.1, 0.2], r"row 0 \(run 'poisson-1'\): ttft_s is -0\.1; expected a number of at least 0"),
    ("ttft_s", [float("nan"), 0.2], "ttft_s is nan"),
    ("ttft_s", [90.0, 0.2], r"row 0 .*e2e_s \(.*\) is less than ttft_s \(90\)"),
])
def test_impossible_requests_are_named(engine, column, values, said):
    change(engine.with_name("requests_tiny.parquet"), column, values)
    with pytest.raises(DataError, match=said):
        recordings.read(engine)


def test_steps_that_go_back_in_time_are_named(engine):
    path = engine.with_name("steps_tiny.parquet")
    starts = pq.read_table(path)["schedule_start_s"].to_pylist()
    change(path, "schedule_start_s", [starts[0], starts[2], starts[1], *starts[3:]])
    with pytest.raises(DataError, match=r"steps_tiny\.parquet: row 2 .* is before that of the row above"):
        recordings.read(engine)


def test_malformed_prompt_chunks_are_named(engine):
    path = engine.with_name("steps_tiny.parquet")
    change(path, "prefills", ["[[1]]"] * pq.read_table(path).num_rows)
    with pytest.raises(DataError, match=r"prefills is '\[\[1\]\]'; expected a list such as"):
        recordings.read(engine)


def test_steps_may_be_missing(engine):
    engine.with_name("steps_tiny.parquet").unlink()
    assert recordings.read(engine).runs[0].steps == ()


@pytest.mark.parametrize(("key", "value", "said"), [
    ("config", None, "'config' is missing or not a Hugging Face"),
    ("num_gpu_blocks", "many", "'num_gpu_blocks' is missing or not a whole number"),
])
def test_an_engine_file_needs_its_parts(engine, key, value, said):
    engine.write_text(json.dumps({**json.loads(engine.read_text()), key: value}))
    with pytest.raises(DataError, match=said):
        recordings.read(engine)


def test_a_run_without_duration_is_refused(engine):
    table = json.loads(engine.read_text())
    table["runs"][0]["wall_s"] = 0
    engine.write_text(json.dumps(table))
    with pytest.raises(DataError, match="run 'poisson-1': wall_s is 0; expected a positive number"):
        recordings.read(engine)


def test_a_folder_without_recordings_says_what_is_expected(tmp_path):
    with pytest.raises(DataError, match=r"has no engine_\*\.json; expected"):
        recordings.find(tmp_path)

"""The directory of a study: its table, and how it goes on after whatever ended it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ksim.foundation.errors import ConfigError, DataError
from ksim.study.directory import StudyDirectory, StudyHead
from ksim.study.rows import FAILED, NOT_RUN, OK, RunRow, from_table, to_table

COMMAND, SCENARIO = {"over": ["seed=1,2"], "repeat": 1}, 'model = "m"\n'
VALUES = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text(),
                   st.lists(st.integers(0, 3)))


def row(point, replication=0, status=OK, **more):
    numbers = {"duration": 1.5 * point, "completed": point, "saturated": False, "cost": None} if status == OK else {}
    return RunRow(point, replication, 7, {"gpu": "h200", "serve.max_num_seqs": point}, status, numbers=numbers, **more)


def create(path, **more):
    return StudyDirectory.create(path, "sweep", "a title", COMMAND, SCENARIO, **more)


def resume(path, kind="sweep", command=COMMAND, scenario=SCENARIO):
    return StudyDirectory.open(path, kind, command, scenario)


@given(st.permutations([row(point, replication) for point in (1, 2, 3) for replication in (0, 1)]))
def test_the_table_does_not_depend_on_the_order_in_which_runs_ended(rows):
    table = to_table(rows)
    assert table.equals(to_table(sorted(rows, key=lambda row: row.key)), check_metadata=True)
    assert table.column_names == ["point", "replication", "seed", "gpu", "serve.max_num_seqs", "status", "problem",
                                  "unserved", "duration", "completed", "saturated", "cost", "settings", "scenario"]
    assert from_table(table) == sorted(rows, key=lambda row: row.key)


@given(st.lists(st.fixed_dictionaries({"seed": st.integers(0, 9), "a.b": VALUES, "oracle": st.one_of(
    VALUES, st.fixed_dictionaries({"name": st.text(), "x": VALUES}))}), min_size=1, max_size=4))
def test_rows_of_any_settings_come_back_from_lines_and_from_the_table(settings):
    rows = [RunRow(point, 0, values["seed"], values, FAILED, "a\nproblem") for point, values in enumerate(settings, 1)]
    assert [RunRow.parse(row.line) for row in rows] == rows
    assert from_table(to_table(rows)) == rows


def test_a_finished_study_is_read_as_it_was_written(tmp_path):
    rows = [row(2, scenario="x = 1\n"), row(1, 1, unserved="1 rejected"), row(1),
            row(3, status=FAILED, problem="no")]
    with create(tmp_path / "out") as study:
        for each in rows:
            study.add(each)
        assert [*StudyDirectory.read(tmp_path / "out").rows] == rows  # while it goes on
        study.finish()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["runs.parquet", "scenario.toml", "study.json"]
    found = StudyDirectory.read(tmp_path / "out")
    assert found.rows == sorted(rows, key=lambda row: row.key)
    assert (found.head, found.scenario) == (StudyHead("sweep", "a title", COMMAND), SCENARIO)
    assert found.table.equals(parquet.read_table(tmp_path / "out" / "runs.parquet"), check_metadata=True)


def test_what_a_killed_process_was_writing_is_ignored_and_written_again(tmp_path):
    with create(tmp_path / "whole") as whole, create(tmp_path / "out") as study:
        for number in (1, 2, 3):
            whole.add(row(number, problem="ü"))
        whole.finish()
        study.add(row(2, problem="ü"))
    lines = tmp_path / "out" / "runs.jsonl"
    torn = row(1, problem="ü").line.encode()
    for length in (1, torn.index("ü".encode()) + 1, len(torn) - 1):
        lines.write_bytes(lines.read_bytes()[:lines.read_bytes().find(b"\n") + 1] + torn[:length])
        assert [each.point for each in StudyDirectory.read(tmp_path / "out").rows] == [2]
        with resume(tmp_path / "out") as study:
            assert [*study.rows] == [(2, 0)]
    with resume(tmp_path / "out") as study:
        study.add(row(3, problem="ü"))
        study.finish(left=[RunRow(1, 0, 7, {"gpu": "h200", "serve.max_num_seqs": 1})])
    assert [each["status"] for each in parquet.read_table(tmp_path / "out" / "runs.parquet").to_pylist()] == [
        NOT_RUN, OK, OK]
    with resume(tmp_path / "out") as study:
        assert [*study.rows] == [(2, 0), (3, 0)]
        study.add(row(1, problem="ü"))
        study.finish()
    names = ("runs.parquet", "study.json", "scenario.toml")
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == [
        (tmp_path / "whole" / name).read_bytes() for name in names]


def test_a_complete_study_that_is_resumed_stays_as_it_is(tmp_path):
    with create(tmp_path / "out") as study:
        study.add(row(1))
        study.finish()
    before = (tmp_path / "out" / "runs.parquet").read_bytes()
    with resume(tmp_path / "out") as study:
        assert study.rows == {(1, 0): row(1)}
        study.finish()
    assert (tmp_path / "out" / "runs.parquet").read_bytes() == before


@pytest.mark.parametrize(("how", "message"), [
    ({"kind": "tune"}, "it is a sweep, not a tune"),
    ({"command": {**COMMAND, "repeat": 3}}, "its repeat was 1, and now is 3"),
    ({"command": {"over": ["seed=1,2"]}}, "its repeat was 1, and now is not given"),
    ({"scenario": 'model = "n"\n'}, 'in its scenario, model was "m", and now is "n"'),
])
def test_another_study_is_not_resumed(how, message, tmp_path):
    with create(tmp_path / "out"):
        pass
    with pytest.raises(ConfigError, match=f"cannot be resumed: {message}"):
        resume(tmp_path / "out", **how)


def test_studies_of_other_versions_and_formats_are_refused(tmp_path):
    with create(tmp_path / "out"):
        pass
    head = tmp_path / "out" / "study.json"
    said = json.loads(head.read_text())
    head.write_text(json.dumps({**said, "ksim": "0.0.1"}))
    with pytest.raises(ConfigError, match=r"ksim 0\.0\.1 began it, and this is ksim"):
        resume(tmp_path / "out")
    assert StudyDirectory.read(tmp_path / "out").head.ksim == "0.0.1"
    head.write_text(json.dumps({**said, "format": 2}))
    for read in (StudyDirectory.read, resume):
        with pytest.raises(ConfigError, match="is a study of format 2; ksim .* reads format 1"):
            read(tmp_path / "out")
    for text in ("{", "[]", "{}", '{"kind": "sweep"}'):
        head.write_text(text)
        with pytest.raises(DataError, match="study.json: is damaged"):
            StudyDirectory.read(tmp_path / "out")


def test_what_is_no_study_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        with pytest.raises(ConfigError, match="is no study"):
            StudyDirectory.read(tmp_path / name)
    with create(tmp_path / "out") as study:
        study.add(row(1))
    (tmp_path / "out" / "runs.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"runs\.jsonl:1: is not a run of a study"):
        StudyDirectory.read(tmp_path / "out")
    (tmp_path / "out" / "runs.jsonl").unlink()
    (tmp_path / "out" / "runs.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read as the runs of a study"):
        StudyDirectory.read(tmp_path / "out")


def test_an_earlier_study_is_replaced_by_force_only_and_never_while_it_goes_on(tmp_path):
    with create(tmp_path / "out") as study:
        study.add(row(1))
        for another in (resume, lambda path: create(path, force=True)):
            with pytest.raises(ConfigError, match="another process is at work"):
                another(tmp_path / "out")
    with pytest.raises(ConfigError, match="--resume goes on with it, --force replaces it"):
        create(tmp_path / "out")
    with create(tmp_path / "out", force=True) as study:
        study.finish([row(1, status=NOT_RUN)])
    with create(tmp_path / "out"):  # nothing is lost
        pass
    assert StudyDirectory.read(tmp_path / "out").rows == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(ConfigError, match="is not the directory of an earlier run"):
        create(tmp_path / "other", force=True)

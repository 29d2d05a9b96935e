"""Measured start-ups beside ksim's: what of a table is read, and what is said of it."""

import json
from pathlib import Path

import pytest

from ksim.foundation.errors import DataError
from ksim.validation.startups import by_phase, validate
from tests.cli.command import ksim

HEADER = "source,run,model,gpu,tp,engine,state,phase,parent,seconds,statistic,note\n"
START = "upb,node7-model_size,llama2-7b-hf,H100 NVL,1,vLLM 0.10.1.1,warm"
MEASURED = Path(__file__).parents[3] / "shared" / "data" / "cluster" / "startup.csv"


def table(tmp_path, *rows: str) -> Path:
    path = tmp_path / "startup.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_rows_are_within_15_percent_or_bad(tmp_path):
    rows = validate(table(
        tmp_path, f"{START},framework_bootstrap,total,7.5,,", f"{START},load_weights,model_loading,1.2,,",
        f"{START},p2p_access_check,total,60,,", f"{START},dynamo_transform_time,init_engine,4.9,,",
        f"{START},total,,12.4,,"))
    assert [row.good for row in rows] == [True, False, False, True, True]
    assert rows[2].predicted is None and rows[1].error == pytest.approx(0.59, abs=0.02)
    # The total is the sum of those phases that the table has, as its source counts.
    assert rows[4].predicted == pytest.approx(sum(rows[place].predicted for place in (0, 1, 3)))
    every = by_phase(rows)[-1]
    assert (every.phase, every.rows, every.known, every.within) == ("all", 5, 4, 3)


def test_a_cold_start_reads_its_weights_where_its_own_seconds_say(tmp_path):
    cold = START.replace("warm", "cold").replace("model_size", "model_size-uncached")
    slow, fast = (validate(table(tmp_path, f"{cold},load_weights,model_loading,{seconds},,"))[0].predicted
                  for seconds in (18.6, 2.0))
    assert slow == pytest.approx(18.3, rel=0.02) and fast == pytest.approx(1.9, rel=0.02)


def test_a_range_counts_by_its_middle(tmp_path):
    start = "llmd_wva,wva,Qwen3-32B,not stated,,vLLM,replica added"
    assert validate(table(tmp_path, f"{start},pod_startup,,103-110,,"))[0].measured == 106.5


@pytest.mark.parametrize(("row", "problem"), [
    (f"{START},total,,soon,,", "seconds 'soon'"), (f"{START},total", "fewer cells"),
    (f"{START.replace('llama2-7b-hf', 'gpt-9')},total,,1,,", "model 'gpt-9' is not known"),
    (f"{START.replace('warm', 'hot')},total,,1,,", "state 'hot'"),
    (f"{START.replace('upb', 'ours')},total,,1,,", "source 'ours'"),
    (f"{START.replace(',1,', ',one,')},total,,1,,", "tp 'one'"),
])
def test_what_cannot_be_read_is_refused_with_its_line(tmp_path, row, problem):
    with pytest.raises(DataError, match=f"startup.csv:2.*{problem}"):
        validate(table(tmp_path, row))


def test_the_command_shows_phases_and_bad_rows(tmp_path):
    table(tmp_path, f"{START},framework_bootstrap,total,7.5,,", f"{START},load_weights,model_loading,1.2,,")
    out = ksim("validate", "startup", "startup.csv", "--json", "out.json", folder=tmp_path)
    assert "rows within 15 %: 1 of 2" in out and "load_weights" in out
    assert [row["phase"] for row in json.loads((tmp_path / "out.json").read_text())["bad"]] == ["load_weights"]
    assert "no column" in ksim("validate", "startup", __file__, folder=tmp_path, code=1)


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured start-ups are not beside the project")
def test_most_measured_rows_are_within_15_percent():
    every = by_phase(validate(MEASURED))
    phases = {phase.phase: phase for phase in every}
    assert every[-1].rows == 893 and every[-1].within >= 750
    assert every[-1].checked_within >= 0.8 * every[-1].checked
    assert phases["total"].checked_within >= 0.9 * phases["total"].checked

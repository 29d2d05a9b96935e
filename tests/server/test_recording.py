"""The run directory of a live fleet: `ksim run` on it does the same again."""

import json

import pyarrow.parquet as pq
import pytest
from attrs import evolve

from ksim.flow.request import Image, Request
from ksim.foundation.errors import DataError
from ksim.scenario.scenario import Scenario
from ksim.server.recording import recording, row_of
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import stream
from ksim.workload.replay import Replay
from tests.laws.tiny import TINY, uniform
from tests.server.fake import played


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return Scenario.of({
        "model": str(tmp_path / "tiny.json"), "gpu": "h200", "oracle": "roofline", "seed": 5, "router": "prefix_aware",
        "serve": {"max_model_len": 256, "max_num_seqs": 4, "data_parallel_size": 2, "num_gpu_blocks_override": 30},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 400.0}, "prompt": uniform(20, 90),
                                   "output": uniform(4, 90), "count": 12, "n": 2,
                                   "prefixes": {"groups": 2, "tokens": 70}}}})


def asked(scenario):
    """Requests whose blocks have whole numbers for names, as the server gives them; some for several answers."""
    names = {}
    for request in scenario.workload.requests(1):
        own = [(request.id, place) for place in range(len(request.chunks), (request.prompt + request.output) // 16)]
        chunks = [names.setdefault(chunk, len(names)) for chunk in (*request.chunks, *own)]
        yield evolve(request, chunks=tuple(chunks), n=2, outputs=(request.output, max(1, request.output // 2)))


def recorded(scenario, folder, **more):
    with recording(scenario, folder) as written:
        run = played(Fleet.of(scenario), asked(scenario), recorded=written, **more)
        assert not written._rows and not written._open
    return run


def replayed(tmp_path, exactly):
    """The summary of a run of what was recorded, whose requests and steps are the same, *exactly* or but for rounding.
    """
    again = stream(Scenario.read(tmp_path / "live" / "scenario.toml"), tmp_path / "again")
    for name in ("requests", "steps"):
        live, run = (pq.read_table(tmp_path / folder / f"{name}.parquet") for folder in ("live", "again"))
        assert live.column_names == run.column_names and live.num_rows == run.num_rows > 10
        order = [("id", "ascending")] if name == "requests" else [("engine", "ascending"), ("step", "ascending")]
        keys = [(key, how) for key, how in order if key in live.column_names] or [(live.column_names[0], "ascending")]
        for column in live.column_names:
            one, other = (table.sort_by(keys).column(column).to_pylist() for table in (live, run))
            rounded = isinstance(one[0], float) and not exactly
            assert one == (pytest.approx(other, rel=1e-9, nan_ok=True) if rounded else other), column
    live = json.loads((tmp_path / "live" / "summary.json").read_text())
    assert live["total_output_tokens"] == again.summary["total_output_tokens"]
    return again.summary


def test_a_run_of_what_was_recorded_does_the_same(scenario, tmp_path):
    recorded(scenario, tmp_path / "live")
    assert replayed(tmp_path, exactly=False)["completed"] == 12


def rows_of(folder):
    """The rows of the trace and of the table of a run, by the numbers of requests."""
    return ([json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()],
            sorted(pq.read_table(folder / "requests.parquet").to_pylist(), key=lambda row: row["id"]))


def test_clients_that_hang_up_are_replayed(scenario, tmp_path):
    scenario = evolve(scenario, serve=evolve(scenario.serve, max_num_seqs=2, max_num_batched_tokens=64))
    run = recorded(scenario, tmp_path / "live", aborts={0: 1.5e-3, 1: 0.03, 4: 0.0, 7: 9e-3}, tick=1e-4)
    rows, table = rows_of(tmp_path / "live")
    assert [row["arrival"] for row in rows] == [request.arrival for request in run.requests]
    assert [row["output"] for row in rows] == [request.output for request in run.requests]
    gone = [row for row in table if row["status"] == "failed"]
    waited, computed, decoded = [4, 7], [0], [1]
    assert [row["id"] for row in gone if row["queue_s"] is None] == waited
    assert [row["id"] for row in gone if row["queue_s"] is not None and not row["output_tokens"]] == computed
    assert [row["id"] for row in gone if row["output_tokens"]] == decoded
    assert [row["id"] for row in gone] == [place for place, row in enumerate(rows) if "aborted" in row]
    assert [row["output_tokens"] for row in gone] == [sum(run.ears[row["id"]].tokens_heard.values()) for row in gone]
    assert replayed(tmp_path, exactly=True)["aborted"] == len(gone)


def test_a_client_that_hangs_up_on_a_late_server_is_replayed_as_the_engine_served_it(scenario, tmp_path):
    run = recorded(scenario, tmp_path / "live", aborts={0: 0.21, 3: 0.02}, tick=0.2)
    rows, table = rows_of(tmp_path / "live")
    assert run.ears[0].end is None, "its client has gone"
    assert table[0]["status"] == "completed" and rows[0]["outputs"] == [*run.requests[0].outputs]
    assert table[0]["output_tokens"] == sum(rows[0]["outputs"]) > sum(run.ears[0].tokens_heard.values())
    ended = [row for row, told in zip(rows, table, strict=True) if told["status"] == "completed"]
    asked = [request for request, told in zip(run.requests, table, strict=True) if told["status"] == "completed"]
    assert [row["outputs"] for row in ended] == [[*request.outputs] for request in asked]


def test_a_replay_is_the_same_if_all_who_hung_up_had_been_served(scenario, tmp_path):
    recorded(scenario, tmp_path / "live", aborts={0: 0.21, 1: 0.21}, tick=0.2)
    stream(Scenario.read(tmp_path / "live" / "scenario.toml"), tmp_path / "again")
    (_, live), again = rows_of(tmp_path / "live"), pq.read_table(tmp_path / "again" / "requests.parquet").to_pylist()
    assert [row["ttft_s"] for row in live] == pytest.approx([row["ttft_s"] for row in sorted(
        again, key=lambda row: row["id"])], rel=1e-9)


def test_a_server_that_played_nothing_writes_nothing(scenario, tmp_path):
    with recording(scenario, tmp_path / "live"):
        pass
    assert not (tmp_path / "live").exists()


def test_a_server_that_nobody_asked_writes_a_run_of_no_requests(scenario, tmp_path):
    with recording(scenario, tmp_path / "live") as written:
        played(Fleet.of(scenario), [], recorded=written)
    assert json.loads((tmp_path / "live" / "summary.json").read_text())["completed"] == 0


def test_a_turn_that_overtakes_the_one_before_is_a_session_of_its_own(scenario, tmp_path):
    with recording(scenario, tmp_path / "live") as written:
        played(Fleet.of(scenario), [Request(0, 0.0, 20, 30, session="a"), Request(1, 0.001, 20, 30, session="a"),
                                    Request(2, 3.0, 20, 30, session="a")], recorded=written)
    rows = (tmp_path / "live" / "requests.jsonl").read_text().splitlines()
    assert [json.loads(row)["session"] for row in rows] == ["a", "a 1", "a"]


@pytest.mark.parametrize("prompt, output, names", [(16, 16, 2), (17, 30, 2), (31, 1, 2), (33, 1, 2), (40, 60, 6),
                                                   (40, 60, 7), (5, 1, 0), (5, 40, 2), (16, 1, 1), (15, 1, 1)])
def test_a_trace_keeps_the_names_of_all_blocks(tmp_path, prompt, output, names):
    request = Request(0, 0.0, prompt, output, chunks=tuple(range(names)))
    trace = tmp_path / "requests.jsonl"
    trace.write_text(json.dumps(row_of(request)) + "\n")
    assert [*Replay(trace).requests(0)] == [request]


@pytest.mark.parametrize("row, problem", [
    ('"outputs": [3, 4], "n": 3', "each of n sequences"), ('"outputs": [3, 4], "n": 2', "the longest"),
    ('"outputs": 3, "n": 1', "such as 20|31"), ('"outputs": [5, 0], "n": 2', "at least one token"),
    ('"hash_ids": [1], "output_hash_ids": [1, 2, 3]', "at most 1 blocks"),
    ('"output_hash_ids": [1]', "hash_ids has the 1 that"),
    ('"hash_ids": [1], "output_hash_ids": 3', "is a list")])
def test_lengths_and_names_that_cannot_be_are_refused(tmp_path, row, problem):
    trace = tmp_path / "requests.jsonl"
    trace.write_text('{"arrival": 0, "prompt": 20, "output": 5, ' + row + "}\n")
    with pytest.raises(DataError, match=problem):
        [*Replay(trace).requests(0)]


@pytest.mark.parametrize("prompt_logprobs", [-1, 0])
def test_a_line_of_the_trace_says_all_that_was_asked_for(tmp_path, prompt_logprobs):
    request = Request(0, 0.0, 90, 7, chunks=(5, 6, 7, 8, 9, 10), priority=3, session="s", tenant="t", adapter="a",
                      images=(Image(20, 30, 40, "cat"), Image(20, 30, 50)), acceptance=0.5, max_tokens=9, n=2,
                      outputs=(7, 3), prompt_logprobs=prompt_logprobs, aborted=0.25)
    trace = tmp_path / "requests.jsonl"
    trace.write_text(json.dumps(row_of(request)) + "\n")
    assert [*Replay(trace).requests(0)] == [request]

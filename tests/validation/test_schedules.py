"""`ksim validate schedule`: case files read, replayed and compared; and what is said of those that are wrong."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ksim.cli.validate import app
from ksim.foundation.errors import ConfigError, DataError, KsimError, UnknownName
from ksim.validation import cases, schedules
from ksim.validation.replay import ScheduleReplay
from tests.properties import examples
from tests.validation.documents import changed

#: Two requests of one prompt, 4 tokens to a block: the second hits what the first computes in the same step.
DOCUMENT = {
    "format": 1,
    "vllm": "0.33.0",
    "case": {
        "name": "by_hand_00",
        "note": "the second is aborted while its second batch is in flight",
        "settings": {"block_size": 4, "num_gpu_blocks": 11},
        "requests": [
            {"id": "a", "arrival_step": 0, "prompt": [["t", 9, 6], [3, 3]], "output_len": 2},
            {"id": "b", "arrival_step": 0, "prompt": [["t", 9, 6], [3, 2], 5], "output_len": 5, "max_tokens": 8},
        ],
        "aborts": [{"id": "b", "step": 1, "when": "during"}],
    },
    "expected": {
        "end": "done",
        "depth": 1,
        "steps": [
            {"s": 0, "sched": [[0, 1, 9, 0], [1, 1, 1, 8]], "free": 6, "q": [0, 2], "upd": 0, "free2": 6, "q2": [0, 2],
             "nh": 2, "nh2": 2},
            {"s": 1, "sched": [[0, 0, 1, 9], [1, 0, 1, 9]], "free": 6, "q": [0, 2], "upd": 1, "free2": 10, "q2": [0, 0],
             "nh": 2, "nh2": 2, "fin": [0], "ab2": [1]},
        ],
        "requests": [
            {"first": 0, "tokens": 2, "preempt": 0, "hit": 0, "end": 1, "why": "length"},
            {"first": 0, "tokens": 1, "preempt": 0, "hit": 8, "end": 1, "why": "abort"},
        ],
    },
}


@pytest.fixture
def file(tmp_path) -> Callable[..., Path]:
    """Write a document to a case file."""

    def write(document: Any, name: str = "by_hand_00.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    return write


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["schedule", *map(str, arguments)])


# Prompts.


def test_pieces_stand_for_tokens():
    assert cases.tokens([["t", 9, 2], [1, 0], 5, [3, 2], [3, 1]]).tolist()[:3] == [9, 9, 5]
    stream = cases.tokens([[3, 50]]).tolist()
    assert cases.tokens([[3, 2], [3, 1]]).tolist() == [*stream[:2], stream[0]]


@given(seed=st.integers(0, 2**64 - 1))
def test_streams_are_those_of_the_formula(seed):
    def token(place: int) -> int:
        mask = 2**64 - 1
        z = (seed * 0x9E3779B97F4A7C15 + place * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return 1000 + (z ^ (z >> 31)) % 100000

    assert cases.tokens([[seed, 20]]).tolist() == [token(place) for place in range(20)]


def test_blocks_are_equal_where_their_tokens_are():
    one, other = (cases.blocks(cases.tokens(pieces), 4) for pieces in ([[1, 4], [2, 3]], [[1, 4], [2, 2], [9, 2]]))
    assert (len(one), len(other)) == (2, 3)
    assert (one[0] == other[0], one[1] == other[1], other[2]) == (True, False, b"")


# Replaying.


def test_a_case_by_hand_comes_out_exactly(file):
    recording = cases.read(file(DOCUMENT))
    assert list(schedules.differences(recording)) == []
    assert schedules.compare(recording) == schedules.ScheduleReport("by_hand_00", "by_hand", 2, None)


def test_a_replay_says_what_became_of_each_request(file):
    replay = ScheduleReplay(cases.read(file(DOCUMENT)).case)
    rows = list(replay.steps())
    assert (len(rows), replay.end) == (2, "done")
    assert replay.outcomes == DOCUMENT["expected"]["requests"]


@pytest.mark.parametrize(("path", "value", "difference"), [
    ("expected.depth", 2, (None, "depth", 2, 1)),
    ("expected.steps.0.free", 7, (0, "free", 7, 6)),
    ("expected.steps.1.sched.1", [1, 0, 2, 9], (1, "sched[1]", [1, 0, 2, 9], [1, 0, 1, 9])),
    ("expected.steps.0.sched", [[0, 1, 9, 0]], (0, "sched[1]", None, [1, 1, 1, 8])),
    ("expected.steps.1.ab2", None, (1, "ab2", None, [1])),
    ("expected.steps.0.pre", [1], (0, "pre", [1], None)),
    ("expected.steps.1", None, (1, "s", None, 1)),
    ("expected.steps.1.s", 5, (5, "s", 5, 1)),
    ("expected.end", "stalled", (None, "end", "stalled", "done")),
    ("expected.requests.1.hit", 4, (None, "requests[1].hit", 4, 8)),
    ("expected.requests.0.why", "stop", (None, "requests[0].why", "stop", "length")),
    ("case.requests.0.output_len", 3, (1, "free2", 10, 7)),
    ("case.aborts.0.id", "nobody", (1, "free2", 10, 7)),
    ("case.requests.1.prompt", [["t", 9, 4]], (0, "sched[1]", [1, 1, 1, 8], [1, 1, 4, 0])),
])
def test_the_first_difference_is_found(file, path, value, difference):
    first = schedules.compare(cases.read(file(changed(DOCUMENT, path, value)))).difference
    assert (first.step, first.key, first.expected, first.got) == difference


def test_counts_of_hashes_are_not_compared(file):
    assert schedules.compare(cases.read(file(changed(DOCUMENT, "expected.steps.0.nh", 77)))).exact


def test_a_replay_that_goes_on_differs_where_the_recording_ends(file):
    document = changed(DOCUMENT, "case.requests.0.output_len", 3)
    document["expected"]["steps"][1] |= {"free2": 7, "q2": [0, 1]}
    del document["expected"]["steps"][1]["fin"]
    assert [d.key for d in schedules.differences(cases.read(file(document)))] == ["s"]


# The command.


def test_all_exact_is_exit_code_0(file):
    result = run(file(DOCUMENT))
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "exact cases: 1 of 1"
    assert "by_hand_00" in result.output


def test_a_difference_is_exit_code_1_and_says_where(file, tmp_path):
    file(DOCUMENT)
    document = changed(DOCUMENT, "expected.steps.1.sched.1", [1, 0, 2, 9])
    document["case"]["name"] = "other_00"
    file(document, "other.json")
    result = run(tmp_path, "--json", tmp_path / "out.txt")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "exact cases: 1 of 2"
    assert "sched[1]" in result.output
    assert "[1, 0, 2, 9]" in result.output
    assert json.loads((tmp_path / "out.txt").read_text()) == {
        "cases": 2, "exact": 1, "steps": 4,
        "failures": {"other_00": {"step": 1, "key": "sched[1]", "expected": [1, 0, 2, 9], "got": [1, 0, 1, 9]}}}


def test_the_whole_step_can_be_printed(file):
    result = run(file(changed(DOCUMENT, "expected.steps.1.free", 4)), "--first-difference")
    assert 'expected {"ab2": [1], "fin": [0], "free": 4,' in result.output
    assert 'got      {"ab2": [1], "fin": [0], "free": 6,' in result.output


def test_one_case_of_a_folder_can_be_chosen(file, tmp_path):
    for name in ("one.json", "other.json"):
        file(DOCUMENT, name)
    assert "exact cases: 1 of 1" in run(tmp_path, "--case", "other").output
    with pytest.raises(UnknownName, match="no case named 'othr'; did you mean 'other'?"):
        cases.find(tmp_path, "othr")


def test_many_cases_are_listed_by_kind(file, tmp_path):
    for number in range(30):
        document = changed(DOCUMENT, "case.name", f"kind{number % 2}_{number:02}")
        file(document, f"{number}.json")
    result = run(tmp_path)
    assert [line.split() for line in result.output.splitlines() if "kind0" in line] == [["kind0", "15", "30", "15"]]


# Files that are wrong.


@pytest.mark.parametrize(("path", "value", "message"), [
    ("format", 2, "'format' must be in"),
    ("case", None, "case: is missing"),
    ("expected", None, "expected: is missing"),
    ("expected.end", None, "expected.end: is missing"),
    ("case.settings.watermrk", 0.1, "case.settings.watermrk: unknown key; did you mean 'watermark'. expected enable_"),
    ("case.settings.block_size", 0, "'block_size' must be > 0"),
    ("case.settings.block_size", "16", "case.settings.block_size: expected a whole number, not '16'"),
    ("case.settings.policy", "lifo", "'policy' must be in"),
    ("case.settings.num_gpu_blocks", 1, "'num_gpu_blocks' must be > 1"),
    ("case.settings.max_num_batched_tokens", 100, "case.settings: max_num_batched_tokens: .100. must be greater than or"
                                                  " equal to max_num_seqs .128."),
    ("case.settings.enable_chunked_prefill", False, "case.settings: max_num_batched_tokens: .2048. is smaller"),
    ("case.requests.0.id", None, r"case.requests\[0\].id: is missing"),
    ("case.requests.0.id", "b", "case.requests: 2 of them have the id 'b'"),
    ("case.requests.0.output_len", 0, r"case.requests\[0\]: 'output_len' must be > 0"),
    ("case.requests.0.arrival_step", -1, r"case.requests\[0\]: 'arrival_step' must be >= 0"),
    ("case.requests.0.arrival_time", float("nan"), r"case.requests\[0\].arrival_time: expected a number that is fin"),
    ("case.requests.0.max_tokens", 1, r"case.requests\[0\]: max_tokens .1. is smaller than output_len .2."),
    ("case.requests.0.prompt", [], r"case.requests\[0\]: 'prompt' must be a list of pieces with at least one token"),
    ("case.requests.0.prompt", [[1, 0]], r"case.requests\[0\]: 'prompt' must be a list of pieces with at least one"),
    ("case.requests.0.prompt", [5, [1, 2, 3, 4]], r"case.requests\[0\]: 'prompt' piece 1 is \[1, 2, 3, 4\]; expec"),
    ("case.requests.0.prompt", [["t", True, 3]], r"case.requests\[0\]: 'prompt' piece 0 is \['t', True, 3\]"),
    ("case.requests.0.prompt", [[1, 9000]], r"case.requests\[0\]: prompt of 9000 tokens leaves no room for output"),
    ("case.aborts.0.when", "after", r"case.aborts\[0\]: 'when' must be in"),
    ("expected.steps.1.free2", None, r"expected: 'steps\[1\]' lacks free2"),
    ("expected.steps.1", 5, r"expected: 'steps\[1\]' lacks s, sched"),
    ("expected.requests.1", None, "expected.requests: has 1 entries for 2 requests"),
])
def test_says_which_key_of_which_file_is_wrong(file, path, value, message):
    name = file(changed(DOCUMENT, path, value))
    with pytest.raises(ConfigError, match=f"^{name}: .*{message}"):
        cases.read(name)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.json", b"{", "is not valid JSON"),
    ("a.json", b"[1]", "holds no table"),
    ("a.json", b"\xff\xfe", "is not valid JSON"),
    ("a.json.gz", b"{}", "is not a gzip file"),
    ("a.json.gz", gzip.compress(b'{"format": 1}', mtime=0)[:-6], "cut short"),
    ("a.txt", b"", "holds no case files"),
])
def test_says_which_file_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^{tmp_path}.*{message}"):
        cases.read(cases.find(tmp_path)[0])


def test_a_missing_path_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        cases.find(tmp_path / "nowhere")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@given(place=st.sampled_from(places(DOCUMENT)[1:]), value=st.sampled_from(
    [None, True, 0, -1, 3, 1.5, 10**20, "", "a", [], [1], [[1]], {}, {"a": 1}]))
@examples(300)
@example(place=("case", "settings", "block_size"), value=10**20)  # more than any list can have
def test_whatever_a_file_says_it_is_refused_or_compared(tmp_path_factory, place, value):
    document = json.loads(json.dumps(DOCUMENT))
    table = document
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(document))
    try:
        recording = cases.read(path)
    except KsimError:
        return
    schedules.compare(recording)

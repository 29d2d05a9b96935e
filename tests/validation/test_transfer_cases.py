"""Cases with a KV connector: one by hand, and what is said of files that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError, KsimError
from ksim.validation import cases, schedules
from tests.properties import examples
from tests.validation.documents import changed

#: Blocks of 4 tokens.  "a" is prefilled for another engine, which takes 2 steps to read it once it is told of it in the
#: next one.  "b" and "c" load their prompts, known one step later; "c" is aborted meanwhile.
DOCUMENT = {
    "format": 1,
    "vllm": "0.33.0",
    "case": {
        "name": "transfers_00",
        "note": "",
        "settings": {"block_size": 4, "num_gpu_blocks": 11,
                     "connector": {"kind": "nixl", "role": "kv_both", "on_load_failure": "recompute"}},
        "requests": [
            {"id": "a", "arrival_step": 0, "prompt": [[3, 9]], "output_len": 1, "send": 2},
            {"id": "b", "arrival_step": 0, "prompt": [[4, 8]], "output_len": 2, "remote": {"recv": 1}},
            {"id": "c", "arrival_step": 0, "prompt": [[5, 8]], "output_len": 2, "remote": {"recv": 1}},
        ],
        "aborts": [{"id": "c", "step": 0, "when": "during"}],
    },
    "expected": {
        "end": "done",
        "depth": 1,
        "steps": [
            {"s": 0, "sched": [[0, 1, 9, 0]], "ext": [[1, 0, 8, 1], [2, 0, 8, 1]], "free": 3, "q": [2, 1], "rk": [1, 2],
             "upd": 0, "ab2": [2], "fin": [0], "free2": 3, "q2": [1, 0], "rk2": [1], "hold2": [0, 2]},
            {"s": 1, "sched": [], "free": 3, "q": [1, 0], "rk": [1], "hold": [0, 2], "upd": 1, "rcv": [1, 2],
             "free2": 5, "q2": [1, 0], "rk2": [1], "hold2": [0]},
            {"s": 2, "sched": [[1, 1, 1, 7]], "free": 5, "q": [0, 1], "hold": [0], "upd": 2, "free2": 5, "q2": [0, 1],
             "hold2": [0]},
            {"s": 3, "sched": [[1, 0, 1, 8]], "free": 4, "q": [0, 1], "hold": [0], "upd": 3, "fin": [1], "snt": [0],
             "free2": 10, "q2": [0, 0]},
        ],
        "requests": [
            {"first": 0, "tokens": 1, "preempt": 0, "hit": 0, "end": 0, "why": "length", "ext": 0, "freed": 3},
            {"first": 2, "tokens": 2, "preempt": 0, "hit": 0, "end": 3, "why": "length", "ext": 8, "freed": 3},
            {"first": None, "tokens": 0, "preempt": 0, "hit": 0, "end": 0, "why": "abort", "ext": 8, "freed": 1},
        ],
    },
}

#: What a request from a store, with drafts, may say.
STORE = {"tokens": 8, "recv": 1, "load": "async", "unknown": 1, "bad": [1], "bad_at": 0}


def written(folder: Path, document: Any) -> Path:
    path = folder / "case.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("repeats", [True, False])
def test_a_case_by_hand_comes_out_exactly(tmp_path, repeats):
    assert list(schedules.differences(cases.read(written(tmp_path, DOCUMENT)), repeats)) == []


@pytest.mark.parametrize(("path", "value", "step", "key"), [
    ("case.requests.0.send", 3, 3, "snt"),
    ("case.requests.1.remote.recv", 2, 1, "rcv"),
    ("case.requests.2.remote", {"recv": 1, "bad": "all"}, 1, "bad"),
    ("case.aborts", [], 0, "ab2"),
    ("expected.steps.0.ext", [[1, 0, 8, 1]], 0, "ext"),
    ("expected.steps.2.hold2", None, 2, "hold2"),
    ("expected.requests.0.freed", 2, None, "requests[0].freed"),
])
def test_the_first_difference_is_found(tmp_path, path, value, step, key):
    first = schedules.compare(cases.read(written(tmp_path, changed(DOCUMENT, path, value)))).difference
    assert (first.step, first.key) == (step, key)


@pytest.mark.parametrize(("path", "value", "message"), [
    ("case.settings.connector.kind", "lmcache", "'kind' must be in"),
    ("case.settings.connector.role", "both", "'role' must be in"),
    ("case.settings.connector.on_load_failure", "retry", "'on_load_failure' must be in"),
    ("case.settings.connector.lease", 3, "case.settings.connector.lease: unknown key; did you mean 'lease_steps'"),
    ("case.settings.connector", None, r"case.requests\[0\]: send needs settings.connector"),
    ("case.settings.connector", {"kind": "offload"}, r"case.requests\[0\]: send needs settings.connector of another"),
    ("case.settings", {"connector": {"kind": "offload", "cpu_chunks": 0}}, "'cpu_chunks' must be > 0"),
    ("case.settings", {"connector": {"kind": "offload", "policy": "fifo"}}, "'policy' must be in"),
    ("case.settings", {"connector": {"kind": "offload", "load_steps": []}}, "'load_steps' must have numbers"),
    ("case.settings", {"connector": {"kind": "offload"}, "kv_groups": [{"type": "full"}]}, "with one group"),
    ("case.settings.speculative", {"k": 0}, "'k' must be > 0"),
    ("case.settings.speculative", {"method": "medusa"}, "'method' must be in"),
    ("case.requests.0.send", -1, r"case.requests\[0\]: 'send' must be a number of steps from 0"),
    ("case.requests.0.remote", {"recv": 1}, r"case.requests\[0\]: has remote and send, of which a request has one"),
    ("case.requests.0.accept", [1], r"case.requests\[0\]: accept and drafts need settings.speculative"),
    ("case.requests.1.remote", {}, r"case.requests\[1\].remote.recv: is missing"),
    ("case.requests.1.remote.recv", -1, r"case.requests\[1\].remote: 'recv' must be >= 0"),
    ("case.requests.1.remote.bad", "some", r"case.requests\[1\].remote: 'bad' must be \"all\" or a list of places"),
    ("case.requests.2", {"id": "c", "arrival_step": 0, "prompt": [1], "output_len": 1, "external": {"recv": 1}},
     r"case.requests\[2\].external.tokens: is missing"),
    ("case.requests.2", {"id": "c", "arrival_step": 0, "prompt": [1], "output_len": 1,
                         "external": STORE | {"load": "later"}}, r"case.requests\[2\].external: 'load' must be in"),
])
def test_says_which_key_of_which_file_is_wrong(tmp_path, path, value, message):
    name = written(tmp_path, changed(DOCUMENT, path, value))
    with pytest.raises(ConfigError, match=f"^{name}: .*{message}"):
        cases.read(name)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@given(place=st.sampled_from([place for place in places(DOCUMENT) if place[:1] == ("case",) or len(place) > 2]),
       value=st.sampled_from([None, True, 0, -1, 3, 1.5, 10**20, "", "a", [], [1], [[1]], {}, {"a": 1}, STORE]))
@examples(300)
def test_whatever_a_file_says_it_is_refused_or_compared(tmp_path_factory, place, value):
    document = json.loads(json.dumps(DOCUMENT))
    table = document
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    try:
        recording = cases.read(written(tmp_path_factory.getbasetemp(), document))
    except KsimError:
        return
    schedules.compare(recording)

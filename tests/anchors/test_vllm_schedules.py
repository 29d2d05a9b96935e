"""Schedules that vLLM 0.33's own scheduler made are ours too: every step of every recorded case.

A few of the recordings are kept in tests/golden/schedules; the whole set lies
beside the repository, and is tried where it is there.
"""

from pathlib import Path

import pytest

from ksim.validation import cases, schedules

OWN = Path(__file__).parents[1] / "golden" / "schedules"
ALL = Path(__file__).parents[3] / "shared" / "data" / "vllm_golden"


#: Whether schedules are repeated that are known, as engines do that skip.
repeating = pytest.mark.parametrize("repeats", [True, False])


@repeating
@pytest.mark.parametrize("path", cases.find(OWN), ids=lambda path: path.name.partition(".")[0])
def test_own_recordings_come_out_exactly(path, repeats):
    recording = cases.read(path)
    assert recording.vllm == "0.33.0"
    assert schedules.compare(recording, repeats).difference is None


@pytest.mark.skipif(not ALL.is_dir(), reason=f"the recordings of all cases are not at {ALL}")
@repeating
def test_all_recordings_come_out_exactly(repeats):
    verdicts = [schedules.compare(cases.read(path), repeats) for path in cases.find(ALL)]
    assert [verdict for verdict in verdicts if not verdict.exact] == []

"""Schedules that SGLang 0.5.23's own scheduler made are ours too: every turn of every recorded case.

Some of the recordings are kept in tests/golden/sglang.  The whole set lies beside the repository, and is tried where it
is there.
"""

from pathlib import Path

import pytest

from ksim.validation import cases, schedules
from ksim.validation.sglang_cases import SglangCaseFile, read_sglang

OWN = Path(__file__).parents[1] / "golden" / "sglang"
ALL = Path(__file__).parents[3] / "shared" / "data" / "sglang_golden"


def read(path: Path) -> SglangCaseFile:
    return read_sglang(cases.load_json(path), path)


@pytest.mark.parametrize("repeats", [True, False])  # of schedules that are known, as engines do that skip
@pytest.mark.parametrize("path", cases.find(OWN), ids=lambda path: path.name.partition(".")[0])
def test_own_recordings_come_out_exactly(path, repeats):
    recording = read(path)
    assert recording.sglang == "0.5.23"
    assert schedules.compare(recording, repeats).difference is None


@pytest.mark.skipif(not ALL.is_dir(), reason=f"the recordings of all cases are not at {ALL}")
@pytest.mark.parametrize(("repeats", "every"), [(True, 3), *(
    pytest.param(repeats, 1, marks=pytest.mark.explore) for repeats in (True, False))])
def test_all_recordings_come_out_exactly(repeats, every):
    """One in *every* so many of them."""
    verdicts = [schedules.compare(read(path), repeats) for path in cases.find(ALL)[::every]]
    assert [verdict for verdict in verdicts if not verdict.exact] == []

"""Schedules that vLLM 0.33's own scheduler made are ours too: every step of every recorded case.

A few of the recordings are kept in tests/golden: in schedules those of a plain
engine, in transfers those of one with a KV connector, in offload those of one
that offloads KV, in speculation those of one that decodes speculatively, and in
hybrid those of one whose layers keep different things.  The whole sets lie beside the repository, and
where they are there a third of them is tried, and all in `make explore`.
"""

from pathlib import Path

import pytest
from attrs import evolve

from ksim.kv.cache.block_cache import BlockCache
from ksim.validation import cases, replay, schedules

OWN = Path(__file__).parents[1] / "golden"
ALL = Path(__file__).parents[3] / "shared" / "data"
PLAIN = [path for folder in ("schedules", "transfers", "speculation") for path in cases.find(OWN / folder)]
RECORDINGS = PLAIN + cases.find(OWN / "offload") + cases.find(OWN / "hybrid")


#: Whether schedules are repeated that are known, as engines do that skip.
repeating = pytest.mark.parametrize("repeats", [True, False])


@repeating
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_own_recordings_come_out_exactly(path, repeats):
    recording = cases.read(path)
    assert recording.vllm == "0.33.0"
    assert schedules.compare(recording, repeats).difference is None


@pytest.mark.skipif(not ALL.is_dir(), reason=f"the recordings of all cases are not at {ALL}")
@pytest.mark.parametrize("folder", ["vllm_golden", "vllm_golden_kv", "vllm_golden_offload", "vllm_golden_spec",
                                    "vllm_golden_hybrid"])
@pytest.mark.parametrize(("repeats", "every"), [(True, 3), *(
    pytest.param(repeats, 1, marks=pytest.mark.explore) for repeats in (True, False))])
def test_all_recordings_come_out_exactly(folder, repeats, every):
    """One in *every* so many of a set."""
    verdicts = [schedules.compare(cases.read(path), repeats) for path in cases.find(ALL / folder)[::every]]
    assert [verdict for verdict in verdicts if not verdict.exact] == []


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name.partition(".")[0])
def test_they_are_the_same_block_by_block(path, monkeypatch):
    """The cache that counts runs of blocks decides as the one that knows each, also where loads fail."""
    monkeypatch.setattr(replay, "VllmCache", BlockCache)
    assert schedules.compare(cases.read(path)).difference is None


@pytest.mark.parametrize("path", cases.find(OWN / "schedules"), ids=lambda path: path.name.partition(".")[0])
def test_they_are_the_same_in_a_cache_with_one_group_of_full_attention(path):
    recording = cases.read(path)
    settings = evolve(recording.case.settings, kv_groups=(cases.KvGroup(type="full"),))
    assert schedules.compare(evolve(recording, case=evolve(recording.case, settings=settings))).difference is None

"""`ksim explain` of a counter-example that `check_policy` has written."""

import json

import pytest
from hypothesis import given

from ksim.testing import PolicyFault, check_policy
from ksim.testing.replayed import WrittenFault, replay
from ksim.testing.strategies import replayable_cases
from ksim.testing.trial import Subject, examine, files
from tests.properties import examples
from tests.testing.mutants.policies import LastComeFirst, PassesOverLong

from .command import ksim_here


@pytest.fixture(scope="module")
def fault(tmp_path_factory):
    """A counter-example, and the file it is in."""
    file = tmp_path_factory.mktemp("fault") / "fault.toml"
    with pytest.raises(PolicyFault) as found:
        check_policy(PassesOverLong, starves=True, shrink=False, write_to=file)
    return found.value, file


def test_explain_names_the_broken_invariant_and_its_step(fault):
    found, file = fault
    outcome = ksim_here("explain", file.name, "--json", "f.json", folder=file.parent)
    assert outcome.status == 0, outcome.stderr
    words = " ".join(outcome.stdout.split())
    assert f"PassesOverLong breaks {found.invariant} in step {found.step}: {found.problem}" in words
    assert f"{found.invariant}: A step schedules tokens, unless a batch is in flight" in words
    assert f"* played again, it breaks in step {found.step}: {found.problem}" in words
    content = json.loads((file.parent / "f.json").read_text())
    assert (content["invariant"], content["step"], content["problem"]) == (found.invariant, found.step, found.problem)
    assert content["breaks_again"] == {"step": found.step, "problem": found.problem}


def test_a_policy_that_was_mended_breaks_nothing_any_more(fault, tmp_path):
    found, file = fault
    for path in file.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    mended = found.scenario.replace("tests.testing.mutants.policies:PassesOverLong", "fcfs")
    (tmp_path / "fault.toml").write_text(mended)
    out = ksim_here("explain", "fault.toml", folder=tmp_path).stdout
    assert f"* played again, {found.invariant} holds" in out


def test_a_counter_example_that_cannot_be_replayed_is_explained_by_its_header(fault, tmp_path):
    found, _ = fault
    (tmp_path / "fault.toml").write_text(found.scenario)  # without its trace
    out = ksim_here("explain", "fault.toml", folder=tmp_path).stdout
    assert f"breaks {found.invariant} in step {found.step}" in out and "! it cannot be played again: " in out


@given(replayable_cases())
@examples(10)
def test_a_case_that_is_written_plays_as_it_did(tmp_path_factory, case):
    folder = tmp_path_factory.mktemp("case")
    written = files(case, LastComeFirst, note="LastComeFirst breaks bounded_wait in step 1: so it is")
    (folder / "s.toml").write_text(written.scenario)
    (folder / written.trace_name).write_text(written.trace)
    head = WrittenFault.read(folder / "s.toml")
    assert (head.subject, head.invariant, head.step) == ("LastComeFirst", "bounded_wait", 1)
    again = replay(folder / "s.toml", head)
    if "priorities" not in head.untold:
        assert again.moments == Subject(LastComeFirst).play(case).schedules
        found = examine(Subject(LastComeFirst, invariants=("bounded_wait",)), case)
        assert again.breach == (found and found[1:])

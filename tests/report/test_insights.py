from ksim.report.result import Result
from tests.results import by_hand, fabricate


def texts(result: Result) -> str:
    return "\n".join(insight.text for insight in result.insights)


def test_bounds_of_decodes_and_of_prompts():
    found = texts(Result(fabricate.log(count=30, preempt_every=0)))
    assert "Decode steps are memory-bound for 97 %" in found
    assert "Steps with prompt tokens are compute-bound" in found


def test_an_overloaded_run_warns_first():
    first, *_ = Result(fabricate.log(count=150, rate=60, seats=2)).insights
    assert first.warning and first.text.startswith("The queue kept growing")


def test_waiting_and_idling_are_told():
    found = texts(Result(by_hand.small()))
    assert "The GPUs wait for the CPU 33 % of the run." in found
    assert "The GPUs have nothing to do 33 % of the run" in found
    assert "The KV cache is never above 3 % full." in found


def test_preemptions_are_told_with_their_price():
    found = texts(Result(fabricate.log(preempt_every=9)))
    assert "preemptions cost" in found and "never above" not in found


def test_unfinished_requests_are_told():
    assert "1 request was unfinished" in texts(Result(fabricate.cut(by_hand.small(), 3.25)))

import pytest
from attrs import evolve

from ksim.flow.log import Log
from ksim.views.result import Result
from ksim.views.tables import as_text
from ksim.views.text import bar, report
from ksim.views.wording import number, percent
from tests.results import by_hand, fabricate, fleet


def test_the_report_says_what_ran_and_what_came_out():
    text = Result(by_hand.small(), {"model_id": "tiny-lm", "gpu": "toy"}).report()
    assert "tiny-lm on 2 x toy" in text
    assert "2 requests completed, 1 rejected in 4.50 s" in text
    rows = {line.split("  ")[0].strip(): line.split() for line in text.splitlines() if line.strip()}
    assert rows["Time to first token"][-5:] == ["1,188", "1,188", "1,238", "1,244", "1,249"]
    assert rows["In the queue"][-5:] == ["62.5", "62.5", "112", "119", "124"]
    assert "1 request was rejected, most often with: too long." in text


def test_the_report_shows_pools_side_by_side():
    text = Result(fleet.log(count=40), {"model_id": "tiny-lm"}).report()
    assert "tiny-lm on 4 x h200, prefill: 2 x TP 1, decode: 2 x TP 1" in text
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in text.splitlines() if line.strip()}
    assert rows["Pools"] == rows["role"] == ["prefill", "decode"]
    assert rows["engines"] == ["2", "2"]
    assert rows["TPOT mean, ms"][0] == "-" and rows["GB sent"][0] == rows["GB received"][1]
    assert "37 requests completed, 3 failed" in text


def test_pools_of_different_gpus_are_named_with_theirs():
    log = fleet.log(count=20)
    log.engines = [evolve(built, gpu=f"{built.role}-gpu") for built in log.engines]
    text = Result(log, {"model_id": "tiny-lm", "gpu": "x"}).report(200)
    assert "tiny-lm on 4 GPUs, prefill: 2 x TP 1 on prefill-gpu, decode: 2 x TP 1 on decode-gpu" in text


def test_many_pools_are_shown_four_at_a_time():
    log = fleet.log(count=20, prefill=3, decode=3)
    log.engines = [evolve(built, pool=f"{built.pool}{built.engine}") for built in log.engines]
    heads = [line.split() for line in Result(log).report().splitlines() if line.strip().startswith("Pools")]
    assert [len(head) for head in heads] == [5, 3]


def test_the_report_shows_where_the_time_went():
    lines = Result(by_hand.small()).report().splitlines()
    start = next(i for i, line in enumerate(lines) if "GPU time" in line)
    names = [line.strip().split("  ")[0] for line in lines[start + 2: start + 6]]
    assert names in (["nothing to do", "waiting for the CPU", "attention", "gemm"],
                     ["waiting for the CPU", "nothing to do", "attention", "gemm"])
    assert any("memory 100 %" in line for line in lines)


@pytest.mark.parametrize("log", [fabricate.log(), fabricate.log(ranks=4, count=40), by_hand.small(), Log(),
                                 fleet.log(count=40)])
def test_the_report_fits_a_terminal_of_80_columns(log):
    result = Result(log, {"model_id": "m" * 30, "gpu": "g"})
    lines = as_text(report(result.summary, result.kernels, result.insights, result.labels), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    latencies = next(line for line in lines if line.strip().startswith("Latency"))
    assert latencies.split()[-1] == "p99"


def test_bars_are_as_long_as_their_share():
    assert [bar(share, "").plain for share in (0.0, 0.0125, 0.5, 1.0, 2.0)] == ["", "▏", "█" * 5, "█" * 10, "█" * 10]


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0.0, "0"), (7, "7"), (1234567, "1,234,567"), (99.94, "99.9"), (123.4, "123"), (1.234, "1.23"),
    (0.00123, "0.0012")])
def test_numbers_keep_three_digits(value, text):
    assert number(value) == text


def test_shares_read_as_per_cent():
    assert (percent(0.1234), percent(0.5, 0), percent(None)) == ("12.3 %", "50 %", "-")


def test_text_is_text_in_a_notebook_too(monkeypatch):
    """Where a notebook shows what is printed, a report that is asked for as text is not shown at once."""
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *segments: shown.append(segments))
    assert "hello" in as_text("hello", 40) and not shown

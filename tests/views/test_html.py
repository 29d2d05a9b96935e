"""Results in notebooks: HTML that is valid, escaped and small."""

import sys
from xml.etree import ElementTree

import pytest

from ksim import Layer, attend, communicate, op, pointwise, ring, ulysses
from ksim.flow.log import Log
from ksim.foundation.errors import MissingExtra, UnknownName
from ksim.results.measured import TABLES
from ksim.views.result import Result
from tests.results import by_hand, fabricate, fleet

NASTY = '<script>alert("&")</script>'
SIZES = {"b": 1, "s": 4096, "z": 4096, "m": 4096, "K": 8, "r": 4, "h": 128, "F": 14336}


def parsed(html: str) -> ElementTree.Element:
    """Every tag is closed, and nothing that a text holds is one."""
    tree = ElementTree.fromstring(html)
    assert {each.tag for each in tree.iter()} <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    for table in tree.iter("table"):
        assert len({len(row) for row in table.iter("tr")}) == 1
    return tree


def cells(tree: ElementTree.Element) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in tree.iter("tr")]


@pytest.mark.parametrize("log", [by_hand.small(), fabricate.log(ranks=4, count=40), Log()])
def test_a_result_is_a_small_page(log):
    html = Result(log, {"model_id": NASTY, "gpu": "toy & co"})._repr_html_()
    tree = parsed(html)
    assert tree.find("p/b").text.startswith(f"{NASTY} on ") and len(html) < 8000


def test_the_html_report_shows_what_the_text_shows():
    rows = {row[0]: row[1:] for row in cells(parsed(Result(by_hand.small(), {"max_concurrency": 2})._repr_html_()))}
    assert rows["TTFT"] == ["1,188", "1,188", "1,238", "1,244", "1,249"]
    assert rows["QUEUE"] == ["62.5", "62.5", "112", "119", "124"]


def test_every_kind_of_operation_shows_in_a_layer():
    attention = attend("bKrsh,bKzh,bKzh->bKrsh", "K", label=NASTY)
    layer = Layer([op("bsm,mF->bsF", "F"), pointwise("silu", "bsF->bsF", "F"), attention, ring(attention),
                   communicate("all_reduce", "bsm"), ulysses(attention)], SIZES, "a & b")
    rows = cells(parsed(layer._repr_html_()))
    assert len(rows) == 7 and rows[1][2:] == ["bsm,mF->bsF", "F: tensor"] and rows[3][0] == NASTY


def test_a_priced_layer_shows_its_kernels():
    priced = Layer([op("bsm,mF->bsF", "F", "up")], SIZES, NASTY).on("h200", oracle="roofline")
    rows = cells(parsed(priced._repr_html_()))
    assert [row[0] for row in rows] == ["label", "up", "total"]
    both = cells(parsed(priced.compare(priced)._repr_html_()))
    assert [row[0] for row in both] == ["label", "up", "total"] and both[1][1] == both[1][2] != ""


@pytest.mark.parametrize("name", TABLES)
def test_tables_turn_into_pandas(name):
    result = Result(by_hand.small())
    frame = result.to_pandas(name)
    assert list(frame.columns) == getattr(result, name).column_names and len(frame) == getattr(result, name).num_rows


def test_a_table_of_another_name_is_refused():
    with pytest.raises(UnknownName, match="no table named 'request'; did you mean 'requests'"):
        Result(by_hand.small()).to_pandas("request")


def test_without_pandas_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"needs pandas: pip install 'ksim-llm\[pandas\]'"):
        Result(by_hand.small()).to_pandas()


def test_pools_of_a_run_stand_side_by_side():
    tables = list(parsed(Result(fleet.log(count=20))._repr_html_()).iter("table"))
    assert [cell.text for cell in tables[-1].iter("th")] == ["pools", "prefill", "decode"]
    assert len(list(parsed(Result(by_hand.small())._repr_html_()).iter("table"))) == len(tables) - 1

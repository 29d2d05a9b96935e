"""What the files of pages say, without a browser."""

import base64
import gzip
import json
import re
import shutil
from html import escape

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet

from ksim.foundation.errors import ConfigError, DataError
from ksim.study.directory import StudyDirectory
from ksim.views.charts import PALETTE
from ksim.views.page import page_of, write_page
from ksim.views.page.document import table
from ksim.views.page.drawing import DARK, safe
from ksim.views.page.reading import SavedRun
from ksim.views.page.run.lead import MOST, kept
from ksim.views.page.studies.reading import YARDSTICK, Study
from ksim.views.tables import breakable, element
from tests.properties import examples
from tests.views.page.browser import KINDS
from tests.views.page.made_up import EVIL


def data_of(text):
    """What the page of this *text* holds for its scripts."""
    packed = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_what_plotly_takes(pages, kind):
    for figure in data_of(pages[kind].read_text())["figures"].values():
        traces = [{key: value for key, value in trace.items() if value is not None} for trace in figure["data"]]
        go.Figure({"data": traces, "layout": figure["layout"]})


@pytest.mark.parametrize("kind", KINDS)
def test_figures_have_captions_and_axes_with_titles(pages, kind):
    text = pages[kind].read_text()
    for name, figure in data_of(text)["figures"].items():
        assert f'id="caption-{name}"' in text
        axes = [axis for key, axis in figure["layout"].items() if key.startswith("xaxis")]
        assert axes and all(axis["title"]["text"] for axis in axes), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_directory_gives_the_same_page(pages, directories, kind):
    text = pages[kind].read_text()
    assert page_of(directories[kind]) == text
    assert text.count("<h1>") == 1 and text.count("<script") == (3 if kind != "unserved" or "library" in text else 2)
    assert "http://" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("kind", ["run", "fleet", "sweep", "capacity", "routers"])
def test_nothing_of_a_file_is_markup(pages, kind):
    assert EVIL not in pages[kind].read_text()


def test_values_that_are_nothing_to_python_are_values():
    assert element("option", value=0, data_x=0.0, title="", disabled=False, id=None, selected=True) == (
        '<option value="0" data-x="0.0" title="" selected></option>')
    assert '<td data-value="0">0</td>' in table(("a", "b"), [("x", (0, 0))])


@pytest.mark.parametrize("kind", ["sweep", "tune", "routers"])
def test_each_point_can_be_chosen(pages, kind):
    text = pages[kind].read_text()
    places = re.findall(r'<option value="(\d+)">point', text)
    assert places == [str(place) for place in range(len(data_of(text)["study"]["points"]))]


def test_lines_break_in_names_between_words():
    assert breakable("serve.max_num_seqs") == "serve.<wbr>max_<wbr>num_<wbr>seqs" and breakable("1.96") == "1.96"
    assert "prefix_<wbr>aware" in table(("router", "age"), [("prefix_aware", "50ms")])


@given(st.text(), st.text())
@example("\n", "")
@examples(30)
def test_texts_become_text(one, other):
    """In what plotly shows, lines end with a break, and there is no other markup."""
    made = element("p", one, title=other)
    inside = made.removeprefix("<p ").removesuffix("</p>")
    assert "<" not in inside and inside.count(">") == 1
    assert not re.search("[<>]", safe(one).replace("<br>", ""))
    assert "<script" not in table((one, other), [(one, other)], one, sortable=True)


def test_dark_twins_are_no_light_colours():
    """So that a figure may be swapped from one to the other at once."""
    assert {*PALETTE} <= {*DARK} and len({*DARK.values()}) == len(DARK)


def test_a_page_says_what_a_run_does_not_have(pages):
    streamed, plain, unserved = (pages[kind].read_text() for kind in ("streamed", "without targets", "unserved"))
    assert streamed.count("written with --stream") >= 4
    assert "sets no targets" in plain and "no price is set" in plain
    assert "No request completed" in unserved and "No request arrived" in unserved


def test_settings_that_were_set_come_first(pages):
    text = pages["run"].read_text()
    chosen, _, rest = text.partition("settings at their defaults")
    chosen, rest = chosen.replace("<wbr>", ""), rest.replace("<wbr>", "")
    rows = re.findall(r'<th scope="row">([\w.]+)</th>', chosen[chosen.index('id="settings"'):])
    assert rows[:2] == ["model", "gpu"] and {"seed", "slo.ttft"} <= {*rows} and "router" not in rows
    assert ">router<" in rest


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no directory"):
        page_of(tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no run"):
        page_of(tmp_path)
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(DataError):
        page_of(tmp_path)
    (tmp_path / "study.json").write_text('{"kind": "sweep", "title": "x", "command": {}, "format": 99}')
    with pytest.raises(ConfigError, match="format 99"):
        page_of(tmp_path)


def test_damaged_tables_are_named(directories, tmp_path):
    for name in ("requests.parquet", "steps.parquet", "kernels.csv"):
        copy = tmp_path / name.partition(".")[0]
        copy.mkdir()
        for file in directories["run"].iterdir():
            (copy / file.name).write_bytes(b"\0" if file.name == name else file.read_bytes())
        with pytest.raises(DataError, match=name):
            page_of(copy)


def test_a_page_is_written_where_it_may(directories, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(directories["tune"], tmp_path / "file" / "report.html")
    assert write_page(directories["tune"], tmp_path / "new" / "report.html").is_file()


def test_points_are_means_of_their_replications(directories):
    study = Study.read(directories["sweep"])
    point = study.points[0]
    found = [row.numbers["median_ttft_ms"] for row in study.rows if row.point == 1]
    assert point.means["median_ttft_ms"] == pytest.approx(sum(found) / 3) and point.ends["median_ttft_ms"] == (
        min(found), max(found))
    assert sum(point.failed > 0 for point in study.points) == 6 and len(study.counting) == 18
    assert study.more("request_goodput") and not study.more("usd_per_million_tokens")


def test_a_tune_counts_only_what_keeps_its_bounds(directories):
    study = Study.read(directories["tune"])
    assert study.objectives == ["usd_per_million_tokens"]
    assert all(point.means["p99_ttft_ms"] < 200 for point in study.counting) and len(study.counting) < len(study.points)


def test_long_runs_keep_the_slowest_requests_and_every_nth_other(directories):
    run, count = SavedRun.read(directories["streamed"]), 3 * MOST
    latency = np.random.default_rng(0).lognormal(size=count)
    run.requests = {"id": np.arange(count), "status": np.full(count, "completed"), "e2e_s": latency,
                    "ttft_s": latency[::-1]}
    rows = kept(run)
    assert len(rows) <= MOST and {0, count - 1} <= {*rows.tolist()} and (np.diff(rows) > 0).all()
    for column in (latency, latency[::-1]):
        assert {*np.argsort(-column)[:1000].tolist()} <= {*rows.tolist()}
    assert len(kept(SavedRun.read(directories["run"]))) == 80


def test_studies_without_an_answer_say_so(directories, tmp_path):
    """Before their first run, cut off while a row is written, or where no set-up keeps the targets."""
    with StudyDirectory.create(tmp_path / "new", "sweep", "A sweep", {"over": {}}, "") as study:
        assert "No run went well" in page_of(tmp_path / "new")
        for row in Study.read(directories["sweep"]).rows[:4]:
            study.add(row)
        with (tmp_path / "new" / "runs.jsonl").open("a") as lines:
            lines.write('{"point": 7, "repl')
        assert "2 points, 4 runs" in page_of(tmp_path / "new")
    shutil.copytree(directories["capacity"], tmp_path / "capacity")
    path = tmp_path / "capacity" / "capacity.json"
    answer = json.loads(path.read_text())
    path.write_text(json.dumps({**answer, "best": None, "set_ups": answer["set_ups"][-1:], "rate": None}))
    text = page_of(tmp_path / "capacity")
    assert "No set-up keeps the targets" in text and "No rate was tried" in text and "the weights do not fit" in text


def test_routers_are_ranked_by_their_regret_and_one_that_cannot_run_says_why(pages):
    text = pages["routers"].read_text().partition('id="routers"')[2].partition("</section>")[0]
    assert re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)', text.replace("<wbr>", ""))[:4] == [
        ("omniscient (yardstick)", "0"), ("llm_d", "0"), ("llm_d", "200ms"), (escape(EVIL), "0")]
    assert "mooncake:load=2 did not run: signals.metrics: is false" in text
    figures = data_of(pages["routers"].read_text())["figures"]
    assert {"routers-mean_regret_ms", "routers-p90_ttft_ms", "routers-prefix_cache_hit_rate"} <= {*figures}
    titles = re.findall(r'class="sorter">([^<]*)', text)
    ranks = titles.index(re.search("by their ([^,]*), the least first", text)[1])
    rows = re.findall(r"<tr>(.*?)</tr>", text)[1:]
    values = [float(re.findall(r'<data value="([^"]*)"', row)[ranks - 2]) for row in rows if "200ms" not in row]
    assert values == sorted(values) and len({*values}) == len(values) == 4


def test_the_yardstick_of_routers_wins_no_tile_and_no_front(pages, directories):
    text, study = pages["routers"].read_text(), Study.read(directories["routers"])
    answer = text.partition('id="answer"')[2].partition("</header>")[0]
    assert "llm_" in answer and "omniscient" not in answer
    assert [point.settings["router"] for point in study.points if study.problem(point) == YARDSTICK] == ["omniscient"]
    assert YARDSTICK in text.partition('id="points-table"')[2]


def test_bars_of_routers_end_where_values_do(pages):
    for name, figure in data_of(pages["routers"].read_text())["figures"].items():
        for trace in figure["data"] if name in ("routers-p90_ttft_ms", "routers-prefix_cache_hit_rate") else ():
            bars = trace["error_x"]
            for value, more, less in zip(trace["x"], bars["array"], bars["arrayminus"], strict=True):
                assert value - less >= -1e-3 and (value + more <= 1.001 or "ttft" in name)
                assert more > 0 < less or value in (80.0, 0.9)


def test_settings_with_units_are_numbers_on_an_axis(pages):
    study = data_of(pages["tune"].read_text())["study"]
    cap = study["scales"]["power.cap"]
    assert cap["unit"] == "W" and [f"{value:.0f} W" for value in cap["values"]] == study["settings"]["power.cap"]
    assert "serve.scheduling_policy" not in data_of(pages["sweep"].read_text())["study"]["scales"]


def test_a_run_says_what_its_router_saw_of_the_engines_that_it_chose(directories, tmp_path):
    shutil.copytree(directories["without targets"], tmp_path / "run")
    assert 'id="routing"' not in page_of(tmp_path / "run")
    parquet.write_table(pa.table({
        "request": [0, 1, 2], "engine": [1, 1, 0], "prefill_engine": pa.array([None, None, 2], pa.int64()),
        "engines": [[0, 1], [0, 1], [2, 0]], "waiting": [[4, 0], [6, 2], [1, 8]],
        "prefix_hit_tokens": [[None, 32], [None, None], [None, None]]}), tmp_path / "run" / "routing.parquet")
    text = page_of(tmp_path / "run").partition('id="routing"')[2].partition("</section>")[0]
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)][1:]
    assert rows == [["engine 0", "1", "33.3 %", "8.00 / 6.00", "- / -"], ["engine 1", "2", "66.7 %", "1.00 / 1.00",
                    "32.0 / 32.0"], ["engine 2", "1", "33.3 %", "1.00 / 1.00", "- / -"]]

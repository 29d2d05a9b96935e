"""Sweeps in Python: rows, means over replications, fronts, figures."""

import math
import statistics

import pytest
from pyarrow import parquet

import ksim
from ksim.foundation.errors import ConfigError, KsimError, UnknownKey, UnknownName
from ksim.results.numbers import derived
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.plan import replication_seed
from ksim.study.rows import RunRow, half_width, points_of
from ksim.study.students_t import student
from ksim.study.sweep import Sweep, sweep_plot
from ksim.views.charts import Dots

SCENARIO = Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 1000},
                        "energy": {"price_per_gpu_hour": 3.0}, "workload": {"synthetic": {
                            "count": 4, "arrivals": {"process": "poisson", "rate": 50.0},
                            "prompt": {"kind": "fixed", "value": 40},
                            "output": {"kind": "uniform", "low": 2, "high": 9}}}})
OVER = {"serve.max_num_seqs": [1, 2, 0], "detail": ["step", "rank"]}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return ksim.sweep(SCENARIO, OVER, repeat=3, jobs=1, output=tmp_path_factory.mktemp("sweeps") / "out")


def test_every_run_is_a_row_with_the_numbers_of_that_run(found):
    assert [row.key for row in found.rows] == [(point, number) for point in range(1, 7) for number in range(3)]
    row = found.rows[4]
    assert row.settings == {"serve.max_num_seqs": 1, "detail": "rank"} and row.seed == replication_seed(0, 1)
    result = simulate(SCENARIO.with_values({**row.settings, "seed": row.seed}))
    assert {key: row.numbers[key] for key in ("duration", "p99_ttft_ms", "saturated", "completed")} == {
        key: result.summary[key] for key in ("duration", "p99_ttft_ms", "saturated", "completed")}
    assert row.scenario == result.scenario
    assert row.numbers["usd_per_million_tokens"] == derived(result.summary)["usd_per_million_tokens"] > 0
    assert {row.seed for row in found.rows} == {replication_seed(0, number) for number in range(3)}


def test_runs_that_fail_are_rows_with_the_reason(found):
    failed = [row for row in found.rows if row.settings["serve.max_num_seqs"] == 0]
    assert len(failed) == 6 and all("must be > 0" in row.problem and not row.numbers for row in failed)


def test_tables_have_a_row_for_each_run_or_the_means_of_each_point(found):
    runs, means = found.to_pandas(), found.to_pandas(means=True)
    assert len(runs) == 18 and len(means) == 6
    first = runs[runs.point == 1]
    assert means.median_ttft_ms[0] == pytest.approx(first.median_ttft_ms.mean())
    assert means.median_ttft_ms_half_width[0] == pytest.approx(
        4.30265273 * first.median_ttft_ms.std() / math.sqrt(3), rel=1e-6)
    assert math.isnan(means.median_ttft_ms[4]) and "3 of 3 replications: " in means.problem[4]
    assert found.table.equals(parquet.read_table(found.directory / "runs.parquet"))


def test_a_sweep_that_is_kept_nowhere_has_the_same_rows(found):
    assert ksim.sweep(SCENARIO, OVER, repeat=3, jobs=1).rows == found.rows == Sweep.read(found.directory).rows


def test_the_front_is_of_means(found):
    leading = found.front("median_e2el_ms", "usd_per_million_tokens", require=["completed>=4"])
    assert leading and all(point.outcome.settings["serve.max_num_seqs"] for point in leading)
    best = min(found.points[:4], key=lambda point: point.value("median_e2el_ms"))
    assert leading[-1].outcome is best.outcome or leading[0].outcome is best.outcome
    assert not found.front(require=["completed>=5"])


def test_a_figure_has_a_line_for_each_value_and_bars_for_replications(found):
    picture = found.plot("serve.max_num_seqs", "median_e2el_ms", by="detail")
    (axes,) = picture.figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["step", "rank"]
    bars = [mark for mark in picture.panels[0].marks if isinstance(mark, Dots)]
    assert len(bars) == 2 and all(low < y for bar in bars for low, y in zip(bar.low, bar.y, strict=True))
    assert picture._repr_png_().startswith(b"\x89PNG")
    (axes,) = found.plot("detail", "duration").figure.axes  # texts stay in the order of the points
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["step", "rank"]
    for wrong in (("serve.max_num_seq", "duration"), ("detail", "durations"), ("detail", "duration", "gpu")):
        with pytest.raises(UnknownName, match="no column of the sweep named"):
            found.plot(*wrong)


def test_quantities_are_numbers_on_the_axis_of_a_figure():
    rows = [RunRow(point=place, replication=0, seed=0, settings={"power.cap": cap}, status="ok",
                   numbers={"duration": 2.0}) for place, cap in enumerate((None, "1 kW", "700 W", "400 W"))]
    (axes,) = sweep_plot("caps", points_of(rows), "power.cap", "duration").figure.axes
    assert axes.get_xlabel() == "power.cap, W"
    assert [*axes.lines[0].get_xdata()] == [400.0, 700.0, 1000.0]


def test_a_notebook_shows_the_best_points_and_what_failed(found):
    html = found._repr_html_()
    for words in ("Sweep of llama-3.2-1b", "median_e2el_ms", "usd_per_million_tokens", "18 runs of 6 points, 3",
                  "6 runs failed: ", " ± "):
        assert words in html


def test_names_and_keys_that_are_not_there_are_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr("ksim.study.experiment.play", None)
    with pytest.raises(UnknownName, match="did you mean 'h200'"):
        ksim.sweep(SCENARIO, {"seed": [1, 2], "gpu": ["h200", "h2000"]}, output=tmp_path / "out")
    with pytest.raises(UnknownKey, match="did you mean 'max_num_seqs'"):
        ksim.sweep(SCENARIO, {"serve.max_num_seq": "1:9"}, sample="latin:5", output=tmp_path / "out")
    with pytest.raises(UnknownKey, match="waves: comput: unknown key"):
        ksim.sweep(SCENARIO, {"oracle": [{"name": "waves", "comput": 1}]}, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_no_sweep_can_have_is_refused():
    with pytest.raises(ConfigError, match="--repeat varies the seed already"):
        ksim.sweep(SCENARIO, {"seed": [1, 2]}, repeat=2)
    with pytest.raises(ConfigError, match="--repeat: expected at least 1"):
        ksim.sweep(SCENARIO, {"gpu": ["h100"]}, repeat=0)
    for where, message in (({"on": "dask"}, "expected processes or ray"), ({"address": "auto"}, "add --on ray")):
        with pytest.raises(KsimError, match=message):
            ksim.sweep(SCENARIO, {"gpu": ["h100"]}, **where)


def test_a_seed_may_be_an_axis():
    found = ksim.sweep(SCENARIO, {"seed": [3, 1]}, jobs=1)
    assert [row.seed for row in found.rows] == [3, 1] and found.to_pandas().seed.tolist() == [3, 1]


@pytest.mark.parametrize(("freedom", "quantile"), [
    (1, 12.70620), (2, 4.30265), (10, 2.22814), (11, 2.20099), (20, 2.08596), (60, 2.00030), (1000, 1.96234)])
def test_quantiles_of_students_t_are_those_of_the_tables(freedom, quantile):
    assert student(0.975, freedom) == pytest.approx(quantile, rel=2e-4)


def test_an_interval_needs_two_replications():
    assert math.isnan(half_width([1.0]))
    values = [1.0, 2.0, 4.0]
    assert half_width(values) == pytest.approx(student(0.975, 2) * statistics.stdev(values) / math.sqrt(3))

"""The figure of the cache curve: what is drawn, not how it looks."""

from ksim.views.figures.studies import cache_chart


def test_it_has_a_line_for_each_policy_and_a_mark_for_each_tier():
    rates = {"LRU": [0.1, 0.4], "ideal": [0.3, 0.4]}
    figure = cache_chart([1.0, 10.0], rates, {"cpu": 4.0}, "trace", "GiB").figure
    figure.draw_without_rendering()
    (axes,) = figure.axes
    lru, ideal, mark = axes.lines
    assert lru.get_xydata().tolist() == [[1.0, 0.1], [10.0, 0.4]] and ideal.get_label() == "ideal"
    assert list(mark.get_xdata()) == [4.0, 4.0] and [text.get_text().strip() for text in axes.texts] == ["cpu"]

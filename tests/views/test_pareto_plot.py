"""The figure of the Pareto front: what is drawn, not how it looks."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from ksim.views.figures.studies import ParetoMark, Scale, pareto_chart

ENERGY, LATENCY, RATE = Scale("joules"), Scale("e2el_ms"), Scale("output_throughput", maximise=True)


def drawn(scales, marks):
    figure = pareto_chart("A front", "by max_num_seqs", scales, marks).figure
    figure.draw_without_rendering()
    return figure.axes


def places(axes):
    """How many points each kind has, and where the line turns."""
    counts = [len(part.get_offsets()) for part in axes.collections if isinstance(part, PathCollection)]
    return counts, [line.get_xydata().tolist() for line in axes.lines]


def texts(axes):
    return {text.get_text() for text in axes.texts} - {""}


@pytest.mark.parametrize(("second", "sign"), [(LATENCY, 1), (RATE, -1)])
def test_between_two_objectives_the_front_is_a_line_of_steps_to_the_worse_sides(second, sign):
    marks = [ParetoMark((1.0, sign * 30.0), True, "64"), ParetoMark((2.0, sign * 10.0), True, "16"),
             ParetoMark((3.0, sign * 20.0), False)]
    (axes,) = drawn([ENERGY, second], marks)
    counts, ((first, *corners, last),) = places(axes)
    assert counts == [1, 2] and texts(axes) == {"64", "16"}
    assert corners == [[sign * 10.0, 2.0], [sign * 30.0, 2.0], [sign * 30.0, 1.0]]
    assert first[0] == sign * 10.0 and first[1] == axes.get_ylim()[1]
    assert last[1] == 1.0 and last[0] == axes.get_xlim()[sign > 0]
    assert axes.get_ylabel() == "joules (less is better)"
    assert axes.get_xlabel() == f"{second.name} ({'more' if sign < 0 else 'less'} is better)"


def test_more_objectives_are_a_panel_each_without_a_line():
    marks = [ParetoMark((1.0, 30.0, 5.0), True, "64"), ParetoMark((2.0, 10.0, 9.0), True, "16")]
    for axes in drawn([ENERGY, LATENCY, RATE], marks):
        assert places(axes) == ([2], []) and texts(axes) == {"64", "16"}


def test_points_at_one_place_share_their_name():
    (axes,) = drawn([ENERGY, LATENCY], [ParetoMark((1.0, 30.0), True, name) for name in ("64", "256")])
    assert texts(axes) == {"64; 256"}


def test_values_far_apart_are_shown_on_a_logarithmic_scale():
    (axes,) = drawn([ENERGY, LATENCY], [ParetoMark((1.0, 10.0 ** power), not power) for power in range(4)])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert {text.get_text() for text in axes.get_xticklabels()} >= {"1", "10", "1,000"}
    assert np.isfinite(axes.get_xlim()).all()


def test_a_single_objective_is_drawn_over_the_number_of_the_point():
    (axes,) = drawn([ENERGY], [ParetoMark((1.0,), True, "64"), ParetoMark((2.0,), False), ParetoMark((3.0,), False)])
    assert places(axes) == ([2, 1], []) and texts(axes) == {"64"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("point", "joules (less is better)")


@pytest.mark.parametrize("scales", [[ENERGY], [ENERGY, LATENCY], [ENERGY, LATENCY, RATE]])
def test_a_pareto_plot_without_points_has_only_axes(scales):
    assert all(places(axes) == ([], []) for axes in drawn(scales, []))

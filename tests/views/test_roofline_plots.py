"""The roofline of a step and the map of eta: what is drawn, not how it looks."""

from itertools import combinations

import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from ksim.views.drawing import looks
from ksim.views.figures.kernels import FamilyMark, KernelMark, Roof, StepMarks, ZoneArea, eta_map, step_roofline
from ksim.views.labels import Named, name_marks

ROOFS = [Roof("bf16", 1e15, 4e12), Roof("fp8", 2e15, 4e12)]
MARKS = [KernelMark("gemm", 300.0, 6e14, 0.6, "compute", 5e14, 8e14), KernelMark("attention", 4.0, 1e13, 0.3, "memory"),
         KernelMark("norm", 0.25, 2e11, 0.05, "launch"), KernelMark("last_norm", 0.25, 2e11, 0.05, "launch")]
INF = float("inf")
ZONES = [ZoneArea("safe", (0, 2), (0, 1.5)), ZoneArea("danger", (2, INF), (1.5, INF)),
         ZoneArea("portable", (2, INF), (0, 1.5)), ZoneArea("device-specific", (0, 2), (1.5, INF))]
FAMILIES = [FamilyMark("gemm", 1.3, 1.2, 1.4, 0.7), FamilyMark("attention", 3.0, 1.6, 6.0, 0.25),
            FamilyMark("rope", 3.1, 1.6, 6.1, 0.05)]


def texts(axes):
    return {text.get_text() for text in axes.texts} - {""}


def dots(axes):
    return sum(len(drawn.get_offsets()) for drawn in axes.collections if isinstance(drawn, PathCollection))


def clear_of_each_other(axes):
    """Whether no two texts of *axes* overlap."""
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    return not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("panels", [1, 2])
def test_every_kernel_of_a_step_has_a_mark_and_a_name(panels):
    figure = step_roofline("A step", ROOFS, [StepMarks("one", MARKS, 0.9)] * panels).figure
    figure.draw_without_rendering()
    assert len(figure.axes) == panels
    for axes in figure.axes:
        assert dots(axes) == len(MARKS)
        assert texts(axes) == {"gemm", "attention", "last_norm, norm", "bf16, 1,000 TFLOP/s", "fp8, 2,000 TFLOP/s",
                               "4.0 TB/s"}
        assert len(axes.lines) == len(ROOFS) + 1  # a bar, for the one mark whose interval is known
        assert axes.get_title(loc="right") == "drawn: 90.0 % of its time"
        assert clear_of_each_other(axes)
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["compute", "memory", "launch"]


def test_a_step_of_nothing_but_copies_still_has_its_roof():
    figure = step_roofline("Copies", ROOFS, [StepMarks("one", [], 0.0)]).figure
    assert dots(figure.axes[0]) == 0 and len(figure.axes[0].lines) == len(ROOFS)


def test_every_family_has_a_mark_and_every_zone_a_name():
    figure = eta_map("Eta", ["h200", "l4"], {"decode": FAMILIES, "prefill": FAMILIES[:1]}, ZONES).figure
    figure.draw_without_rendering()
    for axes, families in zip(figure.axes, (FAMILIES, FAMILIES[:1]), strict=True):
        assert dots(axes) == len(families)
        assert texts(axes) == {zone.name for zone in ZONES} | {family.name for family in families}
        assert clear_of_each_other(axes)
        assert axes.get_xlim()[1] >= 6.1 and axes.get_ylim()[1] > 6.1 / 1.6
    assert "h200, l4" in figure.get_supxlabel()


def test_a_family_that_beats_its_roof_is_on_the_map():
    figure = eta_map("Eta", ["l4"], {"decode": [FamilyMark("rope", 0.6, 0.5, 0.7, 1.0)]}, ZONES).figure
    assert figure.axes[0].get_xlim()[0] < 0.5


def test_a_figure_is_the_same_each_time(tmp_path):
    for name in ("a.png", "b.png"):
        step_roofline("A step", ROOFS, [StepMarks("one", MARKS)]).save(tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_names_of_crowded_marks_stay_apart():
    with looks():
        axes = Figure(figsize=(6, 4)).subplots()
        axes.scatter([0, 1], [0, 1])
        name_marks(axes, [Named(0.5 + i / 200, 0.5, 5.0, f"kernel_{i}") for i in range(8)])
    assert clear_of_each_other(axes)

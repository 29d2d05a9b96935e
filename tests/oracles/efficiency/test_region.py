"""What lies inside the measurements, and how far outside the rest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ksim.oracles.efficiency.models import Region

POINTS = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.2]])


def test_shapes_that_grow_together_leave_corners_outside():
    region = Region.around(POINTS)
    assert region.beyond(np.array([[1.5, 1.5], [3.0, 0.0], [6.0, 6.0]])).tolist()[0] == 0
    corner, far = region.beyond(np.array([[3.0, 0.0], [6.0, 6.0]]))
    assert corner > 0.5  # inside the box around the points, and far from all of them
    assert far > 0.5


def test_an_input_that_never_varied_says_nothing():
    region = Region.around(np.array([[0.0, 5.0], [1.0, 5.0]]))
    assert region.beyond(np.array([[0.5, 9.0]])) == 0


@given(arrays(float, (12, 3), elements=st.floats(-100, 100)), arrays(float, 12, elements=st.floats(0.001, 1)))
def test_the_region_is_convex_and_holds_its_points(points, weights):
    region = Region.around(points)
    assert not region.beyond(points).any()
    between = (weights / weights.sum()) @ points
    assert region.beyond(between[None]) == 0


@given(arrays(float, (12, 2), elements=st.floats(-100, 100)), st.floats(1.0, 50.0))
def test_points_further_out_are_further_beyond_the_region(points, factor):
    region = Region.around(points)
    middle = points.mean(axis=0)
    far = middle + 3 * (points[0] - middle)
    near, further = region.beyond(np.stack([far, middle + factor * (far - middle)]))
    assert further >= near


def test_points_are_as_far_alone_as_among_many():
    region = Region.around(np.random.default_rng(7).normal(size=(50, 9)))
    points = np.random.default_rng(8).normal(scale=3.0, size=(400, 9))
    together = region.beyond(points)
    assert together.any()
    assert together.tolist() == [region.beyond(point[None]).item() for point in points]

"""Estimates as columns: there and back, several tables as one, and never below what the peaks allow."""

import numpy as np

from ksim.oracles import Estimate, Estimates

ANSWERS = [Estimate(1e-6, "launch", 0.5, 0.5, "whole", "measured", 2.0, 5e-7, 2e-6),
           Estimate(2e-6, "compute", 1.5, 0.5, "split", "measured, extrapolated", 2.0, 1e-6, 3e-6, True),
           Estimate(3e-6, "memory", source="waves")]


def numbers(answers) -> list[tuple[float, float, float]]:
    """What does not count where estimates are compared, for it may be nan."""
    return [(answer.roofline_ratio, answer.low, answer.high) for answer in answers]


def test_columns_give_back_the_estimates_that_they_were_made_of():
    columns = Estimates.of(ANSWERS)
    assert len(columns) == 3
    assert [*columns] == [columns[row] for row in range(3)] == columns[:] == ANSWERS
    assert columns[-2:] == ANSWERS[-2:] and columns[-1] == ANSWERS[-1]
    for answers in (columns, columns[:], [columns[row] for row in range(3)]):
        assert np.array_equal(numbers(answers), numbers(ANSWERS), equal_nan=True)


def test_estimates_in_columns_are_taken_as_they_are():
    columns = Estimates.of(ANSWERS)
    assert Estimates.of(columns) is columns
    assert not len(Estimates.of([]))


def test_tables_are_joined_row_by_row():
    first, second = Estimates.of(ANSWERS[1:]), Estimates.of(ANSWERS[:1])
    assert [*Estimates.joined([first, second], [[0, 2], [1]])] == [ANSWERS[1], ANSWERS[0], ANSWERS[2]]
    assert [*Estimates.joined([first], [[1, 0]])] == [ANSWERS[2], ANSWERS[1]]


def test_no_end_of_an_interval_is_below_what_the_peaks_allow():
    columns = Estimates.of(ANSWERS).at_least(np.array([1e-7, 2.5e-6, 1e-6]))
    assert columns.seconds.tolist() == [1e-6, 2.5e-6, 3e-6]
    assert columns.low.tolist() == [5e-7, 2.5e-6, 1e-6]
    assert columns.high[:2].tolist() == [2e-6, 3e-6]

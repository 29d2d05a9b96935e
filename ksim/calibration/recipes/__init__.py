"""Which rows teach each family of kernels, and which model they teach.

To add a family, add a module with `COURSES` and name it here.
"""

from collections.abc import Iterator, Sequence

from ksim.calibration.fitting import Course
from ksim.calibration.measurements import Measurements
from ksim.calibration.recipes import attention, gemm, grouped_gemm, mla, pointwise

COURSES: tuple[Course, ...] = (*gemm.COURSES, *attention.COURSES, *grouped_gemm.COURSES, *mla.COURSES,
                              *pointwise.COURSES)


def enrolled(measured: Sequence[Measurements]) -> Iterator[tuple[Course, list[Measurements]]]:
    """Each course with the measurements that it takes, if there are any."""
    for course in COURSES:
        if taken := [rows for rows in measured if course.takes(rows)]:
            yield course, taken

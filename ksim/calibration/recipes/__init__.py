"""Fit specs: one module per family of kernels, with the rows that are fitted, the free constants and the models.

To add a family, add a module with `FIT_SPECS` and name it here.
"""

from collections.abc import Iterator, Sequence

from ksim.calibration.fitting import FitSpec
from ksim.calibration.measurements import Measurements
from ksim.calibration.recipes import attention, gemm, grouped_gemm, mla, pointwise

FIT_SPECS: tuple[FitSpec, ...] = (*gemm.FIT_SPECS, *attention.FIT_SPECS, *grouped_gemm.FIT_SPECS, *mla.FIT_SPECS,
                              *pointwise.FIT_SPECS)


def by_spec(measured: Sequence[Measurements]) -> Iterator[tuple[FitSpec, list[Measurements]]]:
    """Yield each fit spec that takes any of *measured*, with what it takes."""
    for spec in FIT_SPECS:
        if taken := [rows for rows in measured if spec.takes(rows)]:
            yield spec, taken

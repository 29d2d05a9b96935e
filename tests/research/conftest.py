"""Files of measurements that tests write, as those of calibration do."""

from tests.calibration.conftest import parquet, write

__all__ = ["parquet", "write"]

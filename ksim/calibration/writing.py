"""Points and measurements to files of the sweep format, which `ksim.calibration.reading` reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ksim.calibration.measurements import MISSING, Column, Points
from ksim.foundation.errors import ConfigError


def write_points(points: Sequence[Points], path: Path) -> None:
    """Write *points* of any families into one file, CSV or Parquet by its ending; raises ConfigError if it cannot."""
    save(pa.concat_tables([table(part) for part in points], promote_options="default"), path)


def table(points: Points, more: Mapping[str, Column] | None = None) -> pa.Table:
    """*points* in the sweep format: family, number format, shape, *more* columns such as latencies, and tag."""
    count = len(points)
    columns: dict[str, Any] = {"family": pa.array([points.family] * count, pa.string()),
                               "dtype": pa.array([points.dtype] * count, pa.string())}
    for name, column in points.columns.items():
        columns[name] = pa.array(column, mask=column == MISSING)
    if points.batches is not None:
        lengths = [points.batches.lengths(point) for point in range(count)]
        for name, which in (("qlens", 0), ("kvlens", 1)):
            columns[name] = pa.array([pair[which] for pair in lengths], pa.list_(pa.int64()))
        columns["batch"] = points.batches.sequences
    return pa.table({**columns, **(more or {}), "tag": pa.array(points.tags.tolist(), pa.string())})


def save(made: pa.Table, path: Path) -> None:
    """Write a table as CSV or Parquet, by the ending of *path*; raises ConfigError for another, or if it cannot."""
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(str(path), "is of no format that a sweep has; name a file that ends in .csv or .parquet")
    part = path.with_name(f".{path.name}.part")  # an interruption leaves the file that was there
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            pa_csv.write_csv(_flat(made), part, pa_csv.WriteOptions(quoting_style="needed"))
        else:
            pq.write_table(made, part)
        part.replace(path)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None


def _flat(made: pa.Table) -> pa.Table:
    """Lists as texts such as ``1 1 201``."""
    columns = [pc.binary_join(pc.cast(column, pa.list_(pa.string())), " ") if pa.types.is_list(column.type) else column
               for column in made.columns]
    return pa.table(columns, names=made.column_names)

"""Results by the paths that a user names: files, or folders of them, read by the client that wrote them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve

from ksim.foundation import catalog
from ksim.foundation.errors import DataError
from ksim.validation.benchmarks.files import ENDINGS, PlacedTable, tables_of
from ksim.validation.benchmarks.recorded import Recorded, checked
from ksim.validation.recordings import RecordingReader

FOLDER = "validation.recordings"


def runs_of(paths: Sequence[Path]) -> list[Recorded]:
    """The runs in the results at *paths*; raises DataError for one that is in no known form, or does not make sense."""
    return [run for path in paths for run in (_folder(path) if path.is_dir() else read(path))]


def read(path: Path) -> list[Recorded]:
    """The runs in the result at *path*."""
    tables = tables_of(path)
    runs = [checked(run) for run in reader_of(path, tables).runs(path, tables)]
    if not runs:
        raise DataError(str(path), "has no run with an answered request")
    return runs


def reader_of(path: Path, tables: Sequence[PlacedTable] | None = None) -> RecordingReader:
    """The reader that recognises *tables*, those of the file; raises DataError where none does, or several do."""
    tables = tables_of(path) if tables is None else tables
    fitting = _fitting(tables)
    if len(fitting) == 1:
        reader: RecordingReader = catalog.find(FOLDER, fitting[0])()
        return reader
    keys = ", ".join(list(tables[0].values)[:8]) if tables else "nothing"
    problem = f"fits the clients {' and '.join(fitting)}" if fitting else (
        f"is the result of no known client (it has {keys}); expected one of {', '.join(catalog.names(FOLDER))}")
    raise DataError(str(path), problem)


def _fitting(tables: Sequence[PlacedTable]) -> list[str]:
    return [name for name in catalog.names(FOLDER) if tables and catalog.find(FOLDER, name)().recognises(tables[0])]


def _folder(folder: Path) -> list[Recorded]:
    """The runs of all results in *folder*; files of other kinds beside them are left out."""
    results = dict(_results(folder))
    if not results:
        raise DataError(str(folder), "has no result of a known benchmark client; expected files such as"
                                     " profile_export.jsonl or benchmarks.json (see `ksim list recordings`)")
    # A client that writes both requests and aggregates means the same run by both.
    detailed = {name for name, runs in results.values() if any(run.served for run in runs)}
    return _once([run for name, runs in results.values() for run in runs
                  if run.served or name not in detailed or name not in ("aiperf", "genai_perf")])


def _once(runs: Sequence[Recorded]) -> list[Recorded]:
    """*runs* without those that another file has, too, such as benchmarks.yaml beside benchmarks.json."""
    kept: list[Recorded] = []
    for run in runs:
        twin = next((twin for twin, one in enumerate(kept) if one.path != run.path and _alike(one, run)), None)
        if twin is None:
            kept.append(run)
        else:
            remark = f"{run.path.name} has the same run, which counts once"
            kept[twin] = evolve(kept[twin], remarks=(*kept[twin].remarks, remark))
    return kept


def _alike(one: Recorded, other: Recorded) -> bool:
    """Whether two results are of the same run: all they say is the same."""
    return one.tool == other.tool and one.count == other.count and one.load == other.load and (
        one.figures == other.figures and one.duration == other.duration)


def _results(folder: Path) -> Iterator[tuple[Path, tuple[str, list[Recorded]]]]:
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in ENDINGS or not path.is_file():
            continue
        try:
            fitting = _fitting(tables_of(path))
        except DataError:
            continue
        if len(fitting) == 1:
            yield path, (fitting[0], read(path))

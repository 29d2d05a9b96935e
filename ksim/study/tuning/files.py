"""The scenarios of the best trials, as files that `ksim run` takes."""

import shutil
from contextlib import suppress

from ksim.study.tuning.tuning import Tuning

BEST, FRONT = "best.toml", "front"


def write_best(tuning: Tuning) -> None:
    """Write best.toml into the directory of *tuning* and, where there are several objectives, front/N.toml."""
    folder = tuning.directory
    assert folder is not None, "a tuning that is kept has a directory"
    shutil.rmtree(folder / FRONT, ignore_errors=True)
    with suppress(FileNotFoundError):
        (folder / BEST).unlink()
    if tuning.best is not None:
        (folder / BEST).write_text(tuning.best.outcome.scenario, encoding="utf-8")
    if len(tuning.wanted) > 1:
        (folder / FRONT).mkdir()
        for point in tuning.front:
            (folder / FRONT / f"{point.number}.toml").write_text(point.outcome.scenario, encoding="utf-8")

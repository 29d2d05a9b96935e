"""``python -m ksim.calibration.runner POINTS -o FOLDER``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ksim.calibration.reading.sweep import points
from ksim.calibration.sweep import run
from ksim.foundation.errors import KsimError


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the points of a file on this machine's GPU; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ksim.calibration.runner",
                                     description="Measure the points that ksim gpu points wrote, on this GPU.")
    parser.add_argument("points", type=Path, help="file of points, .csv or .parquet")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER",
                        help="folder for kernels_<family>.parquet; points that it has are not measured again")
    given = parser.parse_args(arguments)
    try:
        listed = points(given.points)
        written = run(listed, given.output)
    except KsimError as error:
        print(f"ksim: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"ksim: interrupted; the results are in {given.output}, and the same command continues from there",
              file=sys.stderr)
        return 130
    print(f"{len(written)} files in {given.output}; calibrate with them: ksim gpu calibrate {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the profiles that ship with ksim: ``python -m ksim.calibration.shipped TABLES SWEEP [FAMILY]``.

With FAMILY, such as mla, only its efficiencies are built anew, and the others stay.  TABLES is the folder of public
tables of many GPUs, SWEEP that of our own sweep over an H200.  `learned` holds what all of them teach about any GPU;
the others what was measured on one.  From the public tables they keep fitted coefficients (constants of the physics,
and small networks on top), and no rows.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from attrs import asdict, evolve

from ksim.calibration.calibrate import calibrate
from ksim.calibration.checks import TooFew, check
from ksim.calibration.courses import Candidate, Course, efficiency, teach
from ksim.calibration.datasheet import gpu_named
from ksim.calibration.fitting import Recipe
from ksim.calibration.gathering import digests
from ksim.calibration.learning import efficiencies, learn
from ksim.calibration.lessons import Lesson, join
from ksim.calibration.measurements import Measurements
from ksim.calibration.reading import read
from ksim.calibration.recipes import enrolled
from ksim.calibration.selection import by_gpu, select
from ksim.oracles.efficiency.pointwise import COMBINE
from ksim.oracles.efficiency.profile import Efficiency, Profile, save
from ksim.oracles.efficiency.profiled import PROFILES, shipped
from ksim.oracles.efficiency.region import Region

COMMAND = "python -m ksim.calibration.shipped TABLES SWEEP"
PUBLIC = "NVIDIA AIConfigurator 095f58a (Apache-2.0), measured kernels of {}"
OURS = "our sweep over an H200 with vLLM 0.22 (Apache-2.0)"
#: The GPU of our own sweep.
SWEPT = "h200"
#: Small enough for a profile of several formats, and evaluated in a few microseconds.
NETWORK = Recipe("network", {"hidden": 24, "members": 3})
#: Rows of a public table that a GPU's own coefficients are fitted to and judged by.
ROWS = 6000


def main(tables: str, sweep: str, family: str = "") -> None:
    """Write all profiles; takes some minutes."""
    PROFILES.mkdir(exist_ok=True)
    public, ours = read(Path(tables)), read(Path(sweep), gpu=SWEPT)
    files = digests(ours)
    if family:
        public, ours = _of(family, public), _of(family, ours)
    save(shipped("learned"), "", COMMAND, _kept("learned", family) | _with_combine(dict(_learned(public, ours))))
    for name, _ in by_gpu(public):
        entries = _kept(name, family) | dict(_coefficients(public, name))
        if name == SWEPT:
            entries |= _with_combine(_swept(ours) if ours else {})
        save(shipped(name), gpu_named(name).name, COMMAND, entries, fitted_to=files if name == SWEPT else {})
        print(name, *(f"{key} {entry.error:.1%}" for key, entry in entries.items()), flush=True)


def _of(family: str, measured: Sequence[Measurements]) -> list[Measurements]:
    return [rows for course, taken in enrolled(measured) if course.name.partition("/")[0] == family for rows in taken]


def _kept(name: str, family: str) -> dict[str, Efficiency]:
    """What the profile that ships says of other families than the one that is built anew."""
    if not family:
        return {}
    profile = Profile.load(shipped(name))
    return {key: profile[key] for key in profile if key.partition("/")[0] != family}


def _swept(ours: Sequence[Measurements]) -> dict[str, Efficiency]:
    """What our own sweep says of its GPU."""
    return {part.name: evolve(part.efficiency, source=f"{OURS}: {part.efficiency.source}")
            for part in calibrate(ours, gpu_named(SWEPT), print).parts}


def _with_combine(entries: dict[str, Efficiency]) -> dict[str, Efficiency]:
    """The sum over a token's experts, which no sweep measures alone: as uncertain as the activation before it."""
    if "silu_mul" not in entries:
        return entries
    alike = entries["silu_mul"]
    return {**entries, "moe_combine": evolve(alike, constants=asdict(COMBINE), source="profiled steps on an H200")}


def _lessons(course: Course, taken: Sequence[Measurements]) -> Iterator[Lesson]:
    """The core rows of each GPU's tables, checked; of families with a single usable table, what there is."""
    for name, rows in by_gpu(taken):
        gpu = gpu_named(name)
        for part in rows:
            selected = select(course, [part], gpu)
            for kept in selected.rows:
                try:
                    checked = check(kept, gpu).kept
                except TooFew:
                    continue
                yield from select(course, [checked], gpu).core


def _learned(public: Sequence[Measurements], ours: Sequence[Measurements]) -> Iterator[tuple[str, Efficiency]]:
    """Every course from the public tables; those without any, from our own sweep."""
    tables, swept = dict(_named(public)), dict(_named(ours))
    for name in {**tables, **swept}:
        course, taken = tables.get(name) or swept[name]
        lessons = list(_lessons(course, taken))
        gpus = len({lesson.gpu.name for lesson in lessons})
        if not lessons or (name in tables and gpus == 1):
            continue  # what a table has of one GPU alone says less of others than its relatives do
        source = PUBLIC.format(f"{gpus} GPUs") if name in tables else OURS
        for key, entry in efficiencies(course, lessons, learn(course, lessons), source).items():
            print("learned", key, f"{entry.error:.1%}", flush=True)
            yield key, entry


def _named(measured: Sequence[Measurements]) -> Iterator[tuple[str, tuple[Course, list[Measurements]]]]:
    for course, taken in enrolled(measured):
        yield course.name, (course, taken)


def _coefficients(public: Sequence[Measurements], name: str) -> Iterator[tuple[str, Efficiency]]:
    """What the public tables say of one GPU, as constants and networks."""
    for course, taken in enrolled([rows for rows in public if rows.gpu == name]):
        lessons = list(_lessons(course, taken))
        if not lessons:
            continue
        lesson = join(lessons).sample(ROWS)
        held_back = lesson.groups % 4 == 0
        candidate, judged = Candidate(NETWORK, course.table.inputs), lesson.take(held_back)
        missed = np.log(judged.seconds / teach(course, candidate, [lesson.take(~held_back)]).predict(judged))
        taught = teach(course, candidate, [lesson])
        found = efficiency(taught, [judged], [missed], f"{PUBLIC.format(name)}, {len(lesson):,} rows")
        # Where formats have few layers, those held back are a corner of what was measured.
        yield course.name, evolve(found, region=Region.around(taught.place(lesson)))


if __name__ == "__main__":
    main(*sys.argv[1:])

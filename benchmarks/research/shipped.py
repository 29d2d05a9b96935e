"""Build the profiles that ship with ksim: ``python -m benchmarks.research.shipped TABLES SWEEP [FAMILY]``.

TABLES is the folder of public tables of many GPUs, SWEEP that of our own sweep over an H200.  With FAMILY, such as
mla, only its efficiencies are built anew.  The profile `learned` is fitted to all of them, for any GPU; each of the
others holds what was measured on one GPU.  Of the public tables, profiles keep fitted coefficients (constants of the
physics, and small networks on top) and no rows.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from attrs import asdict, evolve

from benchmarks.research.learning import efficiencies, learn
from ksim.calibration.calibrate import calibrate, digests
from ksim.calibration.checks import TooFew, check
from ksim.calibration.dataset import Dataset, join
from ksim.calibration.datasheet import gpu_named
from ksim.calibration.fitting import Candidate, FitSpec, by_gpu, efficiency, fit, select
from ksim.calibration.measurements import Measurements
from ksim.calibration.reading import read
from ksim.calibration.recipes import by_spec
from ksim.calibration.recipes.grouped_gemm import COMBINE
from ksim.calibration.regression import Regressor
from ksim.oracles.efficiency.models import Efficiency, Region
from ksim.oracles.efficiency.pointwise import Terms
from ksim.oracles.efficiency.profiled import PROFILES, Profile, save, shipped

COMMAND = "python -m benchmarks.research.shipped TABLES SWEEP"
PUBLIC = "NVIDIA AIConfigurator 095f58a (Apache-2.0), measured kernels of {}"
OURS = "our sweep over an H200 with vLLM 0.22 (Apache-2.0)"
#: The GPU of our own sweep.
SWEPT = "h200"
#: A network small enough for a profile of several formats, evaluated in a few microseconds.
NETWORK = Regressor("network", {"hidden": 24, "members": 3})
#: Rows of a public table that a GPU's own coefficients are fitted to and judged by.
ROWS = 6000


def main(tables: str, sweep: str, family: str = "") -> None:
    """Write all profiles, which takes some minutes."""
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
    return [rows for spec, taken in by_spec(measured) if spec.name.partition("/")[0] == family for rows in taken]


def _kept(name: str, family: str) -> dict[str, Efficiency]:
    """Return what the shipped profile holds of the families that are not built anew."""
    if not family:
        return {}
    profile = Profile.load(shipped(name))
    return {key: profile[key] for key in profile if key.partition("/")[0] != family}


def _swept(ours: Sequence[Measurements]) -> dict[str, Efficiency]:
    """Return the efficiencies of our own sweep."""
    return {part.name: evolve(part.efficiency, source=f"{OURS}: {part.efficiency.source}")
            for part in calibrate(ours, gpu_named(SWEPT), print).parts}


def _with_combine(entries: dict[str, Efficiency]) -> dict[str, Efficiency]:
    """Add the sum over a token's experts, which no sweep measures alone, with the uncertainty of the activation."""
    if "silu_mul" not in entries:
        return entries
    combine = evolve(entries["silu_mul"], constants=asdict(Terms(**COMBINE)), source="profiled steps on an H200")
    return {**entries, "moe_combine": combine}


def _datasets(spec: FitSpec, taken: Sequence[Measurements]) -> Iterator[Dataset]:
    """Yield a dataset of the checked core rows of each GPU's tables; a table with too few points is left out."""
    for name, rows in by_gpu(taken):
        gpu = gpu_named(name)
        for part in rows:
            selected = select(spec, [part], gpu)
            for kept in selected.rows:
                try:
                    checked = check(kept, gpu).kept
                except TooFew:
                    continue
                yield from select(spec, [checked], gpu).core


def _learned(public: Sequence[Measurements], ours: Sequence[Measurements]) -> Iterator[tuple[str, Efficiency]]:
    """Yield the efficiencies learned from the public tables, or from our own sweep if they have none of the family."""
    tables, swept = dict(_named(public)), dict(_named(ours))
    for name in {**tables, **swept}:
        spec, taken = tables.get(name) or swept[name]
        datasets = list(_datasets(spec, taken))
        gpus = len({dataset.gpu.name for dataset in datasets})
        if not datasets or (name in tables and gpus == 1):
            continue  # a table of one GPU predicts other GPUs worse than the efficiencies of related formats do
        source = PUBLIC.format(f"{gpus} GPUs") if name in tables else OURS
        for key, entry in efficiencies(spec, datasets, learn(spec, datasets), source).items():
            print("learned", key, f"{entry.error:.1%}", flush=True)
            yield key, entry


def _named(measured: Sequence[Measurements]) -> Iterator[tuple[str, tuple[FitSpec, list[Measurements]]]]:
    for spec, taken in by_spec(measured):
        yield spec.name, (spec, taken)


def _coefficients(public: Sequence[Measurements], name: str) -> Iterator[tuple[str, Efficiency]]:
    """Yield the efficiencies of one GPU from the public tables, as constants and networks."""
    for spec, taken in by_spec([rows for rows in public if rows.gpu == name]):
        datasets = list(_datasets(spec, taken))
        if not datasets:
            continue
        dataset = join(datasets).sample(ROWS)
        held_out = dataset.groups % 4 == 0
        candidate, judged = Candidate(NETWORK, spec.table.inputs), dataset.take(held_out)
        missed = np.log(judged.seconds / fit(spec, candidate, [dataset.take(~held_out)]).predict(judged))
        fitted = fit(spec, candidate, [dataset])
        fit_of_gpu = efficiency(fitted, [judged], [missed], f"{PUBLIC.format(name)}, {len(dataset):,} rows")
        # A format may have few layers: the region is that of all rows, for those held out are a corner of it.
        yield spec.name, evolve(fit_of_gpu, region=Region.around(fitted.place(dataset)))


if __name__ == "__main__":
    main(*sys.argv[1:])

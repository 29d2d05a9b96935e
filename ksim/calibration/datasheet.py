"""GPUs from their files: a data sheet is enough, for the power that a file leaves out is estimated.

An error names everything that a file lacks.  Quantities need units, and figures that no GPU has are refused: a missing
prefix ("4.8 GB/s") would otherwise be simulated without a warning.
"""

from collections.abc import Iterable, Iterator, Mapping
from subprocess import SubprocessError, run
from typing import Any

from attrs import evolve

from ksim.foundation import catalog
from ksim.foundation.catalog import entries, spelled
from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType, checked_unit, quantity
from ksim.specs.hardware import ARCHITECTURES, Gpu, Power

__all__ = ["check_quantities", "gpu_named", "gpu_of_table", "merge", "REQUIRED", "gpu_name", "format_name",
           "nvidia_smi"]

#: The keys that a file must have, besides its tables.
REQUIRED = ("name", "architecture", "sms", "clock", "memory", "bandwidth", "l2", "pcie")
#: Formats whose peaks are needed: the others are estimated from them.
PEAKS = ("fp32", "bf16")
#: A `[power]` with all of these keys is used as it is.
STATED = frozenset({"idle", "limit", "flop", "hbm", "link", "source"})
#: Each quantity's unit, and the least and the most that a GPU of these architectures can have.
RANGES: Mapping[str, tuple[str, float, float]] = {
    "clock": ("Hz", 1e8, 1e10), "memory": ("B", 2.0**30, 2.0**43), "bandwidth": ("B/s", 1e10, 1e14),
    "l2": ("B", 2.0**16, 2.0**34), "nvlink": ("B/s", 1e9, 1e13), "pcie": ("B/s", 1e8, 1e13),
    "channel": ("B/s", 1e8, 1e13), "tdp": ("W", 5.0, 1e5)}
#: The unit of a peak, the least and the most.
PEAK = ("FLOP/s", 1e10, 1e18)
POWER_UNITS = {"idle": "W", "limit": "W", "sleep": "W", "busy": "W", "start": "s", "hbm": "J/B", "write": "J/B",
               "l2": "J/B", "link": "J/B", "network": "J/B"}


def gpu_named(name: str | Choice) -> Gpu:
    """Return the GPU that the catalogue calls *name*, or that of the file at that path; a choice has other figures.

    Raises UnknownName if there is neither, DataError for a file that cannot be read, ConfigError with what is wrong.
    """
    if isinstance(name, Choice):
        return _changed(catalog.load("gpus", name.name), name.options, f"gpu {name.name}")
    return gpu_of_table(catalog.load("gpus", name), f"gpu {name}")


def _changed(table: Mapping[str, Any], figures: Mapping[str, Any], where: str) -> Gpu:
    """The GPU of *table* with other *figures*, and with what follows from them where they do not say it.

    Peaks go with the number of SMs times the boost clock, the clocks of voltages with the boost clock, and what SMs
    draw with their number.  Joules per byte and FLOP stay, unless the table leaves power to be estimated.
    """
    before, made = gpu_of_table(table, where), merge(table, figures)
    if "tdp" in figures and "limit" in table.get("power", {}):
        made = merge(made, {"power": {"limit": figures["tdp"]}})
    after, stated = gpu_of_table(made, where), {DType.named(key) for key in figures.get("flops", {})}
    scale = after.sms * after.clock / (before.sms * before.clock)
    made["flops"] = {str(dtype): f"{peak * (1 if dtype in stated else scale)!r} FLOP/s"
                     for dtype, peak in after.flops.items()}
    gpu = gpu_of_table(made, where)
    return gpu if gpu.power.basis == "estimated" else evolve(gpu, power=_following(before, gpu, figures))


def _following(before: Gpu, after: Gpu, figures: Mapping[str, Any]) -> Power:
    """The power of *after*, which was *before* until its *figures* changed, where they leave it open."""
    power, stated = after.power, figures.get("power", {})
    if "busy" not in stated:
        power = power.of_sms(after.sms / before.sms)
    if (clocks := power.clocks) is None or "clocks" in stated or after.clock == before.clock:
        return power
    ratio = after.clock / before.clock
    voltage: dict[str | float, float] = {clock * ratio: volts for clock, volts in clocks.voltage.items()}
    known = None if clocks.known is None else clocks.known * ratio
    return evolve(power, clocks=evolve(clocks, voltage=voltage, known=known))


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """*base* with *changes*; nested tables are merged too."""
    return {**base, **{
        key: merge(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in changes.items()}}


def gpu_of_table(table: Mapping[str, Any], where: str) -> Gpu:
    """Return the GPU that *table* describes; *where* is for messages.  Raises ConfigError."""
    _complete(table, where)
    _architecture(table, where)
    check_quantities(_ranged(table), where)
    sheet = {key: value for key, value in table.items() if key != "tdp"}
    power = dict(sheet.get("power", {}))
    if "tdp" in table:
        power.setdefault("limit", table["tdp"])
    if power.keys() >= STATED:
        return structure(Gpu, {**sheet, "power": power}, where)
    return _estimated(sheet, power, where)


def _complete(table: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError with everything that *table* lacks."""
    flops, power = table.get("flops", {}), table.get("power", {})
    for key, value in (("flops", flops), ("power", power)):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {key}", f"expected a table, not {value!r}")
    lacking = [key for key in REQUIRED if key not in table]
    lacking += [f"flops.{peak}" for peak in PEAKS if peak not in flops]
    lacking += ["tdp"] if "tdp" not in table and "limit" not in power else []
    if lacking:
        raise ConfigError(where, f"lacks {', '.join(lacking)}; its data sheet has them (`ksim gpu new` asks for each)")


def _architecture(table: Mapping[str, Any], where: str) -> None:
    name = table["architecture"]
    if name not in ARCHITECTURES:
        raise ConfigError(f"{where}: architecture", f"{name!r} is not modelled; kernels are known of NVIDIA's"
                                                    f" {', '.join(ARCHITECTURES)}: name one of them if the GPU runs the"
                                                    " same kernels, or price it by an oracle of your own"
                                                    " (docs/plugins.md)")


def check_quantities(quantities: Iterable[tuple[str, Any, tuple[str, float, float]]], where: str) -> None:
    """Raise ConfigError for a quantity without a unit, with a wrong unit, or out of its range.

    *quantities* are key, value, and (unit, least, most).
    """
    for key, value, (unit, least, most) in quantities:
        try:
            checked_unit(value, unit)
            number = quantity(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {key}", str(error)) from None
        if not (least <= number <= most or (key == "nvlink" and number == 0)):
            raise ConfigError(f"{where}: {key}", f"{value!r} is not between {least:g} and {most:g} {unit}; is its"
                                                 " prefix right?")


def _ranged(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, float, float]]]:
    """Yield the key, value, and (unit, least, most) of each quantity in *table*."""
    power = table.get("power", {})
    yield from ((key, table[key], limits) for key, limits in RANGES.items() if key in table)
    yield from ((f"flops.{key}", value, PEAK) for key, value in table["flops"].items())
    yield from ((f"power.{key}", power[key], (unit, 0.0, 1e5)) for key, unit in POWER_UNITS.items() if key in power)
    if isinstance(flop := power.get("flop", {}), Mapping):
        yield from ((f"power.flop.{key}", value, ("J/FLOP", 0.0, 1.0)) for key, value in flop.items())


def _estimated(sheet: Mapping[str, Any], power: Mapping[str, Any], where: str) -> Gpu:
    """Return the GPU with estimates for what *power* leaves out."""
    from ksim.calibration.power import of_data_sheet, placeholder

    gpu = structure(Gpu, {**sheet, "power": plain(placeholder(power["limit"], power.get("idle", 0)))}, where)
    try:
        filled = plain(of_data_sheet(gpu))
    except ValueError as error:
        raise ConfigError(f"{where}: power", str(error)) from None
    return structure(Gpu, {**sheet, "power": {**filled, **power}}, where)


#: Names that tables have, and no driver.
_TABLES = {"a100_sxm": "a100-80g"}
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float": "fp32", "float32": "fp32", "nvfp4": "fp4",
            "float8": "fp8", "fp8_e4m3": "fp8", "int4_wo": "int4_w4a16", "int8_wo": "int8_w8a16",
            "w4a16_mxfp4": "fp4_w4a16", "w4a8_mxfp4_mxfp8": "fp4_w4a8", "fp8_static": "fp8", "sq": "int8"}


def gpu_name(name: str) -> str | None:
    """Return the catalogue's name of the GPU called *name*, such as "h200_sxm" or "NVIDIA H200"; None if it has none.

    Tables that say a100_sxm mean the one with 80 GB.
    """
    found = _TABLES.get(name) or spelled("gpus", name)
    return found if found in entries("gpus") else None


def format_name(name: str) -> str:
    """Return ksim's name of a number format; unknown names stay as they are."""
    return _FORMATS.get(name, name)


def nvidia_smi(query: str) -> str:
    """Return what nvidia-smi answers to *query*, such as "name", for this machine's first GPU; "" without a driver."""
    try:
        answer = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"],
                     capture_output=True, check=True, encoding="utf-8", timeout=10)
    except (OSError, SubprocessError):
        return ""
    return answer.stdout.strip()

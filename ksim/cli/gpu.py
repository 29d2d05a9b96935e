"""`ksim gpu new`: write the file of a GPU from its data sheet."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ksim.cli.help import App
from ksim.cli.output import say
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import checked_unit, quantity
from ksim.specs.hardware import ARCHITECTURES

app = App(help="Describe GPUs that the catalogue lacks.", no_args_is_help=True)

#: The quantities of a data sheet, by key: the question, the unit of a bare number, and the unit of the quantity.
QUESTIONS: Mapping[str, tuple[str, str, str]] = {
    "clock": ("boost clock, MHz", "MHz", "Hz"), "memory": ("memory as sold, GB", "GB", "B"),
    "bandwidth": ("memory bandwidth, GB/s", "GB/s", "B/s"), "l2": ("L2 cache, MB", "MiB", "B"),
    "bf16": ("dense BF16 TFLOP/s (half of a figure with sparsity)", "TFLOP/s", "FLOP/s"),
    "fp32": ("FP32 TFLOP/s", "TFLOP/s", "FLOP/s"),
    "fp8": ("dense FP8 TFLOP/s, 0 for none", "TFLOP/s", "FLOP/s"),
    "fp4": ("dense FP4 TFLOP/s, 0 for none", "TFLOP/s", "FLOP/s"), "tdp": ("TDP, W", "W", "W"),
    "pcie": ("PCIe bandwidth in one direction, GB/s (Gen4 x16 has 32, Gen5 64)", "GB/s", "B/s"),
    "nvlink": ("NVLink bandwidth in one direction, GB/s (half of both together), 0 for none", "GB/s", "B/s")}
#: Quantities that are 0 if they are not given.
NONE = ("fp8", "fp4", "nvlink")
#: The share of the memory sold, whose GB are GiB, that CUDA offers.  ECC takes a sixteenth of GDDR6, which the
#: cards of Turing and Ada have, and Ampere's below so many bytes a second.
OFFERED, WITH_ECC, GDDR6 = 0.99, 0.92, 8e11


@app.callback()
def gpu() -> None:
    """Describe GPUs that the catalogue lacks."""


@app.command("new", plugins=False)
def new(
    file: Annotated[Path, typer.Argument(help="file to write, such as my-gpu.toml")],
    name: Annotated[str | None, typer.Option(help="what the GPU is called")] = None,
    architecture: Annotated[str | None, typer.Option(help=", ".join(ARCHITECTURES))] = None,
    sms: Annotated[str | None, typer.Option(metavar="COUNT", help="streaming multiprocessors")] = None,
    clock: Annotated[str | None, typer.Option(metavar="MHZ", help="boost clock")] = None,
    memory: Annotated[str | None, typer.Option(metavar="GB", help="memory as sold; in GiB, what CUDA offers")] = None,
    bandwidth: Annotated[str | None, typer.Option(metavar="GB/S", help="memory bandwidth")] = None,
    l2: Annotated[str | None, typer.Option(metavar="MB", help="L2 cache")] = None,
    bf16: Annotated[str | None, typer.Option(metavar="TFLOP/S", help="dense peak; FP16 has the same")] = None,
    fp32: Annotated[str | None, typer.Option(metavar="TFLOP/S", help="peak without tensor cores")] = None,
    fp8: Annotated[str | None, typer.Option(metavar="TFLOP/S", help="dense peak; INT8 has the same; 0: none")] = None,
    fp4: Annotated[str | None, typer.Option(metavar="TFLOP/S", help="dense peak; 0: none")] = None,
    tdp: Annotated[str | None, typer.Option(metavar="W", help="power limit of the board")] = None,
    pcie: Annotated[str | None, typer.Option(metavar="GB/S", help="bandwidth in one direction")] = None,
    nvlink: Annotated[str | None, typer.Option(metavar="GB/S", help="bandwidth in one direction; 0: none")] = None,
    source: Annotated[str, typer.Option(help="where the figures are from")] = "its data sheet",
    force: Annotated[bool, typer.Option("--force", help="overwrite the file")] = False,
) -> None:
    """Write the file of a GPU from its data sheet, and ask for what no option gives.

    A bare number has the unit of the data sheet: 300 and "300 GB/s" are the same bandwidth.
    """
    _check_file(file, force)
    given = {"clock": clock, "memory": memory, "bandwidth": bandwidth, "l2": l2, "bf16": bf16, "fp32": fp32, "fp8": fp8,
             "fp4": fp4, "tdp": tdp, "pcie": pcie, "nvlink": nvlink}
    words = _words({"name": name, "architecture": architecture, "sms": sms}, given)
    quantities = {key: words[key] for key in given}
    text = _text(words["name"], words["architecture"], int(words["sms"]), quantities, source)
    _check_text(text, file)
    file.write_text(text, encoding="utf-8")
    say(f"wrote {file}; try: ksim step --model llama-3.2-1b --gpu {file} --decode 8x1000")


def _check_file(file: Path, force: bool) -> None:
    if file.suffix != ".toml":
        raise ConfigError(str(file), "the file of a GPU ends in .toml")
    if not file.parent.is_dir():
        raise ConfigError(str(file), f"there is no folder {file.parent}")
    if file.exists() and not force:
        raise ConfigError(str(file), "exists; give --force to overwrite it")


def _words(facts: Mapping[str, str | None], given: Mapping[str, str | None]) -> dict[str, str]:
    """The answers to all questions, checked: from options or, on a terminal, from the user.

    Raises ConfigError for wrong options, and without a terminal for missing ones.
    """
    options = {key: _checked(key, value) for key, value in {**facts, **given}.items() if value is not None}
    missing = [key for key in (*facts, *given) if key not in options]
    if not sys.stdin.isatty():
        if lacking := [f"--{key}" for key in missing if key not in NONE]:
            raise ConfigError("ksim gpu new", f"{', '.join(lacking)} are missing, and there is no terminal to ask for"
                                              " them")
        return {**dict.fromkeys(missing, "0"), **options}
    return {**options, **{key: _ask(key) for key in missing}}


def _ask(key: str) -> str:
    def answer(text: str) -> str:
        try:
            return _checked(key, text)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None

    question = {"name": "name", "architecture": f"architecture ({', '.join(ARCHITECTURES)})",
                "sms": "SMs (streaming multiprocessors)"}.get(key) or QUESTIONS[key][0]
    return str(typer.prompt(question, default="0" if key in NONE else None, value_proc=answer))


def _checked(key: str, text: str) -> str:
    """The answer *text*, with its unit if it is a quantity; raises ConfigError."""
    text = text.strip()
    try:
        return _CHECKS.get(key, _quantity)(key, text)
    except ValueError as error:
        raise ConfigError(f"--{key}", str(error)) from None


def _quantity(key: str, text: str) -> str:
    _, usual, unit = QUESTIONS[key]
    try:
        number = float(text)
    except ValueError:
        checked_unit(text, unit)
        number = quantity(text)
    else:
        text = f"{text} {usual}"
    if not (number > 0 or (number == 0 and key in NONE)):
        raise ValueError(f"{text!r} is not positive")
    return "0" if number == 0 else text


def _name(_: str, text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} is no name")
    return text


def _known(_: str, text: str) -> str:
    if text not in ARCHITECTURES:
        raise ValueError(f"{text!r} is none of {', '.join(ARCHITECTURES)}")
    return text


def _count(_: str, text: str) -> str:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise ValueError(f"expected a whole number of SMs, not {text!r}")
    return text


_CHECKS: Mapping[str, Callable[[str, str], str]] = {"name": _name, "architecture": _known, "sms": _count}


def _text(name: str, architecture: str, sms: int, given: Mapping[str, str], source: str) -> str:
    """The content of the file."""
    peaks = {"fp32": given["fp32"], "bf16": given["bf16"], "fp16": given["bf16"], "fp8": given["fp8"],
             "int8": given["fp8"], "fp4": given["fp4"]}
    memory = _offered(given["memory"], architecture, given["bandwidth"])
    rows = [
        ("name", _quoted(name), ""), ("architecture", f'"{architecture}"', "whose kernels it runs"),
        ("sms", str(sms), ""), ("clock", f'"{given["clock"]}"', "boost"),
        ("memory", f'"{memory}"', f"what CUDA offers; sold as {given['memory']}"),
        ("bandwidth", f'"{given["bandwidth"]}"', "of its memory"), ("l2", f'"{given["l2"]}"', ""),
        ("pcie", f'"{given["pcie"]}"', "in one direction"),
        ("nvlink", "0" if given["nvlink"] == "0" else f'"{given["nvlink"]}"', "in one direction; 0: it has none"),
        ("tdp", f'"{given["tdp"]}"', "power is estimated from it; a [power] table states it better (docs/power.md)"),
        ("source", _quoted(source), "")]
    lines = [f"{key} = {value}" + (f"   # {comment}" if comment else "") for key, value, comment in rows]
    kept = [f'{key} = "{value}"' for key, value in peaks.items() if value != "0"]
    return "\n".join([*lines, "", "[flops]   # dense peaks, without sparsity", *kept, ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # also a TOML string


def _offered(memory: str, architecture: str, bandwidth: str) -> str:
    """What CUDA offers of the *memory* that is sold; memory in GiB is taken to be that already."""
    if "iB" in memory:
        return memory
    gddr6 = architecture in ("turing", "ada") or (architecture == "ampere" and quantity(bandwidth) < GDDR6)
    share = WITH_ECC if gddr6 else OFFERED
    return f"{share * quantity(memory) / 1e9:.4g} GiB"


def _check_text(text: str, file: Path) -> None:
    """Raise ConfigError for values that no GPU has, before anything is written."""
    import tomllib

    from ksim.calibration.datasheet import gpu_of_table

    table: dict[str, Any] = tomllib.loads(text)
    gpu_of_table(table, f"gpu {file}")

"""`ksim gpu new`: write the file of a GPU from its data sheet.

`ksim gpu points` and `ksim gpu calibrate`: choose kernels to measure on a GPU, and fit its profile to them.

`ksim model`: the parts of a model, and the GPUs on which it fits.
"""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ksim.cli.flags import JsonFile, Wide, console, say, status, with_step_flags, words_of, write_json
from ksim.cli.help import App, HelpCommand
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import checked_unit, quantity
from ksim.specs.hardware import ARCHITECTURES
from ksim.views.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ksim.calibration.calibrate import CalibratedFamily, Calibration
    from ksim.calibration.sweep import PointsPlan
    from ksim.scenario.model_card import Fit, ModelCard
    from ksim.specs.hardware import Gpu


app = App(help="Describe GPUs that the catalogue lacks, and calibrate ksim to your own.", no_args_is_help=True)

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
    """Describe GPUs that the catalogue lacks, and calibrate ksim to your own."""


@app.command("new")
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
        ("tdp", f'"{given["tdp"]}"', "power is estimated from it; a [power] table states it better (docs/energy.md)"),
        ("source", _quoted(source), "")]
    lines = [f"{key} = {value}" + (f"   # {comment}" if comment else "") for key, value, comment in rows]
    kept = [f'{key} = "{value}"' for key, value in peaks.items() if value != "0"]
    return "\n".join([*lines, "", "[flops]   # dense peaks, without sparsity", *kept, ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # also a TOML string


def _offered(memory: str, architecture: str, bandwidth: str) -> str:
    """Return the part of the *memory* sold that CUDA offers; a size in GiB is taken to be that part already."""
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


GIB = 2.0**30


class ModelCommand(HelpCommand):
    """`ksim model`, which also takes ``--json`` without a file, for standard output, as its first releases did."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args* with the file that ``--json`` lacks."""
        return super().parse_args(ctx, _with_file(args))


def _with_file(words: list[str]) -> list[str]:
    if "--json" not in words:
        return words
    after = words.index("--json") + 1
    following = words[after] if after < len(words) else "--"
    is_file = following == "-" or not (following.startswith("-") or following in catalog.entries("models"))
    return words if is_file else [*words[:after], "-", *words[after:]]


@with_step_flags
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="catalogue name, config.json of Hugging Face, or a folder"
                                        " with one")],
    gpu: Annotated[str, typer.Option(help="only these GPUs: names or files, with commas between")] = "",
    engine: Annotated[str, typer.Option(help="release whose defaults are used")] = "vllm-0.33",
    json_file: JsonFile = None, wide: Wide = False,
    serve: dict[str, Any] | None = None,
) -> None:
    """Show a model's parameters by part, its formats, its KV cache a token, and on which GPUs it fits."""
    from ksim.foundation.config import structure
    from ksim.scenario.model_card import ModelCard
    from ksim.specs.settings import EngineSettings

    settings, gpus = structure(EngineSettings, serve or {}, "model"), words_of(gpu)
    sizes = [settings.tensor_parallel_size] if "tensor_parallel_size" in (serve or {}) else []
    card = ModelCard.of(name, gpus, settings, engine, sizes)
    write_json(json_file, card.table())
    shown = console()
    shown.print(*_head(card), sep="\n", highlight=False)
    shown.print(_parts(card))
    shown.print(*_cache(card), *_vision(card), sep="\n", highlight=False)
    shown.print(_fits(card, all_rows=bool(gpus or sizes)))


def _head(card: "ModelCard") -> list[str]:
    model, precision, decoder = card.model, card.settings.precision, card.model.decoder
    total, active = model.parameters(), model.active_parameters()
    experts = (f", {active / 1e9:.2f} B of them active: {decoder.top_k} of {decoder.sizes['E']} experts a token"
               if decoder.top_k else "")
    kept = f"; {', '.join(precision.kept)} in bf16" if precision.kept else ""
    apart = ", those of experts in {} and {}".format(*precision.experts) if precision.experts else ""
    formats = (f"weights in {precision.weights}, activations in {precision.activations}{apart}, KV cache in"
               f" {precision.cache} (quantization {card.settings.quantization}{kept})")
    return [f"\n[bold]{escape(model.name)}[/]: {total / 1e9:.2f} B parameters{experts}; {model.layers} layers,"
            f" context of {model.max_length:,} tokens", formats, *_drafting(card.table())]


def _drafting(card: dict[str, Any]) -> "Iterator[str]":
    """The modules that predict further tokens, and the drafter that is asked for, if there are any."""
    if count := card["mtp_modules"]:
        yield (f"beside them {card['mtp_parameters'] / 1e9:.2f} B in {count} module{'s' * (count > 1)} that"
               f" predict{'s' * (count == 1)} further tokens (MTP), loaded with speculation alone")
    if drafter := card["drafter"]:
        yield (f"drafter {escape(drafter['name'])}: {drafter['parameters'] / 1e9:.2f} B parameters,"
               f" {drafter['weight_bytes'] / GIB:.2f} GiB of weights,"
               f" {drafter['kv_cache_bytes_per_token'] / 1024:.1f} KiB of KV cache a token, counted in what fits")


def _parts(card: "ModelCard") -> Any:
    shown = Table.of("part", ">parameters", ">share", ">active", ">GiB of weights")
    total = card.model.parameters()
    for part in card.parts:
        shown.add_row(part.name.replace("_", " "), _millions(part.parameters), f"{part.parameters / total:.1%}",
                      _millions(part.active), f"{part.bytes / GIB:.2f}")
    shown.add_row("all", _millions(total), "100.0%", _millions(card.model.active_parameters()),
                  f"{card.weights / GIB:.2f}")
    return shown


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.2f} M"


def _cache(card: "ModelCard") -> "Iterator[str]":
    yield f"KV cache: {card.cache / 1024:.1f} KiB a token over all layers"
    if card.state:
        yield f"states: {card.state / 2**20:.1f} MiB a sequence, whatever its length"
    for kind in card.kinds:
        size = f"{kind.bytes_per_token / kind.layers:,.0f} B a token" if kind.bytes_per_token else (
            f"{kind.bytes_per_sequence / kind.layers / 2**20:.2f} MiB a sequence")
        yield f"  {kind.layers} layers of {kind.name}, {size} each"
    if not card.layout.plain:
        groups = ", ".join(f"{row['groups']} of {row['layers']} layers ({row['kind']})" for row in card.layout.table())
        yield (f"groups: {groups}; a block of {card.settings.block_size} tokens takes"
               f" {card.layout.block_bytes[0] / 1024:,.0f} KiB" + " on each GPU" * (card.settings.gpus > 1))
    if card.slots:
        slots, rank = card.settings.max_loras, card.settings.max_lora_rank
        yield f"slots for {slots} LoRA adapters of rank {rank}: {card.slots / GIB:.2f} GiB over all layers"


def _vision(card: "ModelCard") -> "Iterator[str]":
    """Describe the vision encoder, if the model has one."""
    if (encoder := card.further.get("vision_encoder")) is None:
        return
    whole = card.model.parameters() + encoder["parameters"]
    yield (f"vision encoder: {encoder['parameters'] / 1e6:,.2f} M parameters in {encoder['layers']} layers,"
           f" {encoder['weight_bytes'] / GIB:.2f} GiB in bf16; the whole model has {whole / 1e9:.2f} B parameters")
    yield (f"  images of 256x256 and 1280x720 are {encoder['image_tokens_256x256']:,} and"
           f" {encoder['image_tokens_1280x720']:,} tokens, the largest {encoder['largest_image_tokens']:,}")
    yield (f"  budget of a step and cache: {encoder['encoder_budget_tokens']:,} tokens,"
           f" {encoder['encoder_cache_bytes'] / GIB:.2f} GiB;"
           f" {encoder['activation_bytes'] / GIB:.2f} GiB to encode as many")


def _fits(card: "ModelCard", all_rows: bool) -> Any:
    """The table of what fits; a GPU on which nothing fits has one row that says why, or, with *all_rows*, all rows."""
    length = card.settings.max_model_len
    shown = Table.of("GPU", ">GPUs", ">TP", ">GiB of weights a GPU", ">tokens of KV cache",
                     f">sequences of {length:,} tokens", "why not", title="What fits where")
    for fit in card.fits if all_rows else _worth_showing(card.fits):
        weights = f"{fit.weights / GIB:.1f}" if fit.weights else ""
        numbers = (f"{fit.tokens:,}" if fit.tokens else "", str(fit.sequences) if fit.fits else "-")
        shown.add_row(fit.gpu, str(fit.gpus), str(fit.tensor), weights, *numbers, fit.why)
    return shown


def _worth_showing(fits: "tuple[Fit, ...]") -> "Iterator[Fit]":
    """The sizes that fit on each GPU, and the largest that does not."""
    for fit, following in zip(fits, (*fits[1:], None), strict=True):
        last = following is None or following.gpu != fit.gpu or following.fits
        if fit.fits or last:
            yield fit


#: Seconds of GPU time that a sweep takes by default.
BUDGET = 300.0


@app.command("points")
def points(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="POINTS", help="file to write: .csv or .parquet")],
    gpu: Annotated[str, typer.Option(help="catalogue name or path of a GPU; by default this machine's")] = "",
    families: Annotated[list[str] | None, typer.Option(help="kernel families, with commas between; may be repeated; by"
                                                       " default all")] = None,
    model: Annotated[list[str] | None, typer.Option(help="catalogue name or config.json of a model whose layers are"
                                                    " measured too; may be repeated")] = None,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="GPU time that the sweep may take")] = BUDGET,
    run: Annotated[Path | None, typer.Option("--run", metavar="FOLDER", help="measure the points right away on this"
                                             " machine's GPU, into this folder")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Write the list of kernels to measure on a GPU; `ksim gpu calibrate` makes its profile from the measurements."""
    from ksim.calibration.sweep import plan
    from ksim.scenario.hardware import gpu_of
    from ksim.scenario.models import model_of

    target = gpu_of(gpu or _this_gpu())
    chosen = [name for group in families or [] for name in words_of(group)]
    planned = plan(target, chosen, [model_of(name) for name in model or []], budget)
    planned.save(output)
    console().print(_planned_table(planned, target))
    write_json(json_file, _planned_content(planned, target, output))
    if run is None:
        say(f"written to {output}; where the GPU is, with vLLM installed: "
              f"python -m ksim.calibration.runner {output} -o FOLDER")
    else:
        _measure(planned, run)


def _this_gpu() -> str:
    """The catalogue's name of this machine's GPU; raises ConfigError where it has none, or one that is unknown."""
    from ksim.calibration.datasheet import gpu_name, nvidia_smi
    from ksim.foundation.errors import ConfigError

    device = nvidia_smi("name")
    name = gpu_name(device)
    if name is None:
        why = f"is {device!r} here, which the catalogue lacks" if device else "is needed: this machine has none to ask"
        raise ConfigError("--gpu", f"{why}; name one of ksim list gpus, or the path of a file like theirs")
    return name


def _planned_table(planned: "PointsPlan", gpu: "Gpu") -> Table:
    rows = Table.of("family", ">to calibrate", ">to check", ">expected s", title=f"points for {gpu.name}")
    for name, points, checks, seconds in planned.families():
        rows.add_row(name, f"{points:,}", f"{checks:,}", f"{seconds:.1f}")
    rows.add_section()
    rows.add_row("all", f"{sum(points for _, points, _, _ in planned.families()):,}",
                 f"{sum(checks for _, _, checks, _ in planned.families()):,}", f"{planned.seconds:.1f}")
    return rows


def _planned_content(planned: "PointsPlan", gpu: "Gpu", output: Path) -> dict[str, Any]:
    return {"gpu": gpu.name, "points_file": str(output), "seconds": planned.seconds,
            "families": [{"family": name, "points": points, "check_points": checks, "seconds": seconds}
                         for name, points, checks, seconds in planned.families()]}


def _measure(planned: "PointsPlan", folder: Path) -> None:
    from ksim.calibration.sweep import run

    run(planned.points, folder)


@app.command()
def calibrate(
    sweep: Annotated[list[Path], typer.Argument(metavar="SWEEP...", help="files or folders of measured kernels: sweeps,"
                                                " AIConfigurator's tables, logs of nccl-tests")],
    gpu: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU that was measured: catalogue name or path; by"
                                     " default the one that the files name")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="PROFILE", help="file to write; by default"
                                                " the GPU's name with .npz, in this folder")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Fit the share of its bounds that a GPU reaches, for the oracle `measured`, and report the errors of the fit."""
    from ksim.calibration.calibrate import ENDING, check_writable, digests, ingest, save
    from ksim.calibration.calibrate import calibrate as fit

    screen = console()
    with status("reading") as line:
        ingested = ingest(sweep, gpu)
        path = output or Path(f"{ingested.called}{ENDING}")
        check_writable(path)
        fitted = fit(ingested.measured, ingested.gpu, lambda name: line.update(f"fitting {name}"))
    screen.print(_families(fitted.parts, fitted.gpu.name))
    say("errors are means over points held back group by group; enough: so many points would do nearly as well")
    if fitted.left:
        screen.print(_left(fitted))
    for remark in (*ingested.remarks, *fitted.remarks):
        say(f"note: {remark}")
    words = ["ksim", "gpu", "calibrate", *map(str, sweep), *(("--gpu", gpu) if gpu else ()), "-o", str(path)]
    write_json(json_file, _content(fitted, path))
    save(path, fitted, shlex.join(words), digests(ingested.measured))
    say(f"written to {path}; use it with --oracle {path}, or in a scenario: [oracle] with name = \"measured\" and"
          f" path = \"{path}\"")


def _content(fitted: "Calibration", path: Path) -> dict[str, Any]:
    """The errors of the fit, for a JSON file; errors and biases are shares of the measured time."""
    families = [{"family": part.name, "points": part.points, "error_share": part.error, "bias_share": part.bias,
                 "enough_points": part.enough,
                 "curve": [{"points": points, "error_share": error} for points, error in part.curve],
                 "checks": [{"tag": tag, "points": points, "error_share": error} for tag, points, error in part.checks]}
                for part in fitted.parts]
    return {"gpu": fitted.gpu.name, "profile": str(path), "families": families,
            "left_out": [{"rows": left.rows, "reason": left.reason} for left in fitted.left],
            "remarks": list(fitted.remarks)}


def _families(parts: Sequence["CalibratedFamily"], gpu: str) -> Table:
    rows = Table.of("family", ">points", ">error %", ">bias %", "error % with fewer points", ">enough",
                    "error % at points that taught nothing", title=f"calibration of {gpu}",
                    hide=("error % with fewer points", "error % at points that taught nothing", "enough"))
    for part in parts:
        curve = ", ".join(f"{points:,}: {100 * error:.1f}" for points, error in part.curve)
        checks = ", ".join(f"{tag}: {100 * error:.1f} of {points:,}" for tag, points, error in part.checks)
        rows.add_row(part.name, f"{part.points:,}", f"{100 * part.error:.2f}", f"{100 * part.bias:+.2f}", curve,
                     f"{part.enough:,}", checks)
    return rows


def _left(fitted: "Calibration") -> Table:
    rows = Table.of(">rows", "left out", title="rows left out")
    for left in fitted.left:
        rows.add_row(f"{left.rows:,}", left.reason)
    return rows

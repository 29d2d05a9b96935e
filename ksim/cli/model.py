"""`ksim model`: the parts of a model, and the GPUs on which it fits."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ksim.cli.flags import with_serve_flags, words_of
from ksim.cli.help import Command
from ksim.cli.output import JsonFile, Wide, console, write_json
from ksim.foundation import catalog
from ksim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ksim.simulation.model_card import Fit, ModelCard

GIB = 2.0**30


class ModelCommand(Command):
    """`ksim model`, which also takes ``--json`` without a file, for standard output, as its first releases did."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args* with the file that ``--json`` lacks."""
        return super().parse_args(ctx, _with_file(args))


def _with_file(words: list[str]) -> list[str]:
    if "--json" not in words:
        return words
    place = words.index("--json") + 1
    following = words[place] if place < len(words) else "--"
    is_file = following == "-" or not (following.startswith("-") or following in catalog.entries("models"))
    return words if is_file else [*words[:place], "-", *words[place:]]


@with_serve_flags
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
    from ksim.simulation.model_card import ModelCard
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
    """What there is to say of a vision encoder."""
    if card.vision is None:
        return
    told = card.vision.table()
    whole = card.model.parameters() + card.vision.model.parameters()
    yield (f"vision encoder: {told['parameters'] / 1e6:,.2f} M parameters in {told['layers']} layers,"
           f" {told['weight_bytes'] / GIB:.2f} GiB in bf16; the whole model has {whole / 1e9:.2f} B parameters")
    yield (f"  images of 256x256 and 1280x720 are {told['image_tokens_256x256']:,} and"
           f" {told['image_tokens_1280x720']:,} tokens, the largest {told['largest_image_tokens']:,}")
    yield (f"  budget of a step and cache: {told['encoder_budget_tokens']:,} tokens,"
           f" {told['encoder_cache_bytes'] / GIB:.2f} GiB; {told['activation_bytes'] / GIB:.2f} GiB to encode as many")


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

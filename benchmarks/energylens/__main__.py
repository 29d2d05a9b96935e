"""`python -m benchmarks.energylens`: write the tables and figures of docs/evidence/energylens.md; takes a minute."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from attrs import frozen
from matplotlib.figure import Figure

from benchmarks.energylens.batches import TENSORS, BatchPoint, Phases, Survey
from benchmarks.energylens.plots import batches_figure, fusion_figure, overlap_figure, shares_figure
from benchmarks.energylens.techniques import MOST, NONE, Overlaps, Saving, savings
from benchmarks.pages import put
from ksim.views.drawing import looks, write

PAGE, IMAGES = Path("docs/evidence/energylens.md"), Path("docs/images")
LLAMA, QWEN = "llama-3.1-70b", "qwen3-30b-a3b"
#: The length of the requests, in tokens, of most findings.
LENGTH = 4096
#: The paper's figures.
FUSION, ALL_REDUCE = Phases(0.0437, 0.0818), 0.23


@frozen
class Results:
    """What the table of findings is made from."""

    llama: Survey
    overlaps: Overlaps
    fusion: Phases


def main() -> None:
    """Price everything, then write."""
    saved = {"Prompts": list(savings("prefill")), "Decodes": list(savings("decode"))}
    fusion = Phases(*(mean(saving.share for saving in of_phase) for of_phase in saved.values()))
    results = Results(Survey.of(LLAMA), Overlaps.of(LLAMA, length=LENGTH), fusion)
    put(PAGE, "findings", findings(results))
    put(PAGE, "surveys", surveys({"Llama 3.1 70B": results.llama, **_of_experts()}))
    put(PAGE, "fronts", fronts(results))
    with looks():
        for name, figure in _figures(results, saved).items():
            write(figure, IMAGES / f"energylens-{name}.png")


def _of_experts() -> Mapping[str, Survey]:
    """Surveys of Qwen, with sliced experts, and with whole experts in groups of GPUs."""
    whole = {ways: Survey.of(QWEN, [gpus for gpus in TENSORS if gpus >= ways], enable_expert_parallel=True,
                             expert_parallel_size=ways) for ways in (2, 4)}
    return {"Qwen3 30B A3B, experts sliced": Survey.of(QWEN), "EP2": whole[2], "EP4 (4 and 8 GPUs)": whole[4]}


def _figures(results: Results, saved: Mapping[str, Sequence[Saving]]) -> Mapping[str, Figure]:
    llama, length = results.llama, LENGTH
    reduced = {f"Two prompts of {length:,} tokens": at(llama.prefills, 2, length),
               "64 decodes after 256 tokens": at(llama.decodes, 64, 256)}
    return {
        "batches": batches_figure(llama, "Batches of Llama 3.1 70B", length),
        "all-reduces": shares_figure(reduced, ALL_REDUCE),
        "overlap": overlap_figure(results.overlaps),
        "fusion": fusion_figure(saved, results.fusion, FUSION),
    }


def findings(results: Results) -> Iterator[str]:
    """The table of findings: what each is, the paper's figures, ours, and the settings."""
    yield _row("", "finding", "EnergyLens", "ksim", "settings")
    yield "|--:|---|---|---|---|"
    for number, finding in enumerate((_batches, _variation, _all_reduces, _overlap, _fusion, _power, _preferences), 1):
        yield _row(str(number), *finding(results))


def _batches(results: Results) -> tuple[str, ...]:
    effect = results.llama.batch_effect(8, LENGTH)
    return ("larger batches save next to nothing in prompts and most of the energy in decodes", "as said",
            f"by {effect.prefill:.2f} and {effect.decode:.1f} times", f"8 GPUs, 1 to 64 requests of {LENGTH:,} tokens")


def _variation(results: Results) -> tuple[str, ...]:
    variation, llama = results.llama.variation, results.llama
    return ("energy per token differs between configurations", "1.47 times in prompts, 52.9 in decodes",
            f"{variation.prefill:.2f} and {variation.decode:.1f} times",
            f"2, 4, 8 GPUs, 1 to 64 requests, 256 to 8,192 tokens: {len(llama.prefills)} of prompts and"
            f" {len(llama.decodes)} of decodes fit")


def _all_reduces(results: Results) -> tuple[str, ...]:
    point = at(results.llama.prefills, 2, LENGTH)[-1]
    return ("all-reduces among 8 GPUs", f"{_percent(ALL_REDUCE)} of the energy",
            f"**{_percent(point.exchanged)} of the energy**, {_percent(point.exchanging)} of the time",
            f"two prompts of {LENGTH:,} tokens")


def _overlap(results: Results) -> tuple[str, ...]:
    overlaps = results.overlaps
    plain = sum(point.variant == NONE for point in overlaps.front)
    return ("most overlap is not always best", "it finds 20 % of the front; of one front, most is 2 GPUs without any",
            f"it finds {_percent(overlaps.recovered(MOST))} of {len(overlaps.front)} points; {plain} is without any",
            f"none, or 4 stages on 1, 4, 16 SMs; 2, 4, 8 GPUs; 1 to 16 prompts of {LENGTH:,} tokens:"
            f" {len(overlaps.points)} fit (the paper has 55)")


def _fusion(results: Results) -> tuple[str, ...]:
    theirs, ours = (f"{_percent(saved.prefill, 2)} and {_percent(saved.decode, 2)}"
                    for saved in (FUSION, results.fusion))
    return ("fusion saves some per cents, and more in decodes than in prompts", theirs, ours,
            "a layer on 8 GPUs, mean of 7 batches by 32 lengths")


def _power(results: Results) -> tuple[str, ...]:
    return ("decodes draw far less than the power limit", "up to 60 % less",
            f"**up to {_percent(results.llama.below_limit.decode)} less**", "as for 2")


def _preferences(results: Results) -> tuple[str, ...]:
    prefill, decode = results.llama.thriftiest
    ways = results.llama.fronts(LENGTH)
    prompts, decodes = (f"{min(p.batch for p in points)} to {max(p.batch for p in points)}" for points in ways)
    return ("prompts prefer small batches on few GPUs, decodes large batches", "as said",
            f"on the fronts, batches of {prompts} and of {decodes}; least energy on {prefill.gpus} GPUs, and with"
            f" {decode.batch} decodes", f"as for 2, fronts at {LENGTH:,} tokens")


def surveys(by_model: Mapping[str, Survey]) -> Iterator[str]:
    """The table of findings 1, 2 and 6 by model and deployment."""
    yield _row("", "configurations", "over batches: prompts", "decodes", "over all: prompts", "decodes", "below limit")
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, survey in by_model.items():
        batch, every = survey.batch_effect(8, LENGTH), survey.variation
        spreads = [f"{spread:.2f}" for spread in (batch.prefill, batch.decode, every.prefill, every.decode)]
        yield _row(name, f"{len(survey.prefills)} + {len(survey.decodes)}", *spreads,
                   _percent(survey.below_limit.decode))


def fronts(results: Results) -> Iterator[str]:
    """The table of the fronts of energy per token and latency."""
    prefills, decodes = results.llama.fronts(LENGTH)
    yield _row("", "GPUs x requests (J per prompt or output token, ms), the fastest first")
    yield "|---|---|"
    for name, points in (("prompts", prefills), ("decodes", decodes), ("prompts, overlap", results.overlaps.front)):
        yield _row(name, "; ".join(map(_spelled, points)))


def at(points: Sequence[BatchPoint], batch: int, length: int) -> list[BatchPoint]:
    """The points of a batch and length, by the number of GPUs."""
    return [point for point in points if (point.batch, point.length) == (batch, length)]


def _spelled(point: BatchPoint) -> str:
    way = f", {point.variant}" if point.variant else ""
    return f"{point.gpus} x {point.batch}{way} ({point.joules_per_token:.3g}, {1e3 * point.seconds:,.0f})"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


if __name__ == "__main__":
    main()

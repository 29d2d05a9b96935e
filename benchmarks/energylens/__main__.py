"""`python -m benchmarks.energylens`: write the tables and figures of docs/energylens.md anew; takes a minute."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from benchmarks.energylens import tables
from benchmarks.energylens.fusion import Saving, savings
from benchmarks.energylens.overlap import Overlaps
from benchmarks.energylens.plots import batches_figure, fusion_figure, overlap_figure, shares_figure
from benchmarks.energylens.survey import TENSORS, Phases, Survey
from benchmarks.pages import put
from ksim.report.plots.style import looks, write

PAGE, IMAGES = Path("docs/energylens.md"), Path("docs/images")
LLAMA, QWEN = "llama-3.1-70b", "qwen3-30b-a3b"


def main() -> None:
    """Price everything, then write."""
    saved = {"Prompts": list(savings("prefill")), "Decodes": list(savings("decode"))}
    fusion = Phases(*(mean(saving.share for saving in every) for every in saved.values()))
    results = tables.Results(Survey.of(LLAMA), Overlaps.of(LLAMA, length=tables.LENGTH), fusion)
    put(PAGE, "findings", tables.findings(results))
    put(PAGE, "surveys", tables.surveys({"Llama 3.1 70B": results.llama, **_of_experts()}))
    put(PAGE, "fronts", tables.fronts(results))
    with looks():
        for name, figure in _figures(results, saved).items():
            write(figure, IMAGES / f"energylens-{name}.png")


def _of_experts() -> Mapping[str, Survey]:
    """Qwen, its experts in slices, or whole ones in so many groups of GPUs."""
    whole = {ways: Survey.of(QWEN, [gpus for gpus in TENSORS if gpus >= ways], enable_expert_parallel=True,
                             expert_parallel_size=ways) for ways in (2, 4)}
    return {"Qwen3 30B A3B, experts sliced": Survey.of(QWEN), "EP2": whole[2], "EP4 (4 and 8 GPUs)": whole[4]}


def _figures(results: tables.Results, saved: Mapping[str, Sequence[Saving]]) -> Mapping[str, Figure]:
    llama, length = results.llama, tables.LENGTH
    reduced = {f"Two prompts of {length:,} tokens": tables.at(llama.prefills, 2, length),
               "64 decodes after 256 tokens": tables.at(llama.decodes, 64, 256)}
    return {
        "batches": batches_figure(llama, "Batches of Llama 3.1 70B", length),
        "all-reduces": shares_figure(reduced, tables.ALL_REDUCE),
        "overlap": overlap_figure(results.overlaps),
        "fusion": fusion_figure(saved, results.fusion, tables.FUSION),
    }


if __name__ == "__main__":
    main()

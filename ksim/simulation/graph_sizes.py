"""The batch sizes for which an engine captures CUDA graphs."""

from ksim.cost.graphs import Graphs
from ksim.simulation.speculation import drafted
from ksim.specs.settings import EngineSettings

__all__ = ["capture_sizes", "graphs"]


def graphs(settings: EngineSettings) -> Graphs:
    """The CUDA graphs that an engine with complete *settings* captures.

    Full graphs of steps that only decode hold at most `max_num_seqs` sequences, as in vLLM, and whole ones where each
    verifies drafted tokens (v1/worker/gpu/cudagraph_utils.py, 0.33).  FULL means full graphs of any step, as
    FlashAttention 3 has them, whose attention takes any batch in a graph.
    """
    mode, seqs, width = settings.cudagraph_mode, settings.max_num_seqs, 1 + drafted(settings)
    assert mode is not None and seqs is not None and settings.cudagraph_capture_sizes is not None, "complete them first"
    sizes = tuple(sorted({*settings.cudagraph_capture_sizes}))
    most = min(seqs * width, max(sizes, default=0))
    decodes = tuple(sorted({rounded for size in sizes if (rounded := -(-size // width) * width) <= most}))
    return Graphs(
        full=decodes if mode.startswith("FULL") else (),
        piecewise=sizes if mode.endswith("PIECEWISE") else (),
        mixed=sizes if mode == "FULL" else (),
        eager=settings.enforce_eager, width=width,
    )


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int, largest: int | None = None,
                  width: int = 1, most: int = 512) -> tuple[int, ...]:
    """The batch sizes for which vLLM captures CUDA graphs (config/vllm.py): 1, 2, 4, then by 8 and from 256 by 16.

    The largest is *largest*, or else twice `max_num_seqs` and at most *most*.  `max_num_batched_tokens` bounds them,
    and is a size itself where it does.  Where decodes have *width* tokens, so do as many sequences, if they fit.
    """
    sequences = min(max_num_seqs, most)
    wide = [*_sizes(sequences), sequences] if width > 1 and largest is None else []
    largest = min(largest or min(2 * max_num_seqs * width, most), max_num_batched_tokens)
    bound = {max_num_batched_tokens} if max_num_batched_tokens <= largest else set()
    return tuple(sorted({*_sizes(largest), *(size for number in wide if (size := number * width) <= largest)} | bound))


def _sizes(largest: int) -> list[int]:
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]

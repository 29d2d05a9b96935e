"""The passes of a step beside the target's: its vision encoder's before, its drafter's after, and between these the
check of what the drafter proposed before.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import evolve

from ksim.compute.drafters import Drafter, ngrams, verification
from ksim.compute.further import ROWS, FurtherModel, prompt_logprobs
from ksim.cost.graphs import Graphs
from ksim.cost.passes import Pass, Passes, Timer, without_inputs
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch, Contexts
from ksim.scenario.drafters import drafter_of, drafter_shard
from ksim.scenario.vision import encoder_passes
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Shard

__all__ = ["passes_of", "with_prompt_logprobs"]


def passes_of(timer: StepTimer, settings: EngineSettings) -> list[Pass]:
    """What runs beside the pass of *timer*, which is that of a pipeline stage, with complete *settings*."""
    encoder = encoder_passes(timer, settings)
    if settings.speculative_config is None or not timer.shard.last:
        return encoder
    return [*encoder, _verify(timer), *_draft(timer, settings)]


def _verify(timer: StepTimer) -> Pass:
    """Rejection sampling, which takes the rows of logits that the target's pass has computed."""
    checked = FurtherModel(timer.model.name, verification(timer.model.decoder), prefix="verify.")
    return Pass(_beside(timer, checked, timer.shard, Graphs()),
                lambda batch: [_rows(batch.sequences)] if batch.drafts else [])


@lru_cache(maxsize=4096)
def _rows(count: int) -> Batch:
    """A token of each of *count* sequences."""
    return Batch(Contexts((0,) * count), (), count, count)


def with_prompt_logprobs(timer: Timer) -> Passes:
    """*timer*, which is that of the last pipeline stage, with the passes that log-probabilities of prompts take.

    An engine gets them with the first request that asks for these.
    """
    main, others = (timer.main, timer.others) if isinstance(timer, Passes) else (timer, [])
    return Passes(main, [*others, *(_prompt_logprobs(main, top) for top in (True, False))])


def _prompt_logprobs(timer: StepTimer, top: bool) -> Pass:
    """A pass for each chunk of rows of a step that looks for *top* tokens, or of one that does not."""
    scored = FurtherModel(timer.model.name, prompt_logprobs(timer.model.decoder, top), prefix="logprobs.")

    def chunks(batch: Batch) -> list[Batch]:
        if batch.prompt_logprobs is None or bool(batch.prompt_logprobs) is not top:
            return []
        whole, rest = divmod(batch.prompt_logits, ROWS)
        return [_rows(ROWS)] * whole + ([_rows(rest)] if rest else [])

    return Pass(_beside(timer, scored, timer.shard, Graphs()), chunks)


def _draft(timer: StepTimer, settings: EngineSettings) -> list[Pass]:
    """The passes of the drafter, in vLLM's graphs: the first in those of the target, the later in full ones."""
    config, drafter = settings.speculative_config, drafter_of(timer.model, settings)
    assert config is not None, "a drafter is asked for"
    if drafter is None:
        found = FurtherModel("n-grams", ngrams(timer.model.decoder), prefix="draft.")
        return [Pass(_beside(timer, found, timer.shard, Graphs()), lambda batch: [evolve(batch, drafts=0)])]
    shard, tokens = drafter_shard(drafter, settings, timer.shard), config.num_speculative_tokens
    first, later = _graphs(drafter, timer.graphs, settings)

    def sequences(tokens_by_rank: Sequence[int], number: int) -> Sequence[int]:
        """The sequences of each data rank, as if all decoded: a token of each."""
        return tokens_by_rank if drafter.turns else [-(-count // (tokens + 1)) for count in tokens_by_rank]

    return [Pass(_beside(timer, drafter.first, shard, first), lambda batch: [drafter.first_pass(batch)]),
            *([Pass(_beside(timer, drafter.later, shard, later), lambda batch: drafter.later_passes(batch, tokens),
                    tokens_by_rank=sequences)] if tokens > 1 else [])]


def _graphs(drafter: Drafter, target: Graphs, settings: EngineSettings) -> tuple[Graphs, Graphs]:
    """The CUDA graphs of the first pass and of the later ones, by those of the target (vLLM 0.33, model runner V2).

    Later passes have no piecewise graphs, modules that take turns none either, and draft models none at all.
    """
    config = settings.speculative_config
    eager = target.eager or bool(config and config.enforce_eager)
    if not drafter.captured or eager:
        return Graphs(eager=eager), Graphs(eager=eager)
    if drafter.turns:
        return evolve(target, piecewise=()), evolve(target, piecewise=())
    sequences = tuple(size for size in settings.cudagraph_capture_sizes or () if size <= (settings.max_num_seqs or 0))
    return target, Graphs(full=tuple(sorted(sequences)) if target.full else ())


def _beside(timer: StepTimer, model: FurtherModel, shard: Shard, graphs: Graphs) -> StepTimer:
    """A timer of a further pass on the GPUs of *timer*."""
    more: Mapping[str, Any] = {"model": model, "shard": shard, "graphs": graphs, "host": without_inputs(timer.host)}
    return evolve(timer, **more)

"""When speculation pays: seconds a token with a drafter and without, over the batch."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from attrs import evolve, frozen

from ksim.cost.step import Timer
from ksim.flow.batch import Batch, Contexts
from ksim.flow.request import Request
from ksim.flow.steps import StepCost
from ksim.foundation.catalog import plugin
from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.specs.configs import SpeculativeConfig

__all__ = ["Payoff", "SpeculativeStep", "accepted_length", "compared", "payoff", "verified"]


@frozen
class Payoff:
    """Seconds a token of a sequence (TPOT), `plain` and with speculation, for each of `batches` sequences.

    Each sequence has `context` tokens in the cache, and a verification yields `length` tokens of `drafts` + 1 on
    average.  Speculation `pays` for up to so many sequences, of the `most` that fit.  Host time is left out but for
    launches, behind which GPUs wait.
    """

    title: str
    drafts: int
    length: float
    context: int
    batches: tuple[int, ...]
    plain: tuple[float, ...]
    speculative: tuple[float, ...]
    pays: int

    @property
    def most(self) -> int:
        return self.batches[-1]

    @property
    def sentence(self) -> str:
        """The number of sequences up to which speculation pays, in words."""
        if self.pays == 0:
            return "speculation does not pay, even for one sequence"
        if self.pays >= self.most:
            return f"speculation pays for every batch up to {self.most} sequences, which is the largest"
        again = [batch for batch, plain, fast in zip(self.batches, self.plain, self.speculative, strict=True)
                 if batch > self.pays and fast <= plain]
        more = f"not from {self.pays + 1} on, and again for {again[0]}" if again else f"and not from {self.pays + 1} on"
        return f"speculation pays up to {self.pays} sequences, {more}"

    @property
    def table(self) -> dict[str, Any]:
        """All of it, in seconds and tokens."""
        return {"num_speculative_tokens": self.drafts, "acceptance_length": self.length, "context": self.context,
                "batch": [*self.batches], "tpot": [*self.plain], "tpot_speculative": [*self.speculative],
                "speedup": [plain / fast for plain, fast in zip(self.plain, self.speculative, strict=True)],
                "pays_up_to": self.pays, "largest_batch": self.most}


@frozen
class SpeculativeStep:
    """GPU seconds of a step by pass, and those of the `plain` step over the same sequences without speculation."""

    target: float
    verification: float
    draft: float
    plain: float

    @property
    def seconds(self) -> float:
        return self.target + self.verification + self.draft


def compared(scenario: Scenario, batch: Batch) -> SpeculativeStep:
    """The cost of a step over *batch* with *scenario*'s speculation; sequences that decode verify their drafts."""
    config = scenario.serve.speculative_config
    assert config is not None, "there is speculation"
    steps = [timer.step_cost(verified(batch, config)) for timer in Deployment.of(scenario).timers()]
    plain = [timer.step_cost(batch) for timer in Deployment.of(_plain(scenario)).timers()]
    verification, draft = (sum(runs * kernel.seconds for step in steps for kernel, runs in step.counted()
                               if kernel.label.startswith(prefix)) for prefix in ("verify.", "draft."))
    whole = sum(step.seconds for step in steps)
    return SpeculativeStep(whole - verification - draft, verification, draft, sum(step.seconds for step in plain))


def payoff(scenario: Scenario, context: int) -> Payoff:
    """The payoff of *scenario*'s speculation where every sequence has *context* tokens in the cache.

    Raises KsimError for a scenario without speculation, and for one that cannot be deployed.
    """
    config = scenario.serve.speculative_config
    if config is None:
        raise ConfigError("serve.speculative_config", "is missing: there is no speculation to compare")
    with_drafts, without = (Deployment.of(one) for one in (scenario, _plain(scenario)))
    length, most = accepted_length(config), _most(with_drafts, context + config.num_speculative_tokens + 1)
    plain = _seconds(without, lambda batch: batch, context, 1.0)
    speculative = _seconds(with_drafts, lambda batch: verified(batch, config), context, length)
    batches = tuple(sorted({most, *(2**power for power in range(most.bit_length()))}))
    pays = _crossing(batches, lambda batch: speculative(batch) <= plain(batch))
    title = f"{with_drafts.scenario.model} on {with_drafts.serve.gpus} x {with_drafts.gpu.name}, {config.method}"
    return Payoff(title=title, drafts=config.num_speculative_tokens, length=length, context=context, batches=batches,
                  plain=tuple(map(plain, batches)), speculative=tuple(map(speculative, batches)), pays=pays)


def accepted_length(config: SpeculativeConfig) -> float:
    """Tokens that a sequence gets of a step on average: the accepted ones, and the one that the model samples."""
    return float(1 + config.match_rate * sum(_rates(config)))


def accepted_spread(config: SpeculativeConfig) -> float:
    """The standard deviation of that number over a sequence's steps, over its mean."""
    mean = accepted_length(config)
    square = config.match_rate * sum((2 * place - 1) * rate for place, rate in enumerate(_rates(config), 1))
    return float(max(0.0, square - (mean - 1) ** 2) ** 0.5 / mean)


def _rates(config: SpeculativeConfig) -> Sequence[float]:
    """The chances that the first 1, 2, ... drafts are accepted."""
    if config.acceptance is None:
        return config.synthetic_rates
    rates: Sequence[float] = plugin("scheduling.acceptances", config.acceptance).rates(
        config.num_speculative_tokens, Request(0, 0.0, 1, 1))
    return rates


def verified(batch: Batch, config: SpeculativeConfig) -> Batch:
    """*batch* where its sequences that decode verify drafts, all of them, or those whose n-gram was found.

    Each LoRA adapter's tokens grow as all do: a draft is its sequence's.
    """
    width, contexts = config.num_speculative_tokens + 1, [*batch.contexts]
    wide = round(config.match_rate * len(contexts))
    chunks = (*((1, context) for context in contexts[wide:]), *batch.chunks)
    drafts = (width - 1) * wide
    adapters = tuple(round(tokens * (1 + drafts / batch.tokens)) for tokens in batch.adapters)
    return evolve(batch, contexts=Contexts(tuple(contexts[:wide])), chunks=chunks, tokens=batch.tokens + drafts,
                  width=width, drafts=drafts, adapters=adapters)


def lasts(steps: Sequence[StepCost]) -> float:
    """Seconds of a step on one stage after another: of the GPU, or of the host that launches it."""
    return sum(max(step.seconds, step.launch_seconds) for step in steps)


def _plain(scenario: Scenario) -> Scenario:
    return evolve(scenario, serve=evolve(scenario.serve, speculative_config=None))


def _seconds(deployment: Deployment, of: Callable[[Batch], Batch], context: int, tokens: float
             ) -> Callable[[int], float]:
    """Seconds a token of steps of so many sequences, each of which gives so many *tokens*."""
    timers: list[Timer] = deployment.timers()

    @cache
    def seconds(sequences: int) -> float:
        batch = of(Batch.of(*[(1, context)] * sequences))
        return lasts([timer.step_cost(batch) for timer in timers]) / tokens

    return seconds


def _most(deployment: Deployment, tokens: int) -> int:
    """The sequences of so many *tokens* that an engine has room for in one step."""
    serve = deployment.serve
    assert serve.block_size and serve.max_num_seqs and serve.max_num_batched_tokens, "settings are complete"
    config = serve.speculative_config
    width = config.num_speculative_tokens + 1 if config else 1
    room = deployment.kv_blocks // -(-tokens // serve.block_size)
    if not room:
        raise ConfigError("--decode", f"there is no room for a sequence of {tokens} tokens; take a shorter one")
    return min(room, serve.max_num_seqs, serve.max_num_batched_tokens // width)


def _crossing(batches: Sequence[int], pays: Callable[[int], bool]) -> int:
    """The largest batch for which speculation *pays*, before the first of *batches* for which it does not."""
    low = 0
    for batch in batches:
        if not pays(batch):
            break
        low = batch
    else:
        return low
    high = batch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low

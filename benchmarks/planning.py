"""How good the estimates of `ksim plan` are: random questions whose candidates are all simulated."""

import time
from collections.abc import Sequence
from functools import partial
from math import inf
from statistics import median
from typing import Any

import numpy as np
from attrs import evolve, frozen

from benchmarks.findings import Findings, Goal, Sheet
from ksim.foundation.rng import stream
from ksim.results.steps import Floats
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.journal import Journal
from ksim.study.capacity.judge import LIVES, ByRuns
from ksim.study.experiment import play, scenario_at
from ksim.study.planning.ask import PlanStudy, best_of_families
from ksim.study.planning.candidates import candidates
from ksim.study.planning.estimate import Station, Steady, station
from ksim.study.planning.options import options
from ksim.study.planning.race import Finalist, Race
from ksim.study.planning.ranking import Option
from ksim.study.planning.step_prices import StepPrices
from ksim.study.workers import InProcess, Where, in_order

#: Questions that are drawn.
QUESTIONS = 30
#: What questions are drawn from: dense models, mixtures of experts, and one with latent attention, whose engines of
#: data-parallel attention take minutes a run, and are left out.
MODELS, SLOW = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v2-lite"), (
    "deepseek-v2-lite",)
GPUS, RATES = ("h100", "h200", "b200", "a100-80g"), (1.0, 14.0)
PROMPTS, OUTPUTS = (200, 4000), (40, 300)
TTFTS, TPOTS = (0.3, 0.6, 1.2, 2.5), (0.02, 0.03, 0.05, 0.08)
#: The fewest and the most requests of a run, and the candidates of a question that are simulated at most.
FEWEST, REQUESTS, MOST = 400, 1200, 7
#: Requests in flight of the runs that show the throughput, and how many times as many requests these have.
IN_FLIGHT, WAVES = 24, 6
ERRORS = {"ttft": Goal("median error of the mean TTFT of estimates", 15, "%", timed=False),
          "tpot": Goal("median error of the mean TPOT of estimates", 5, "%", timed=False),
          "throughput": Goal("median error of the throughput of estimates", 5, "%", timed=False)}
PICKED = Goal("questions whose winner is among the first five by estimate, or hardly cheaper", 90, "%", least=True,
              timed=False)


@frozen
class Tried:
    """A candidate that was simulated: its `rank` by estimate, whether it keeps the targets, its `order` and `gpus`, and
    estimates over simulations, minus 1, by metric."""

    rank: int
    stands: bool
    order: tuple[float, ...]
    gpus: float
    errors: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, rank: int, one: Finalist) -> "Tried":
        """What *one* showed; errors are those with the replicas of the estimate."""
        guessed = one.guessed.values if one.guessed else {}
        order, gpus = (one.order(("gpus",)), one.costs["gpus"]) if one.stands else ((inf,), inf)
        return cls(rank, one.stands, order, gpus, tuple(
            (target.metric, one.option.values[target] / value[0] - 1) for target, value in guessed.items()
            if np.isfinite(value[0])))


@frozen
class Answered:
    """A question, the candidates that were simulated, and CPU seconds of the estimates.

    `throughput` is the error of the estimate with a number of requests in flight; None where all engines are apart.
    """

    name: str
    candidates: int
    seconds: float
    ended: tuple[Tried, ...]
    throughput: float | None = None

    @property
    def winner(self) -> int | None:
        """The rank by estimate of the best by simulation."""
        stands = [(one.order, one.rank) for one in self.ended if one.stands]
        return min(stands)[1] if stands else None

    @property
    def dearer(self) -> float:
        """How much more the best of the first five costs than the best of all, as a share."""
        costs = [(one.gpus, one.rank) for one in self.ended if one.stands]
        five = [cost for cost, rank in costs if rank <= 5]
        return min(five, default=inf) / min(costs)[0] - 1 if costs else 0.0

    def errors(self, metric: str) -> list[float]:
        """Estimates over simulations, minus 1, of all that was simulated."""
        if metric == "throughput":
            return [] if self.throughput is None else [self.throughput]
        return [error for one in self.ended for name, error in one.errors if name == metric]


def findings(questions: int = QUESTIONS) -> Findings:
    """So many random questions: errors of the estimates, and where they rank the winner."""
    with Where().workers() as pool:
        return findings_of(in_order(pool.run(answered, range(questions)), questions))


def findings_of(answers: Sequence[Answered]) -> Findings:
    """The tables and goals of *answers*."""
    sheet = Sheet("Random questions: estimates beside simulations of the best candidate of each choice of formats and"
                  f" parallelism, {MOST} at most",
                  ("question", "candidates", "CPU s of estimates", "simulated", "winner's rank by estimate",
                   "TTFT, median error", "TPOT", "throughput"), [_row(found) for found in answers])
    known = [found for found in answers if found.winner is not None]
    picked = 100 * np.mean([found.winner is not None and (found.winner <= 5 or found.dearer <= 0.05)
                            for found in known])
    errors = {metric: [abs(error) for found in answers for error in found.errors(metric)] for metric in ERRORS}
    goals = [goal.judged(100 * median(errors[metric]), 1.0) for metric, goal in ERRORS.items()]
    return Findings([sheet], [*goals, PICKED.judged(float(picked), 1.0)])


def _row(found: Answered) -> list[str]:
    errors = [f"{100 * median(map(abs, values)):.0f} %" if (values := found.errors(metric)) else "-"
              for metric in ERRORS]
    return [found.name, f"{found.candidates:,}", f"{found.seconds:.1f}", str(len(found.ended)),
            str(found.winner or "none stands"), *errors]


def answered(number: int) -> Answered:
    """Question *number*: estimates of all candidates, and simulations of the best of each family."""
    asked, name = question(number)
    begun = time.process_time()
    found = candidates(asked.scenario, asked.kinds, asked.over)
    ranked = best_of_families(sorted(options(asked.question, found.families), key=partial(_order, asked)))[:MOST]
    seconds = time.process_time() - begun
    longest = max((option.seconds for option in ranked), default=0.0)
    requests = round(min(REQUESTS, max(FEWEST, LIVES / 2 * asked.rate * longest)))
    judge = ByRuns(evolve(asked.criteria, requests=requests), InProcess(), Journal(1))
    race = Race(asked.scenario, asked.question, judge, asked.objectives, inf, lambda _: None)
    ended = tuple(Tried.of(rank, race.tried(option)) for rank, option in enumerate(ranked, 1))
    whole = next((option for option in ranked if "pools" not in option.settings), None)
    return Answered(name, found.count, seconds, ended, None if whole is None else _throughput(asked, whole))


def _throughput(asked: PlanStudy, option: Option) -> float:
    """The error of the estimated throughput of one replica of *option* with a number of requests in flight."""
    scenario = scenario_at(asked.scenario, option.settings).with_values({
        "workload.max_concurrency": IN_FLIGHT, "workload.synthetic.count": WAVES * IN_FLIGHT,
        "workload.synthetic.arrivals": {"process": "burst"}})
    requests = play(scenario).history.requests
    ends = np.sort(requests.finished)
    first, last = IN_FLIGHT, (WAVES - 1) * IN_FLIGHT  # neither the burst of the beginning nor the end
    deployment = Deployment.of(scenario_at(asked.scenario, option.settings))
    engines = station([deployment], StepPrices.of(deployment, asked.requests.whole), asked.requests.whole)
    return closed(engines, IN_FLIGHT)[0] * float(ends[last] - ends[first]) / (last - first) - 1


def closed(engines: Station, in_flight: int) -> tuple[float, Steady]:
    """The requests/s of *engines* with so many requests *in_flight* all the time, and their state.

    A request meets the others as if it were not there itself: the arrival theorem (Reiser and Lavenberg, 1980).
    """
    rates, most = np.geomspace(1e-3, 1e3, 64), 0.0
    for _ in range(2):
        state = _states(engines, rates)
        held = np.where(state.full, inf, rates * state.e2el.mean(axis=1))
        after = int(np.searchsorted(np.maximum.accumulate(held), max(in_flight - 1, 1e-9)))
        most = float(rates[max(0, after - 1)])
        rates = np.geomspace(most, rates[min(after, len(rates) - 1)], 32)
    state = _states(engines, np.array([most]))
    seconds = float(state.e2el.mean())
    waits = max(0.0, (in_flight - 1) / most - seconds) if in_flight > 1 else 0.0  # where all places are taken
    return in_flight / (seconds + waits), state


def _states(engines: Station, rates: Floats) -> Steady:
    return engines.rows(np.zeros(len(rates), int)).steady(rates, np.full(len(rates), inf))


def _order(asked: PlanStudy, option: Option) -> tuple[float, ...]:
    return option.order(asked.objectives)


def question(number: int) -> tuple[PlanStudy, str]:
    """Question *number*, and what it asks."""
    rng = stream(number, "planning")
    model, gpu = (str(rng.choice(names)) for names in (MODELS, GPUS))
    rate, prompt, output = (float(f"{np.exp(rng.uniform(*np.log(ends))):.2g}") for ends in (RATES, PROMPTS, OUTPUTS))
    ttft, tpot = float(rng.choice(TTFTS)), float(rng.choice(TPOTS))
    scenario = Scenario.of({
        "model": model, "gpu": gpu, "serve": {"max_model_len": 16384}, "workload": {"synthetic": {
            "count": REQUESTS, "arrivals": {"process": "poisson", "rate": rate}, "max_tokens": 16000,
            "prompt": {"kind": "lognormal", "median": prompt, "sigma": 0.5},
            "output": {"kind": "lognormal", "median": output, "sigma": 0.5}}}})
    over: dict[str, list[Any]] = {"engine": ["vllm-0.33"]}
    if model in SLOW:
        over["serve.data_parallel_size"] = [1]
    asked = PlanStudy.of(scenario, rate, [f"ttft:mean:{ttft:g}s", f"tpot:mean:{tpot:g}s"], (), (), over,
                        requests=REQUESTS, replications=2, seed=0)
    return asked, (f"{model} on {gpu}, {rate:g} requests/s of {prompt:g} + {output:g} tokens, TTFT {ttft:g} s, TPOT"
                   f" {1e3 * tpot:g} ms")

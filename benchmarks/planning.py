"""How good the estimates of `ksim plan` are: random questions whose candidates are all simulated."""

import time
from functools import partial
from math import inf
from statistics import median

import numpy as np
from attrs import evolve, frozen

from benchmarks.findings import Findings, Goal, Sheet
from ksim.foundation.rng import stream
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.journal import Journal
from ksim.study.capacity.judge import ByRuns
from ksim.study.planning.ask import PlanStudy, best_of_families
from ksim.study.planning.candidates import candidates
from ksim.study.planning.options import options
from ksim.study.planning.race import Finalist, Race
from ksim.study.planning.ranking import Option
from ksim.study.workers import InProcess, Where, in_order

#: Questions that are drawn, of which those about a slow model are left out.
QUESTIONS, SLOW = 9, ("deepseek-v2-lite",)
#: What questions are drawn from: dense models, mixtures of experts, and one with latent attention, whose engines of
#: data-parallel attention take minutes a run.
MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v2-lite")
GPUS, RATES = ("h100", "h200", "b200", "a100-80g"), (2.0, 40.0)
PROMPTS, OUTPUTS = (200, 6000), (50, 600)
TTFTS, TPOTS = (0.3, 0.6, 1.2, 2.5), (0.02, 0.03, 0.05, 0.08)
#: Requests of a run, and the candidates of a question that are simulated at most.
REQUESTS, MOST = 800, 6
ERRORS = {"ttft": Goal("median error of the mean TTFT of estimates", 15, "%", timed=False),
          "tpot": Goal("median error of the mean TPOT of estimates", 5, "%", timed=False)}
PICKED = Goal("questions whose winner is among the first five by estimate", 90, "%", least=True, timed=False)


@frozen
class Answered:
    """A question, the candidates that were simulated with their ranks by estimate, and CPU seconds of the estimates."""

    name: str
    candidates: int
    seconds: float
    ended: tuple[tuple[int, Finalist], ...]

    @property
    def winner(self) -> int | None:
        """The rank by estimate of the best by simulation."""
        stands = [(one.order(("gpus",)), rank) for rank, one in self.ended if one.stands]
        return min(stands)[1] if stands else None

    @property
    def dearer(self) -> float:
        """How much more the best of the first five costs than the best of all, as a share."""
        costs = [(one.costs["gpus"], rank) for rank, one in self.ended if one.stands]
        five = [cost for cost, rank in costs if rank <= 5]
        return min(five, default=inf) / min(costs)[0] - 1 if costs else 0.0

    def errors(self, metric: str) -> list[float]:
        """Estimates over simulations, minus 1, of all that was simulated with the replicas of the estimate."""
        return [one.option.values[target] / one.point.values[target][0] - 1 for _, one in self.ended
                if one.point is not None and one.replicas == one.option.replicas
                and one.setup.settings == one.option.settings
                for target in one.point.values if target.metric == metric and np.isfinite(one.point.values[target][0])]


def findings(questions: int = QUESTIONS) -> Findings:
    """So many random questions: errors of the estimates, and where they rank the winner."""
    asked = [number for number in range(questions) if question(number)[0].scenario.model not in SLOW]
    with Where().workers() as pool:
        answers = in_order(pool.run(answered, asked), len(asked))
    sheet = Sheet("Random questions: estimates beside simulations of the best candidate of each choice of formats and"
                  f" parallelism, {MOST} at most",
                  ("question", "candidates", "CPU s of estimates", "simulated", "winner's rank by estimate",
                   "TTFT, median error", "TPOT"), [_row(found) for found in answers])
    known = [found for found in answers if found.winner is not None]
    picked = 100 * np.mean([found.winner is not None and (found.winner <= 5 or found.dearer <= 0.05)
                            for found in known])
    errors = {metric: [abs(error) for found in answers for error in found.errors(metric)] for metric in ERRORS}
    goals = [goal.judged(100 * median(errors[metric]), 1.0) for metric, goal in ERRORS.items()]
    return Findings([sheet], [*goals, PICKED.judged(float(picked), 1.0)])


def _row(found: Answered) -> list[str]:
    errors = [f"{100 * median(map(abs, values)):.0f} %" if (values := found.errors(metric)) else "-"
              for metric in ERRORS]
    return [found.name, str(found.candidates), f"{found.seconds:.1f}", str(len(found.ended)),
            str(found.winner or "none stands"), *errors]


def answered(number: int) -> Answered:
    """Question *number*: estimates of all candidates, and simulations of the best of each family."""
    asked, name = question(number)
    begun = time.process_time()
    found = candidates(asked.scenario, asked.kinds)
    ranked = best_of_families(sorted(options(asked.question, found.families), key=partial(_order, asked)))
    seconds = time.process_time() - begun
    judge = ByRuns(evolve(asked.criteria, requests=REQUESTS), InProcess(), Journal(1))
    race = Race(asked.scenario, asked.question, judge, asked.objectives, inf, lambda _: None)
    ended = tuple((rank, race.tried(option)) for rank, option in enumerate(ranked[:MOST], 1))
    return Answered(name, found.count, seconds, ended)


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
    asked = PlanStudy.of(scenario, rate, [f"ttft:mean:{ttft:g}s", f"tpot:mean:{tpot:g}s"], (), (), (),
                        requests=REQUESTS, replications=2, seed=0)
    return asked, (f"{model} on {gpu}, {rate:g} requests/s of {prompt:g} + {output:g} tokens, TTFT {ttft:g} s, TPOT"
                   f" {1e3 * tpot:g} ms")

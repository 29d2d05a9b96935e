"""What tells routers apart, and a run's summary does not: the engines' imbalance, and regret against another run."""

from collections.abc import Iterator

import numpy as np
from attrs import Factory, field, frozen

from ksim.report.result import Result
from ksim.results.arrays import Floats, Ints, sums
from ksim.results.history import History


@frozen(eq=False)
class Waits:
    """How long each request of a run waits for its first token (TTFT) and its last (`e2e`), in seconds.

    They stand by ids in rising order; nan for requests without a token.
    """

    ids: Ints
    ttft: Floats
    e2e: Floats = field(default=Factory(lambda self: self.ttft, takes_self=True))

    @classmethod
    def of(cls, result: Result) -> "Waits":
        requests = result.history.requests
        order = np.argsort(requests.ids, kind="stable")
        return cls(requests.ids[order], requests.ttft[order], requests.e2e[order])

    def regret(self, best: "Waits", until: str = "ttft") -> Floats:
        """How much longer each request waits than in the run with the *best* router, of those served in both."""
        _, own, others = np.intersect1d(self.ids, best.ids, assume_unique=True, return_indices=True)
        longer: Floats = getattr(self, until)[own] - getattr(best, until)[others]
        return longer[~np.isnan(longer)]


#: The names of regrets, by what is waited for.
REGRETS = {"ttft": "regret", "e2e": "latency_regret"}


def regrets(own: Waits, best: Waits | None) -> dict[str, float | None]:
    """The mean regrets and their 99th percentiles in ms; None where nothing is known of the *best* router."""
    numbers: dict[str, float | None] = {}
    for until, name in REGRETS.items():
        longer = own.regret(best, until) if best is not None else np.zeros(0)
        numbers[f"mean_{name}_ms"] = 1e3 * float(longer.mean()) if len(longer) else None
        numbers[f"p99_{name}_ms"] = 1e3 * float(np.percentile(longer, 99)) if len(longer) else None
    return numbers


def imbalance(history: History) -> dict[str, float | None]:
    """How unequal the tokens are that engines of one pool compute, in the pool where they are most unequal.

    That is their standard deviation over their mean (coefficient of variation), and the largest over their mean.  Both
    are None where no pool has two engines.  Tokens that a cache holds are not computed.
    """
    pools = [tokens for tokens in _by_pool(history) if len(tokens) > 1 and tokens.any()]
    ends = [(float(tokens.std() / tokens.mean()), float(tokens.max() / tokens.mean())) for tokens in pools]
    spread, most = max(ends, default=(None, None))
    return {"engine_tokens_cv": spread, "engine_tokens_max_over_mean": most}


def _by_pool(history: History) -> Iterator[Floats]:
    tokens = sums(history.steps.engine, history.steps.tokens, len(history.engines))
    for pool in np.unique(history.pool):
        yield tokens[history.pool == pool]

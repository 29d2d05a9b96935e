"""Some requests of a load in the order in which they come, and what prefix caches hold of their prompts."""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from math import inf

import numpy as np
from attrs import field, frozen

from ksim.flow.request import Request
from ksim.results.steps import Floats, Ints
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Criteria
from ksim.study.planning.step_prices import LoadSample
from ksim.workload.rows import follows
from ksim.workload.statistics import Reuse, Reuses, lru_tails_first

#: Requests that are looked at, and the tokens of a block of shared prefixes.
_SAMPLE, _BLOCK = 2000, 16
#: Seconds a token, as good as any to say which turns of sessions come between which.
_TOKEN = 0.03
#: Sizes of caches that differ by less than this ratio are taken to be the same.
_ALIKE = 2**0.5
#: Routers that spread requests whatever they have in common.
SPREADING = ("round_robin", "random", "least_outstanding", "power_of_two", "vllm_dp_balancer", "lora_affinity")


@frozen(eq=False)
class SampledRequests:
    """The first requests of a load, by the time at which they come; the rate counts one of so many (`turns`)."""

    requests: tuple[Request, ...] = field(repr=False)
    turns: float
    caching: bool = True
    _streams: dict[int, list[tuple[Ints, Reuses]]] = field(factory=dict, init=False, repr=False)
    _loads: dict[tuple[int, int], LoadSample] = field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, scenario: Scenario, rate: float, criteria: Criteria) -> "SampledRequests":
        """The first ones of *scenario*'s workload at this *rate*, as of the first replication."""
        traffic = Traffic.of(scenario.workload, max(criteria.count, _SAMPLE))
        drawn = [*islice(traffic.requests(rate, criteria.seed), _SAMPLE)]
        times, own, previous = [], 0, None
        for request in drawn:
            if follows(request, previous):
                assert previous is not None, "it follows"
                times.append(times[-1] + _TOKEN * previous.output + request.delay)
            else:
                times.append(request.arrival)
                own += 1
            previous = request
        order = np.argsort(times, kind="stable")
        return cls(tuple(drawn[place] for place in order), len(drawn) / own,
                   scenario.serve.enable_prefix_caching is not False)

    @cached_property
    def whole(self) -> LoadSample:
        """The load of one cache that holds all prompts."""
        return self._load(1, np.inf)

    @cached_property
    def _asked(self) -> Floats | None:
        """The prompt tokens of the turn before each request, of any other infinitely many; None without sessions."""
        last, found = dict[str, float](), list[float]()
        for request in self.requests:
            found.append(last.get(request.session, inf))
            if request.session:
                last[request.session] = float(request.prompt)
        return np.array(found) if last else None

    @property
    def shared(self) -> bool:
        """Whether some requests find a part of their prompts in a cache."""
        return bool(self.whole.cached.any())

    def load(self, tokens: float, caches: int, together: bool) -> LoadSample:
        """The load where there are so many *caches* for so many *tokens* each.

        They see requests in turn, or those *together* that share prefixes, as if they were one cache.  Sizes that are
        nearly the same have the same load.
        """
        if not self.shared:
            return self.whole
        streams, size = (1, caches * tokens) if together else (caches, tokens)
        key = streams, round(np.log(max(size, 1.0)) / np.log(_ALIKE))
        if key not in self._loads:
            self._loads[key] = self._load(streams, _ALIKE ** key[1])
        return self._loads[key]

    def _load(self, streams: int, tokens: float) -> LoadSample:
        prompts, outputs = (np.array([getattr(request, name) for request in self.requests], dtype=np.float64)
                            for name in ("prompt", "output"))
        cached = np.zeros_like(prompts)
        if self.caching and any(request.chunks for request in self.requests):
            blocks = tokens / _BLOCK * prompts.mean() / (prompts.mean() + outputs.mean())  # outputs take the rest
            for rows, reuses in self._reuses(streams):
                cached[rows] = _held(reuses, blocks, len(rows))
        return LoadSample(prompts, np.minimum(cached, prompts - 1), outputs, turns=self.turns, asked=self._asked)

    def _reuses(self, streams: int) -> list[tuple[Ints, Reuses]]:
        """The requests of each of so many *streams*, which take turns, and what these use again."""
        if streams not in self._streams:
            self._streams[streams] = [*self._cut(min(streams, len(self.requests)))]
        return self._streams[streams]

    def _cut(self, streams: int) -> Iterator[tuple[Ints, Reuses]]:
        for first in range(streams):
            rows = np.arange(first, len(self.requests), streams)
            yield rows, Reuse.of((self.requests[row] for row in rows), _BLOCK).reuses()


def _held(reuses: Reuses, blocks: float, requests: int) -> Floats:
    """The tokens of each request's prompt that a cache of so many *blocks* holds, as vLLM's does."""
    found = reuses.blocks if np.isinf(blocks) else lru_tails_first(reuses, int(blocks))
    tokens = found * _BLOCK - reuses.missing * (found == reuses.blocks)
    return np.bincount(reuses.by, tokens, minlength=requests).astype(np.float64)

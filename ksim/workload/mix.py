"""Several workloads at once: the arrivals that they share, and their requests in one stream.

Each draws from streams of random numbers of its own, so that a change of one leaves the requests of the others as they
are.  The first has those that it would have alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import attrgetter

import numpy as np
from attrs import evolve

from ksim.flow.request import Request
from ksim.foundation.rng import stream
from ksim.workload.arrivals import Arrivals
from ksim.workload.rows import Ledger

__all__ = ["merged", "noted", "renamed", "seeds_of", "shared_times"]

_BLOCK = 4096


def seeds_of(names: Iterable[str], seed: int) -> dict[str, int]:
    """The seed of each workload of a mix by its name: the first has that of the scenario."""
    return {name: int(stream(seed, f"workload.mix.{name}").integers(2**62)) if place else seed
            for place, name in enumerate(names)}


def shared_times(arrivals: Arrivals, count: int, shares: Mapping[str, float], name: str, seed: int) -> Iterator[float]:
    """Those of the *count* times of common *arrivals*, in seconds, that fall to the workload *name*, by its share.

    Each workload draws all of them anew, as often as there are workloads, and holds none in memory.
    """
    bounds, chance = np.cumsum([0.0, *shares.values()]), stream(seed, "workload.mix.share")
    place = [*shares].index(name)
    low, high = (float(bounds[place] / bounds[-1]), float(bounds[place + 1] / bounds[-1]))
    return (time for time, drawn in zip(arrivals.times(stream(seed, "workload.mix.arrivals"), count), _uniform(chance),
                                        strict=False) if low <= drawn < high)


def _uniform(chance: "np.random.Generator") -> Iterator[float]:
    while True:
        yield from chance.random(_BLOCK).tolist()


def renamed(requests: Iterable[Request], name: str, model: str, tenant: str | None) -> Iterator[Request]:
    """*requests* of the workload *name*, which are for a *model* and of a *tenant* where these are not empty.

    Their sessions and prompts have nothing to do with those of others that are called alike.
    """
    for request in requests:
        chunks = request.chunks
        yield evolve(request, workload=name, model=model or request.model,
                     tenant=request.tenant if tenant is None else tenant,
                     session=f"{name}/{request.session}" if request.session else "",
                     chunks=((name, chunks[0]), *chunks[1:]) if chunks else ())


def merged(parts: Iterable[Iterable[Request]]) -> Iterator[Request]:
    """The requests of all *parts* by arrival, and of equal ones in the order of the parts, numbered from 0."""
    for number, request in enumerate(merge(*parts, key=attrgetter("arrival"))):
        yield evolve(request, id=number)


def noted(requests: Iterable[Request], own: Ledger, ledger: Ledger, name: str) -> Iterator[Request]:
    """*requests*, after the last of which what its *own* ledger has is added to that of all."""
    yield from requests
    ledger.add(own, name)

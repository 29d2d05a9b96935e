"""A plausible log of a fleet without engines or network: toy engines prefill, others decode, and made-up links between.

Every seventh request is not split, every eleventh fails before it is decoded, and the lease of every thirteenth ends.
"""

from collections import defaultdict

import numpy as np
from attrs import define, evolve, field, frozen

from ksim.flow.batch import Batch
from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    EngineBuilt,
    Event,
    Failed,
    Finished,
    LinkBuilt,
    LinkUsed,
    Prefilled,
    Received,
    Released,
    Routed,
    Stepped,
    Transferred,
)
from ksim.flow.log import Log
from ksim.flow.request import Request

from . import fabricate

KV_BYTES, LINK = 131072.0, 25e9


@frozen
class Style:
    """How the connector works: `concurrent`, `by_chunk` and `hands_over_token`, as its plug-in says.

    A token that is handed over comes to the user from the prefill engine, or *late*, with the decode engine's first.
    """

    concurrent: bool = False
    by_chunk: bool = False
    hands_over: bool = False
    late: bool = False


PULL = Style()


@define
class Decoder(fabricate._Engine):
    """Decodes what was loaded: all tokens but one are there when a request is first admitted."""

    handed: int = 0
    loaded: set[int] = field(factory=set)

    def _receive(self) -> None:
        before = len(self.waiting)
        super()._receive()
        for job in list(self.waiting)[before:]:
            if isinstance(job.request, Loaded):
                self.loaded.add(job.request.id)
                job.out = self.handed

    def _admit(self) -> None:
        for job in self.waiting:
            if isinstance(job.request, Loaded) and job.known == 0:
                job.done = job.request.prompt + job.out - 1
        fresh = {id(job) for job in self.waiting if job.known == 0}
        ready = {id(job): job.done for job in self.waiting}
        first = len(self.events)
        super()._admit()
        for place, (job, event) in enumerate(zip(self._newest(first), self.events[first:], strict=True)):
            if isinstance(job.request, Loaded) and isinstance(event, Admitted) and id(job) in fresh:
                job.done = ready[id(job)]
                self.events[first + place] = evolve(event, cached=job.done, again=False)

    def _newest(self, first: int) -> list:
        admitted = len(self.events) - first
        return self.running[len(self.running) - admitted:]


class Loaded(Request):
    """A request whose KV comes from another engine; it arrives when that is there."""


def log(count: int = 60, *, rate: float = 12.0, output: int = 24, prefill: int = 2, decode: int = 2, ranks: int = 1,
        style: Style = PULL, preempt_every: int = 0, seats: int = 64, decode_first: bool = False,
        seed: int = 1) -> Log:
    """A run of *count* requests over *prefill* and *decode* engines; decode engines have the lower numbers if
    *decode_first*."""
    sources = range(decode, decode + prefill) if decode_first else range(prefill)
    targets = range(decode) if decode_first else range(prefill, prefill + decode)
    made = _Made(np.random.default_rng(seed), style, [], defaultdict(list))
    asked = fabricate.requests(count, rate, output, seed)
    _prefill(made, asked, [fabricate._Engine(number, ranks, 1, 2048, seats) for number in sources], targets,
             preempt_every)
    for number in targets:
        engine = Decoder(number, 1, 1, 2048, seats, handed=int(style.hands_over))
        engine.arrivals.extend(sorted(made.arriving[number], key=lambda request: request.arrival))
        engine.run(preempt_every)
        made.events += [*(_late_tokens(engine) if style.hands_over and style.late else ()), *engine.events]
    built = [_built(number, "prefill", ranks) for number in sources] + [_built(n, "decode", 1) for n in targets]
    order = {kind: place for place, kind in enumerate(
        (Arrived, Routed, Received, Stepped, Emitted, Prefilled, Transferred, Released, Failed, Finished))}
    made.events.sort(key=lambda event: (event.time, order.get(type(event), len(order))))
    log = Log(built, made.events)
    log.links += [LinkBuilt(number, f"NIC of node {number}, out", "nic", LINK) for number in range(prefill)]
    return log


def _late_tokens(engine: Decoder) -> list[Event]:
    """The tokens that were handed over to *engine*, each from the first step of its request."""
    first: dict[int, Emitted] = {}
    for event in engine.events:
        if isinstance(event, Emitted):
            first.setdefault(event.request_id, event)
    return [evolve(event, last=event.first) for event in first.values() if event.request_id in engine.loaded]


def _built(number: int, pool: str, ranks: int) -> EngineBuilt:
    return evolve(fabricate.built(number, ranks), pool=pool, role=pool, replica=number, reach=0.1)


@define
class _Made:
    """What has been made up so far: events, and the requests that arrive at each decode engine."""

    random: np.random.Generator
    style: Style
    events: list[Event]
    arriving: dict[int, list[Request]]


def _prefill(made: _Made, asked: list[Request], engines: list, targets: range, preempt_every: int) -> None:
    by_id = {request.id: request for request in asked}
    for place, request in enumerate(asked):
        engine, target = engines[place % len(engines)], targets[place % len(targets)]
        made.events.append(Arrived(request.arrival, request))
        if request.id % 7 == 6:
            made.events += [Routed(request.arrival, request.id, target), Received(request.arrival, request.id, target)]
            made.arriving[target].append(request)
            continue
        made.events += [Routed(request.arrival, request.id, target, engine.id),
                        Received(request.arrival + 1e-3, request.id, engine.id)]
        engine.arrivals.append(evolve(request, arrival=request.arrival + 1e-3, output=1))
    for engine in engines:
        engine.run(preempt_every)
        ends = {event.index: event.end for event in engine.events if isinstance(event, Stepped)}
        for event in engine.events:
            if isinstance(event, Emitted):
                target = targets[asked.index(by_id[event.request_id]) % len(targets)]
                _hand_over(made, by_id[event.request_id], engine.id, target, event, ends[event.last])
            elif not isinstance(event, Finished):
                made.events.append(event)


def _hand_over(made: _Made, request: Request, source: int, target: int, emitted: Emitted, end: float) -> None:
    """What happens from the *end* of the step of the last prompt token until the KV is there."""
    random, style, size = made.random, made.style, request.prompt * KV_BYTES
    answered = emitted.time + 2e-4
    made.events.append(Prefilled(answered, request.id, source, emitted.last))
    if style.hands_over:
        made.events += [emitted] if request.output == 1 or not style.late else []
        if request.output == 1:
            made.events += [Released(answered, request.id, source), Finished(answered, request.id, source)]
            return
    queued = request.arrival + 2e-3 if style.concurrent else answered + random.exponential(1e-3)
    made.events.append(Received(queued, request.id, target))
    if request.id % 11 == 10:
        made.events += [Failed(max(queued, answered) + 0.01, request.id, target, "the load failed"),
                        Released(queued + 30.0, request.id, source, True)]
        return
    allocated, alone = queued + random.choice([0.0, 1e-3, 0.2]), size / LINK
    began = max(allocated, end - 0.5 * alone * style.by_chunk) + 1e-4
    loaded = max(began + alone * random.choice([1.0, 1.0, 2.5]), end)
    expired = request.id % 13 == 12
    made.events += [Transferred(loaded, request.id, source, target, allocated, began, alone, size, request.prompt),
                    Released(loaded + (20.0 if expired else 1e-4), request.id, source, expired),
                    LinkUsed(began, source % 2, size / (loaded - began)), LinkUsed(loaded, source % 2, 0.0)]
    made.arriving[target].append(Loaded(request.id, loaded, request.prompt, request.output))


def by_hand(queued: float = 4.5, handed: bool = False) -> Log:
    """One request, prefilled by engine 5 in its step from 2 to 3 and decoded by engine 1 in steps from 8, 9 and so on.

    Its answer is with the router at 4, blocks are there at 5, the first byte leaves at 5.25, the last arrives at 7.25
    where 1.5 seconds would have done, and the request is admitted at 7.75.
    """
    def step(engine: int, index: int, start: float, batch: Batch) -> Stepped:
        costs = (fabricate.step_costs(batch)[0],)
        return Stepped(start + 1.5, engine, index, start - 0.25, start, start, start + 1.0, start + 1.25, batch, 0, 1,
                       7, costs)

    request, first = Request(3, 0.0, 100, 3), 2 if handed else 1
    events = [
        Arrived(0.0, request), Routed(0.0, 3, 1, 5), Received(0.5, 3, 5), Received(queued, 3, 1),
        Admitted(1.75, 3, 5, 0, 100), step(5, 0, 2.0, Batch.of((100, 0), prompts=[(3, 100, 0)])),
        Prefilled(4.0, 3, 5, 0), Transferred(7.25, 3, 5, 1, 5.0, 5.25, 1.5, 1e9, 99), Released(7.5, 3, 5),
        Admitted(7.75, 3, 1, 99, 100), step(1, 0, 8.0, Batch.of((1, 99), prompts=[(3, 1, 99)])),
        *(step(1, index, 8.0 + index, Batch.of((1, 99 + index))) for index in range(1, 4 - first)),
        Emitted(12.0, 3, 1, 0, 3 - first), Finished(12.0, 3, 1), LinkUsed(5.25, 0, 5e8), LinkUsed(7.25, 0, 0.0)]
    events += [Emitted(3.5, 3, 5, 0, 0)] if handed else []
    log = Log([_built(1, "decode", 1), _built(5, "prefill", 1)], events)
    log.links += [LinkBuilt(0, "NIC", "nic", 1e9)]
    return log

"""The requests of a recorded run, to be simulated: at their times, or as their client sent them."""

from collections.abc import Sequence

from attrs import frozen

from ksim.flow.request import Request
from ksim.foundation.rng import stream
from ksim.validation.benchmarks.recorded import Load, Recorded, Served
from ksim.workload.arrivals import Arrivals


@frozen
class Replayed:
    """Requests to simulate, with at most `concurrency` in flight, and `how` they were made, for the reader.

    Request number i stands for `order[i]` of the recorded ones; `order` is empty where these are not recorded.
    """

    requests: tuple[Request, ...]
    concurrency: int | None
    how: str
    order: tuple[int, ...] = ()


def replayed(run: Recorded, seed: int) -> Replayed:
    """The requests of *run*; *seed* draws what is not recorded."""
    if not run.served:
        prompts, outputs = _lengths(run, seed)
        served = [Served(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
        arrivals, how = _drawn(run.load, run.count, seed)
        said = "lengths are not recorded: drawn from their mean and percentiles" if _spread(run) else (
            "lengths are not recorded: all requests have the mean ones")
        return Replayed(_requests(served, arrivals), run.load.concurrency, f"{said}; {how}")
    sent = [*run.served, *run.unfinished]
    if any(one.sent is None for one in sent):
        arrivals, how = _drawn(run.load, len(sent), seed)
        return Replayed(_requests(sent, arrivals), run.load.concurrency, f"recorded lengths; {how}",
                        tuple(range(len(sent))))
    return _recorded(sent, run.load)


def _recorded(sent: Sequence[Served], load: Load) -> Replayed:
    """The requests of a run in the order in which they were *sent*.

    A client that keeps to a concurrency sends the next request when one ends, in the simulation as in the recording.
    """
    order = sorted(range(len(sent)), key=lambda place: (sent[place].sent or 0.0, place))
    if load.concurrency and load.rate is None:
        arrivals, how = [0.0] * len(order), f"recorded lengths; closed loop of {load.concurrency}, as the client's"
    else:
        own = [sent[place].arrival if load.concurrency else sent[place].sent for place in order]
        times = [time or 0.0 for time in own]
        arrivals, how = [max(0.0, time - min(times)) for time in times], "recorded lengths and arrivals"
        order, arrivals = _by_arrival(order, arrivals)
    return Replayed(_requests([sent[place] for place in order], arrivals), load.concurrency, how, tuple(order))


def _by_arrival(order: Sequence[int], arrivals: Sequence[float]) -> tuple[list[int], list[float]]:
    pairs = sorted(zip(arrivals, range(len(order)), order, strict=True))
    return [place for _, _, place in pairs], [arrival for arrival, _, _ in pairs]


def _lengths(run: Recorded, seed: int) -> tuple[list[int], list[int]]:
    assert run.prompts and run.outputs, "a run without requests has lengths"
    return (run.prompts.of(run.count, stream(seed, "workload.prompt")),
            run.outputs.of(run.count, stream(seed, "workload.output")))


def _spread(run: Recorded) -> bool:
    both = (run.prompts, run.outputs)
    return any(lengths is not None and len(set(lengths.quantiles.values())) > 1 for lengths in both)


def _drawn(load: Load, count: int, seed: int) -> tuple[list[float], str]:
    """Arrivals as the client draws them, for a result that has none."""
    if load.rate is None:
        closed = f"closed loop of {load.concurrency}, as the client's" if load.concurrency else "all sent at once"
        return [0.0] * count, f"arrivals are not recorded: {closed}"
    kind, shape = ("constant", None) if load.burstiness >= 1e6 else ("gamma", load.burstiness)
    drawn = Arrivals(kind, load.rate, shape, exact=True).times(stream(seed, "workload.arrivals"), count)
    word = "evenly spaced" if kind == "constant" else "Poisson" if shape == 1 else f"gamma of shape {shape:g}"
    return list(drawn), f"arrivals are not recorded: {word} at {load.rate:g}/s, drawn with seed {seed}"


def _requests(served: Sequence[Served], arrivals: Sequence[float]) -> tuple[Request, ...]:
    return tuple(Request(number, arrival, one.prompt, one.output)
                 for number, (one, arrival) in enumerate(zip(served, arrivals, strict=True)))



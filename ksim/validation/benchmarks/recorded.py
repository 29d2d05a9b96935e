"""What a benchmark's result says, in one form for all clients: requests where they are recorded, figures where not.

The requests of a recorded run, to be simulated: at their times, or as their client sent them.

The scenario that a benchmark is simulated with.

Whether what a result says can be: units, and requests against figures.

A least-squares fit that leaves out outliers, and what it cannot tell from chance.

Whether a result and a scenario are of the same deployment, as far as the result says.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.errors import DataError, KsimError
from ksim.foundation.rng import stream
from ksim.scenario.models import named
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario, setting
from ksim.workload.arrivals import Arrivals

Floats = NDArray[np.float64]
#: Latencies: to the first token, per token after it (of a request), between two tokens, to the last token.
LATENCIES = ("ttft", "tpot", "itl", "e2el")
#: Statistics of a latency, by their names in figures.
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Requests and tokens per second.
RATES = ("request_throughput", "output_throughput", "total_token_throughput")


@frozen
class ServedRequest:
    """A request that was answered, in seconds; None where the result does not say.

    `arrival` is when the client had the request, and `sent` when it sent it, which is later where the client keeps to a
    concurrency; latencies are from then.  `queue` is the server's own measurement.  `gaps` are the times between the
    parts of a stream, which may carry more than one token.
    """

    prompt: int
    output: int
    ttft: float | None = None
    e2e: float | None = None
    arrival: float | None = None
    sent: float | None = None
    queue: float | None = None
    gaps: tuple[float, ...] = ()

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an output of one token."""
        if self.output < 2 or self.ttft is None or self.e2e is None:
            return None
        return (self.e2e - self.ttft) / (self.output - 1)


@frozen
class RecordedLengths:
    """Lengths that are known as a whole only: their mean, and quantiles by share from 0 to 1."""

    mean: float
    quantiles: Mapping[float, float] = field(factory=dict)

    def of(self, count: int, rng: "np.random.Generator") -> list[int]:
        """*count* lengths, spread evenly over the quantiles in an order drawn from *rng*; all alike without them."""
        if len(self.quantiles) < 3 or len(set(self.quantiles.values())) == 1:
            return [max(1, round(self.mean))] * count
        shares = sorted(self.quantiles)
        shares_wanted = (np.arange(count) + 0.5) / count
        lengths = np.interp(shares_wanted, shares, [self.quantiles[share] for share in shares])
        return [max(1, round(length)) for length in rng.permutation(lengths).tolist()]


@frozen
class ClientLoad:
    """How the client sent: at a `rate` (requests/s; None at once), with `concurrency` requests in flight at most."""

    rate: float | None = None
    concurrency: int | None = None
    burstiness: float = 1.0

    def __str__(self) -> str:
        parts = [f"{self.rate:g} requests/s"] if self.rate else []
        parts += [f"concurrency {self.concurrency}"] if self.concurrency else []
        return ", ".join(parts) or "as recorded"


@frozen
class Recorded:
    """A run of a benchmark, as its result describes it.

    `served` has its requests in the order of the file, if they are recorded; else there are `count` requests with
    `prompts` and `outputs`.  Of a run that ended before all its requests did, so many are `incomplete`; `unfinished`
    has those that were sent, with lengths that are known or taken from the others.  `reported` are figures of the
    client's own, in seconds and per second.  `facts` are other words of the file: the model, GPUs, tensor parallelism.
    """

    path: Path
    name: str
    tool: str
    count: int
    failed: int = 0
    served: Sequence[ServedRequest] = ()
    prompts: RecordedLengths | None = None
    outputs: RecordedLengths | None = None
    load: ClientLoad = ClientLoad()
    duration: float | None = None
    reported: Mapping[str, float] = field(factory=dict)
    facts: Mapping[str, Any] = field(factory=dict)
    remarks: tuple[str, ...] = ()
    incomplete: int = 0
    unfinished: Sequence[ServedRequest] = ()

    @cached_property
    def figures(self) -> dict[str, float]:
        """The figures of the run: from its requests where they are recorded, else those that the client reports."""
        computed = figures_of(self.served, self.duration, bool(self.incomplete)) if self.served else {}
        return {**{name: value for name, value in self.reported.items() if name not in computed}, **computed}


def figures_of(served: Sequence[ServedRequest], duration: float | None = None, cut: bool = False) -> dict[str, float]:
    """Statistics of *served*, in seconds, and rates from the first to the last of them, or else over *duration*.

    Of a run that was *cut*, rates are over its whole duration.
    """
    values: dict[str, Iterable[float | None]] = {
        "ttft": (one.ttft for one in served), "tpot": (one.tpot for one in served),
        "itl": (gap for one in served for gap in one.gaps), "e2el": (one.e2e for one in served)}
    figures = {name: value for latency, numbers in values.items()
               for name, value in statistics(latency, [number for number in numbers if number is not None]).items()}
    return figures | rates(served, duration if cut else span(served) or duration)


def statistics(latency: str, values: Sequence[float]) -> dict[str, float]:
    """The statistics of a latency; none without values."""
    if not values:
        return {}
    return {f"{latency}_{name}": float(np.mean(values) if name == "mean" else np.percentile(values, int(name[1:])))
            for name in STATISTICS}


def rates(served: Sequence[ServedRequest], seconds: float | None) -> dict[str, float]:
    """Requests and tokens per second over *seconds*; none if these are not known."""
    if not seconds:
        return {}
    outputs = sum(one.output for one in served)
    return dict(zip(RATES, (len(served) / seconds, outputs / seconds,
                            (outputs + sum(one.prompt for one in served)) / seconds), strict=True))


def span(served: Sequence[ServedRequest]) -> float | None:
    """Seconds from the first request to the last token; None where these times are not recorded."""
    if any(one.sent is None or one.e2e is None for one in served) or not served:
        return None
    return max((one.sent or 0) + (one.e2e or 0) for one in served) - min(one.sent or 0 for one in served)


@frozen
class ReplayedRun:
    """Requests to simulate, with at most `concurrency` in flight, and `how` they were made, for the reader.

    Request number i stands for `order[i]` of the recorded ones; `order` is empty where these are not recorded.
    """

    requests: tuple[Request, ...]
    concurrency: int | None
    how: str
    order: tuple[int, ...] = ()


def replayed(run: Recorded, seed: int) -> ReplayedRun:
    """The requests of *run*; *seed* draws what is not recorded."""
    if not run.served:
        prompts, outputs = _lengths(run, seed)
        served = [ServedRequest(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
        arrivals, how = _drawn(run.load, run.count, seed)
        said = "lengths are not recorded: drawn from their mean and percentiles" if _spread(run) else (
            "lengths are not recorded: all requests have the mean ones")
        return ReplayedRun(_requests(served, arrivals), run.load.concurrency, f"{said}; {how}")
    sent = [*run.served, *run.unfinished]
    if any(one.sent is None for one in sent):
        arrivals, how = _drawn(run.load, len(sent), seed)
        return ReplayedRun(_requests(sent, arrivals), run.load.concurrency, f"recorded lengths; {how}",
                           tuple(range(len(sent))))
    return _recorded(sent, run.load)


def _recorded(sent: Sequence[ServedRequest], load: ClientLoad) -> ReplayedRun:
    """The requests of a run in the order in which they were *sent*.

    A client that keeps to a concurrency sends the next request when one ends, in the simulation as in the recording.
    """
    order = sorted(range(len(sent)), key=lambda index: (sent[index].sent or 0.0, index))
    if load.concurrency and load.rate is None:
        arrivals, how = [0.0] * len(order), f"recorded lengths; closed loop of {load.concurrency}, as the client's"
    else:
        own = [sent[index].arrival if load.concurrency else sent[index].sent for index in order]
        times = [time or 0.0 for time in own]
        arrivals, how = [max(0.0, time - min(times)) for time in times], "recorded lengths and arrivals"
        order, arrivals = _by_arrival(order, arrivals)
    return ReplayedRun(_requests([sent[index] for index in order], arrivals), load.concurrency, how, tuple(order))


def _by_arrival(order: Sequence[int], arrivals: Sequence[float]) -> tuple[list[int], list[float]]:
    pairs = sorted(zip(arrivals, range(len(order)), order, strict=True))
    return [index for _, _, index in pairs], [arrival for arrival, _, _ in pairs]


def _lengths(run: Recorded, seed: int) -> tuple[list[int], list[int]]:
    assert run.prompts and run.outputs, "a run without requests has lengths"
    return (run.prompts.of(run.count, stream(seed, "workload.prompt")),
            run.outputs.of(run.count, stream(seed, "workload.output")))


def _spread(run: Recorded) -> bool:
    both = (run.prompts, run.outputs)
    return any(lengths is not None and len(set(lengths.quantiles.values())) > 1 for lengths in both)


def _drawn(load: ClientLoad, count: int, seed: int) -> tuple[list[float], str]:
    """Arrivals as the client draws them, for a result that has none."""
    if load.rate is None:
        closed = f"closed loop of {load.concurrency}, as the client's" if load.concurrency else "all sent at once"
        return [0.0] * count, f"arrivals are not recorded: {closed}"
    kind, shape = ("constant", None) if load.burstiness >= 1e6 else ("gamma", load.burstiness)
    drawn = Arrivals(kind, load.rate, shape, exact=True).times(stream(seed, "workload.arrivals"), count)
    word = "evenly spaced" if kind == "constant" else "Poisson" if shape == 1 else f"gamma of shape {shape:g}"
    return list(drawn), f"arrivals are not recorded: {word} at {load.rate:g}/s, drawn with seed {seed}"


def _requests(served: Sequence[ServedRequest], arrivals: Sequence[float]) -> tuple[Request, ...]:
    return tuple(Request(number, arrival, one.prompt, one.output)
                 for number, (one, arrival) in enumerate(zip(served, arrivals, strict=True)))


def scenario_of(path: Path, settings: Sequence[str]) -> Scenario:
    """The scenario at *path* with *settings* such as ``gpu=h100``; it needs no workload, which the benchmark has.

    Raises KsimError for what is no scenario.
    """
    if path.suffix == ".toml" and path.is_file() and "workload" not in (table := catalog.read(path)):
        scenario = Scenario.of({**table, "workload": ANY_WORKLOAD}, str(path), path.parent)
    else:
        scenario = Scenario.read(path)
    return scenario.with_values(dict(map(setting, settings))) if settings else scenario


#: How much longer than the run a request may seem before its unit must be wrong.
_LONGER = 20.0
#: The most requests that are simulated, and the most tokens of one.
_MOST, _LONGEST = 10**6, 10**8
#: How far a client's figure may be from that of its requests.
_APART = 0.05


def checked(run: Recorded) -> Recorded:
    """Return *run*; raises DataError where its latencies cannot be in the unit of their names."""
    if run.count < 1:
        raise DataError(str(run.path), f"{run.name}: no request was answered, and {run.failed} failed")
    if run.count > _MOST or any(max(one.prompt, one.output) > _LONGEST for one in run.served):
        raise DataError(str(run.path), f"{run.name}: has {run.count:,} requests, or one of over {_LONGEST:,} tokens;"
                                       f" at most {_MOST:,} requests are simulated")
    if not run.served and (run.prompts is None or run.outputs is None):
        raise DataError(str(run.path), f"{run.name}: has neither its requests nor the lengths of prompts and answers")
    for index, one in enumerate(run.served):
        if one.ttft is not None and one.e2e is not None and one.e2e < one.ttft - 1e-6:
            raise DataError(str(run.path), f"{run.name}: request {index} ends ({one.e2e:g} s) before its first token"
                                           f" ({one.ttft:g} s)")
    _check_units(run)
    return run


def _check_units(run: Recorded) -> None:
    longest = max((value for name, value in run.figures.items() if name.startswith(("ttft", "e2el"))), default=0.0)
    if run.duration and longest > _LONGER * run.duration and longest > 1:
        raise DataError(str(run.path), f"{run.name}: a latency of {longest:g} s in a run of {run.duration:g} s; are"
                                       f" these milliseconds where the client writes seconds?")
    computed = figures_of(run.served) if run.served else {}
    for name in ("ttft_mean", "e2el_mean"):
        ours, theirs = computed.get(name), run.reported.get(name)
        if ours and theirs and not 1 / 100 < ours / theirs < 100:
            raise DataError(str(run.path), f"{run.name}: its requests have a mean {name.partition('_')[0].upper()} of"
                                           f" {ours:g} s, its summary {theirs:g} s; one of them is in another unit")


def disagreements(run: Recorded) -> list[str]:
    """Remarks on figures of the client that are not those of its requests."""
    computed = figures_of(run.served) if run.served else {}
    return [f"the result's own {name} is {1e3 * theirs:.4g} ms, its requests give {1e3 * ours:.4g} ms"
            for name, theirs in run.reported.items()
            if name.startswith(("ttft_", "tpot_", "e2el_")) and (ours := computed.get(name))
            and abs(theirs / ours - 1) > _APART]


#: A share that is not so many standard errors from 0 is taken to be 0.
_SURE = 3.0
#: Less than all of a time cannot be taken away, give or take.
_WHOLE = -1.05
#: A residual is an outlier if it is so many deviations (of the median) from 0, and this many seconds at least.
_FAR, _LEAST = 6.0, 0.002
_ROUNDS = 4


@frozen
class TrimmedFit:
    """Values as a `constant` and `shares` of columns by name; `rest` is what is left of each, large for `outliers`."""

    constant: float
    shares: dict[str, float]
    rest: Floats
    outliers: NDArray[np.bool_]


def fitted(values: Floats, columns: Mapping[str, Floats], start: int = 0) -> TrimmedFit:
    """Fit *values* from *start* on by a constant and shares of *columns*.

    The share that is least sure is dropped until all that are left are.
    """
    names = list(columns)
    while True:
        matrix = np.stack([np.ones(len(values)), *(columns[name] for name in names)], axis=1)
        used, weights = _trimmed(matrix, values, start)
        sure = np.abs(weights[1:]) / _errors(matrix[used], values[used] - matrix[used] @ weights)[1:]
        sure[weights[1:] < _WHOLE] = 0.0
        if not names or sure.min() >= _SURE:
            break
        del names[int(sure.argmin())]
    rest: Floats = values - matrix @ weights
    out = ~used
    out[:start] = False
    return TrimmedFit(float(weights[0]), dict(zip(names, weights[1:].tolist(), strict=True)), rest, out)


def _trimmed(matrix: Floats, values: Floats, start: int) -> tuple[NDArray[np.bool_], Floats]:
    """Return a mask of the rows of *matrix* that are no outliers, and the weights that fit their *values* best."""
    used = np.arange(len(values)) >= start
    weights: Floats = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        weights = np.asarray(np.linalg.lstsq(matrix[used], values[used], rcond=None)[0], dtype=float)
        rest = np.abs(values - matrix @ weights)
        limit = max(_FAR * 1.4826 * float(np.median(rest[used])), _LEAST)
        kept = (rest <= limit) & (np.arange(len(values)) >= start)
        if kept.sum() <= 2 * matrix.shape[1] or (kept == used).all():
            break
        used = kept
    return used, weights


def _errors(matrix: Floats, rest: Floats) -> Floats:
    """The standard errors of the weights of the columns of *matrix*, with this *rest*."""
    freedom = max(1, len(rest) - matrix.shape[1])
    spread = np.linalg.pinv(matrix.T @ matrix) * float(rest @ rest) / freedom
    errors: Floats = np.sqrt(np.maximum(np.diag(spread), 0.0)) + 1e-6
    return errors


_NOISE = re.compile(r"meta-|instruct|chat|-it$|-hf$|-bf16$|[^a-z0-9.]")


def mismatches(run: Recorded, scenario: Scenario) -> list[str]:
    """Remarks on what the result names otherwise than the scenario: its model, GPUs and tensor parallelism."""
    remarks = []
    model = str(run.facts.get("model") or "")
    ours = Path(scenario.model).parent.name if scenario.model.endswith(".json") else scenario.model
    if model and _plain(model) != _plain(ours):
        remarks.append(f"the result is of the model {model!r}, the scenario of {scenario.model!r}")
    tp, own = run.facts.get("tp"), scenario.serve.tensor_parallel_size or 1
    if tp and not scenario.pools and str(tp) != str(own):
        remarks.append(f"the result is of tensor parallelism {tp}, the scenario of {own}")
    gpu = str(run.facts.get("gpu") or "").lower().split("-")[0]
    if gpu and scenario.gpu and not str(scenario.gpu).lower().startswith(gpu):
        remarks.append(f"the result is of the GPU {run.facts['gpu']!r}, the scenario of {str(scenario.gpu)!r}")
    return remarks


def _plain(name: str) -> str:
    """The catalogue's name of a model, or what is left of one that the catalogue lacks."""
    try:
        return named(name, "the result").name
    except KsimError:
        return _NOISE.sub("", name.rstrip("/").rpartition("/")[2].lower())

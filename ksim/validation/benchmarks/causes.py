"""What makes a deployment's latencies differ from the simulated ones, as far as the data of its requests tell.

The difference of the mean TTFT is divided among a slow start, what all requests have alike, what grows with the time
that the simulation needs for the prompt, and what grows with the time that requests wait in the queue.  The difference
of the mean time between tokens is divided among typical tokens, and the few that come much later.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile

import numpy as np
from attrs import frozen

from ksim.validation.benchmarks.recorded import Floats, ServedRequest, fitted

#: Latencies that are nearer than this are taken to be equal, as a share.
NEAR = 0.02
#: Where the standard deviation of something is less than this share of its mean, its effect cannot be told from others.
_ALIKE = 0.05
#: A request of the beginning is an outlier if it is so many deviations (of the median) from the others.
_FAR = 6.0
#: The most requests, as a share, that can be a slow start.
_START = 0.1


@frozen
class Cause:
    """Seconds of a mean latency (`metric`, "ttft" or "itl") that the deployment needs more than simulated, and why."""

    name: str
    metric: str
    seconds: float
    evidence: str


@frozen
class Pairs:
    """Requests as they were measured and as they were simulated, in the order of sending.

    `in_flight` is how many others were in flight when each was sent.
    """

    measured: tuple[ServedRequest, ...]
    simulated: tuple[ServedRequest, ...]
    in_flight: Floats

    @cached_property
    def prompt(self) -> Floats:
        return _column(float(one.prompt) for one in self.measured)

    @cached_property
    def ttft(self) -> Floats:
        return _column(one.ttft for one in self.measured)

    @cached_property
    def own_ttft(self) -> Floats:
        return _column(one.ttft for one in self.simulated)

    @cached_property
    def tpot(self) -> Floats:
        return _column(one.tpot for one in self.measured)

    @cached_property
    def own_tpot(self) -> Floats:
        return _column(one.tpot for one in self.simulated)

    @cached_property
    def queue(self) -> Floats:
        """Seconds of each simulated TTFT in the queue."""
        return _column(one.queue or 0.0 for one in self.simulated)


def _column(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values])


def in_flight(served: Sequence[ServedRequest]) -> Floats:
    """Return the number of others in flight when each of *served* was sent."""
    sent = np.array([one.sent or 0.0 for one in served])
    ends = np.sort(sent + np.array([one.e2e or 0.0 for one in served]))
    before = np.searchsorted(np.sort(sent), sent, side="left")
    flying: Floats = np.maximum(0.0, before - np.searchsorted(ends, sent, side="right"))
    return flying


def of_requests(pairs: Pairs) -> Iterator[Cause]:
    """Why the requests of *pairs* differ, the largest part of the TTFT first, then of the time between tokens."""
    far = abs(pairs.ttft.mean() / pairs.own_ttft.mean() - 1.0) > NEAR
    for parts, usual in ((_ttft(pairs) if far else (), pairs.own_ttft), (_between(pairs), pairs.own_tpot)):
        large = [part for part in parts if abs(part.seconds) > NEAR * np.nanmean(usual) / 2]
        yield from sorted(large, key=lambda cause: -abs(cause.seconds))


def _ttft(pairs: Pairs) -> Iterator[Cause]:
    """Divide the difference of the mean TTFT."""
    late = pairs.ttft - pairs.own_ttft
    start = _slow_start(late)
    rest = slice(start, None)
    if start:
        extra = float((late[:start] - np.median(late[rest])).sum()) / len(late)
        yield Cause("slow start", "ttft", extra, f"the first {start} of {len(late)} requests took"
                    f" {1e3 * late[:start].mean():,.0f} ms more than simulated, the others"
                    f" {1e3 * np.median(late[rest]):,.1f} ms: warm-up, compilation or a cold connection")
        late = np.concatenate([np.full(start, np.median(late[rest])), late[rest]])
    if all(one.queue is not None for one in pairs.measured):
        yield from _with_queue(pairs, late)
    else:
        yield from _fitted(pairs, late, start)


def _slow_start(late: Floats) -> int:
    """Return the number of first requests that are outliers among the differences *late*."""
    middle = np.median(late)
    usual = max(1.4826 * float(np.median(np.abs(late - middle))), 0.002)
    slow = sum(1 for _ in takewhile(lambda one: one - middle > _FAR * usual, late.tolist()))
    return slow if slow <= max(1, _START * len(late)) and len(late) > 3 else 0


def _with_queue(pairs: Pairs, late: Floats) -> Iterator[Cause]:
    """The server's own times in the queue say what is queue, and what is not."""
    theirs, ours = np.array([one.queue or 0.0 for one in pairs.measured]), pairs.queue
    waited = float((theirs - ours).mean())
    yield Cause("queue", "ttft", waited, f"the server measured {1e3 * theirs.mean():,.1f} ms in the queue on average,"
                                         f" the simulation has {1e3 * ours.mean():,.1f} ms")
    yield Cause("prefill or front end", "ttft", float(late.mean()) - waited, "the rest of the TTFT, after the queue")


def _fitted(pairs: Pairs, late: Floats, start: int) -> Iterator[Cause]:
    """Fit the differences by a constant and by shares of the simulated times for the prompt and in the queue."""
    times = {"prefill": pairs.own_ttft - pairs.queue, "queue": pairs.queue}
    separable = times["prefill"].std() > _ALIKE * times["prefill"].mean()
    columns = {"prefill": times["prefill"]} if separable else {}
    # A queue that hardly ever forms explains nothing.
    if pairs.queue.std() > 0 and pairs.queue.mean() > NEAR * pairs.own_ttft.mean():
        columns["queue"] = pairs.queue
    fit = fitted(late, columns, start)
    if _compensate(fit.constant, fit.shares.get("prefill", 0.0) * float(times["prefill"].mean())):
        separable = np.bool_(False)
        fit = fitted(late, {name: column for name, column in columns.items() if name != "prefill"}, start)
    for name, share in fit.shares.items():
        spent = 1e3 * times[name]
        word = {"prefill": "for the prompt", "queue": "in the queue"}[name]
        cached = "; prompts that hit a prefix cache look so, too" if name == "prefill" and share < 0 else ""
        yield Cause(name, "ttft", share * float(times[name].mean()), f"the difference is {100 * share:+.0f} % of the"
                    f" simulated time {word}, {spent.min():,.1f} to {spent.max():,.1f} ms{cached}")
    if fit.outliers.any():
        far = fit.rest[fit.outliers]
        yield Cause("single requests", "ttft", float(far.sum()) / len(late), f"{len(far)} of {len(late)} requests are"
                    f" {1e3 * far.mean():+,.0f} ms from what explains the others: pauses of the client, the network or"
                    " the host")
    yield Cause(*_constant(pairs, fit.constant, bool(separable)))


def _compensate(one: float, other: float) -> bool:
    """Whether two parts have opposite signs and are about as large: the data do not tell them apart."""
    return one * other < 0 and min(abs(one), abs(other)) > max(abs(one), abs(other)) / 2


def _constant(pairs: Pairs, seconds: float, separable: bool) -> tuple[str, str, float, str]:
    if separable:
        return ("client or network", "ttft", seconds, f"{1e3 * seconds:+,.1f} ms of every request, however short"
                " its prompt and however few others there are: HTTP, tokenisation, the client itself")
    return ("prefill or client", "ttft", seconds, f"{1e3 * seconds:+,.1f} ms of every request; prompts of"
            f" {pairs.prompt.min():,.0f} to {pairs.prompt.max():,.0f} tokens do not tell a slower prefill from a"
            " constant delay: record more lengths, or more requests")


def _between(pairs: Pairs) -> Iterator[Cause]:
    """Divide the difference of the mean time between tokens."""
    known = ~np.isnan(pairs.tpot) & (pairs.own_tpot > 0)
    if not known.any():
        return
    theirs, ours = pairs.tpot[known], pairs.own_tpot[known]
    evidence = _by_load(pairs.in_flight[known], theirs / ours - 1.0)
    gaps, own_gaps = (np.array([gap for one in side for gap in one.gaps]) for side in (pairs.measured, pairs.simulated))
    if not _alike(len(gaps), len(own_gaps)):
        if abs(theirs.mean() / ours.mean() - 1.0) > NEAR:
            yield Cause("decode step", "tpot", float(theirs.mean() - ours.mean()), evidence)
    elif abs(gaps.mean() / own_gaps.mean() - 1.0) > NEAR:
        typical = float(own_gaps.mean() * (np.median(gaps) / np.median(own_gaps) - 1.0))
        yield Cause("decode step", "itl", typical, evidence)
        yield Cause("stalls", "itl", float(gaps.mean() - own_gaps.mean()) - typical, "beyond typical tokens: the 99th"
                    f" percentile between tokens is {1e3 * np.percentile(gaps, 99):,.1f} ms, simulated"
                    f" {1e3 * np.percentile(own_gaps, 99):,.1f} ms (chunks of prompts in the batch, preemption, pauses"
                    " of the host)")


def _alike(one: int, other: int) -> bool:
    """Whether two numbers of gaps are of streams that send as many tokens at once."""
    return one > 0 and abs(one - other) <= _ALIKE * max(one, other)


def _by_load(load: Floats, off: Floats) -> str:
    """Whether the time per token is off by as much under low load as under high load."""
    low, high = (off[load <= np.quantile(load, 1 / 3)], off[load >= np.quantile(load, 2 / 3)])
    few, many = 100 * float(np.median(low)), 100 * float(np.median(high))
    if np.ptp(load) < 2:
        return f"a token takes {few:+.0f} % of the simulated time more; the load is the same for all requests"
    kind = "alike at any load: launches, the host, or weights that are read more slowly" if abs(few - many) < max(
        2.0, 0.25 * abs(many)) else "so it changes with the batch: attention, KV reads or scheduling"
    return (f"a token takes {few:+.0f} % of the simulated time more where few are in flight, {many:+.0f} % where many;"
            f" {kind}")


def of_figures(figures: Mapping[str, tuple[float, float]]) -> Iterator[Cause]:
    """Yield the phases in which a run differs, from its aggregates alone."""
    for metric, phase in (("ttft", "before the first token (queue, prefill, client)"),
                          ("tpot", "between tokens (decode step, stalls)")):
        name = next((name for name in (f"{metric}_mean", f"{metric}_p50") if name in figures), "")
        measured, simulated = figures.get(name, (0.0, 0.0))
        if simulated and abs(measured / simulated - 1.0) > NEAR:
            yield Cause(phase, metric, measured - simulated, f"{name} is {measured / simulated:.2f} times the simulated"
                        " one; a result with every request tells the parts apart")

"""Whether what a result says can be: units, and requests against figures."""

from ksim.foundation.errors import DataError
from ksim.validation.benchmarks.recorded import Recorded, figures_of

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

"""Why requests of one run take longer than those of another: what pools of engines change, in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from ksim.results.attribution import groups, members
from ksim.results.steps import Floats
from ksim.views.run_directory import Whole
from ksim.views.wording import number, percent

#: The statistics that are explained, and how they are called.
_EXPLAINED = {"mean_ttft": "TTFT", "mean_tpot": "TPOT"}
#: A group of phases is worth a word if it makes this share of all changes.
_WORTH = 0.1


@frozen
class Side:
    """One kind of work in a run: its engines, the GPUs of each, and the shares of their time and KV cache in use."""

    engines: int
    gpus: int
    busy: float
    kv: float

    @classmethod
    def of(cls, run: Whole, role: str) -> "Side | None":
        """Those that prefill or decode in *run*; in a run without pools, all engines do both."""
        pools = [pool for pool in run.pools.values() if pool["role"] in (role, "both")]
        if run.pools and pools:
            gpus, engines = (sum(pool[key] for pool in pools) for key in ("gpus", "engines"))
            busy, kv = (sum((pool[key] or 0.0) * pool["gpus"] for pool in pools) / gpus
                        for key in ("gpu_busy_share", "kv_cache_usage_mean"))
            return cls(engines, gpus // engines, busy, kv)
        settings = run.settings or {}
        each = int(settings.get("serve.tensor_parallel_size", 1)) * int(settings.get("serve.pipeline_parallel_size", 1))
        gpus = run.summary.get("gpus") or each
        return cls(max(gpus // each, 1), each, run.summary.get("gpu_busy_share") or 0.0,
                   run.summary.get("kv_cache_usage_mean") or 0.0)

    def __str__(self) -> str:
        return f"{self.engines} engine{'s' if self.engines > 1 else ''} of {_gpus(self)}"


@frozen
class _Sides:
    """Who prefills, and who decodes, in the first and in the second run."""

    prefill: tuple[Side, Side]
    decode: tuple[Side, Side]
    runs: tuple[Whole, Whole]


def reasons(one: Whole, other: Whole, names: Sequence[str], pairs: Mapping[str, tuple[Floats, Floats]],
            ) -> Iterator[str]:
    """Sentences on what makes TTFT and TPOT differ between two runs of which one has pools, largest change first."""
    if not (one.pools or other.pools):
        return
    prefill, decode = ([Side.of(run, role) for run in (one, other)] for role in ("prefill", "decode"))
    if None in (*prefill, *decode):
        return
    sides = _Sides((prefill[0], prefill[1]), (decode[0], decode[1]), (one, other))  # type: ignore[arg-type]
    for key, title in _EXPLAINED.items():
        if key in pairs:
            before, after = pairs[key]
            yield from _of_metric(title, sides, names, 1e3 * (after - before))
    yield from _idle(sides)


def _of_metric(title: str, sides: _Sides, names: Sequence[str], change: Floats) -> Iterator[str]:
    by_group = {group: float(sum(change[names.index(name)] for name in members(group, names)))
                for group in groups(names)}
    whole = sum(map(abs, by_group.values()))
    for group, milliseconds in sorted(by_group.items(), key=lambda item: -abs(item[1])):
        if abs(milliseconds) >= _WORTH * whole > 0 and (why := _WHY.get(group)):
            sign = "longer" if milliseconds > 0 else "shorter"
            yield f"{title}, {group} {number(abs(milliseconds))} ms {sign}: {why(sides, milliseconds > 0)}"


def _prefill(sides: _Sides, longer: bool) -> str:
    first, second = sides.prefill
    return _sizes("a prompt is computed by", first, second)


def _decode(sides: _Sides, longer: bool) -> str:
    first, second = sides.decode
    return f"{_sizes('a token is computed by', first, second)}, and batches have {_batch(sides)}"


def _sizes(what: str, first: Side, second: Side) -> str:
    if first.gpus == second.gpus:
        return f"{what} {_gpus(second)} in both runs"
    return f"{what} {_gpus(second)} in the second run, by {_gpus(first)} in the first"


def _gpus(side: Side) -> str:
    return f"{side.gpus} GPU{'s' if side.gpus > 1 else ''}"


def _batch(sides: _Sides) -> str:
    found = [_sequences(run) for run in sides.runs]
    return f"{number(found[1])} sequences on average, not {number(found[0])}"


def _sequences(run: Whole) -> float | None:
    pools = [pool for pool in run.pools.values() if pool["role"] != "prefill"]
    value: float | None = (pools[0] if pools else run.summary).get("mean_batch_sequences")
    return value


def _queue(sides: _Sides, longer: bool) -> str:
    first, second = sides.prefill
    return (f"prompts wait for {second}, busy {percent(second.busy, 0)} of the time, and not for {first}, busy"
            f" {percent(first.busy, 0)}")


def _others(sides: _Sides, longer: bool) -> str:
    split = [any(pool["role"] == "prefill" for pool in run.pools.values()) for run in sides.runs]
    if split == [False, True] and not longer:
        return "other requests' prompts are computed elsewhere, and delay no decode"
    if split == [True, False] and longer:
        return "other requests' prompts are computed in between"
    return _sizes("prompts of others are computed by", *sides.prefill)


def _room(sides: _Sides, longer: bool) -> str:
    first, second = (percent(side.kv, 0) for side in sides.decode)
    return f"the KV cache of engines that decode is {second} full on average, and {first} in the first run"


def _moved(sides: _Sides, longer: bool) -> str:
    counts = [run.summary.get("num_transfers") or 0 for run in sides.runs]
    sizes = [(run.summary.get("bytes_transferred") or 0.0) / count if count else 0.0
             for run, count in zip(sides.runs, counts, strict=True)]
    first, second = (f"{number(size / 1e6)} MB" for size in sizes)
    return f"a transfer moves {second} of KV in the second run, {first} in the first"


def _hop(sides: _Sides, longer: bool) -> str:
    return "a split request goes through the router and a front end twice"


def _next_step(sides: _Sides, longer: bool) -> str:
    return "a request whose KV has arrived waits until the decode engine schedules its next step"


def _communication(sides: _Sides, longer: bool) -> str:
    first, second = (_gpus(side) for side in sides.decode)
    return f"an engine has {second} in the second run, {first} in the first, which exchange data in every layer"


def _host(sides: _Sides, longer: bool) -> str:
    return "the hosts of two engines schedule a split request and take in its steps"


_WHY: dict[str, Callable[[_Sides, bool], str]] = {
    "queue": _queue, "queue: rest": _queue, "own prefill": _prefill, "others' prefill": _others, "decode": _decode,
    "communication": _communication, "host": _host,
    "hop": _hop, "wait for room": _room, "KV transfer": _moved,
    "KV contention": lambda sides, longer: f"transfers share links; {_moved(sides, longer)}", "next step": _next_step,
}


def _idle(sides: _Sides) -> Iterator[str]:
    """What GPUs do while they wait for each other's work."""
    for which, run in zip(("first", "second"), sides.runs, strict=True):
        if run.pools:
            busy: dict[str, Any] = {name: percent(pool["gpu_busy_share"], 0) for name, pool in run.pools.items()}
            told = ", ".join(f"{name} {share}" for name, share in busy.items())
            yield f"GPUs busy in the {which} run: {told}, all {percent(run.summary['gpu_busy_share'], 0)}"
        else:
            yield f"GPUs busy in the {which} run: {percent(run.summary['gpu_busy_share'], 0)}"

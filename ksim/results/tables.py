"""The tables of a run: a row for each request, for each step, and for each choice of a router.

docs/glossary.md describes every column.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ksim.flow.events import Chosen, Seen
from ksim.flow.log import Columns, Log
from ksim.results.arrow import numbers, table, texts
from ksim.results.energy import Energy
from ksim.results.history import History
from ksim.results.steps import Floats, Ints, each, ints, offsets


def request_table(history: History, energy: Energy | None) -> pa.Table:
    """One row per request in order of arrival; null where something did not happen; times in seconds.

    Without *energy*, there are no columns of joules.
    """
    requests = history.requests
    medians, peaks = requests.gap_medians_and_peaks
    asked = requests.requests
    engines = np.append(ints(history.engines, "engine"), -1)
    return table({
        "id": requests.ids,
        "engine": numbers(engines[requests.engine], requests.engine < 0),
        "arrival_s": requests.arrival,
        "prompt_tokens": requests.prompt,
        "output_tokens": requests.output,
        "cached_tokens": numbers(np.nan_to_num(requests.cached).astype(np.int64), np.isnan(requests.cached)),
        **{f"{tier}_tokens": tokens for tier, tokens in history.loaded.items()},
        "received_s": numbers(requests.received, np.isnan(requests.admitted)),
        "queue_s": _nullable(requests.queue),
        "ttft_s": _nullable(requests.ttft),
        "tpot_s": _nullable(requests.tpot),
        "itl_p50_s": _nullable(medians),
        "itl_max_s": _nullable(peaks),
        **({"acceptance_length": _nullable(requests.acceptance_length)} if history.steps.drafted else {}),
        "e2e_s": _nullable(requests.e2e),
        **(_joules(energy) if energy else {}),
        "preemptions": requests.preemptions,
        **({"attempts": requests.attempts, "held_s": requests.held} if history.log.gated else {}),
        "status": texts(requests.status),
        "reason": texts(map(requests.reasons.get, range(len(asked)))),
        **(_split(history, engines) if history.fleet else {}),
        "session": texts(request.session for request in asked),
        "tenant": texts(request.tenant for request in asked),
        **({"adapter": texts(request.adapter for request in asked)} if history.has_adapters else {}),
        "priority": ints(asked, "priority"),
    })


def _split(history: History, engines: Ints) -> dict[str, pa.Array]:
    """The columns of runs with pools: who prefilled, the bytes of KV that moved, and how long that took."""
    splits, source = history.splits, history.requests.prefill_engine
    moved, seconds = (np.full(len(source), np.nan) for _ in range(2))
    moved[splits.row], seconds[splits.row] = splits.bytes, splits.loaded - splits.began
    return {"prefill_engine": numbers(engines[source], source < 0), "transfer_bytes": _nullable(moved),
            "transfer_seconds": _nullable(seconds)}


def _joules(energy: Energy) -> dict[str, pa.Array]:
    to_first, after = energy.requests.T
    return {"joules": _nullable(to_first + after), "joules_to_first_token": _nullable(to_first)}


def step_table(history: History) -> pa.Table:
    """One row per step, engine by engine; times in seconds from the start of the run; FLOP and bytes of all GPUs."""
    steps = history.steps
    stages = offsets(steps.stages)
    launch = [steps.stage_steps.launch[row] for row in stages[:-1].tolist()]
    paces = np.maximum.reduceat(steps.stage_steps.scaling.time, stages[:-1]) if len(steps) else np.zeros(0)
    return table({
        "engine": ints(history.engines, "engine")[steps.engine],
        "step": steps.index,
        "scheduled_s": steps.scheduled,
        "prepared_s": steps.prepared,
        "start_s": steps.start,
        "end_s": steps.end,
        "taken_s": steps.taken,
        "time_s": steps.time,
        "decodes": steps.decodes,
        "decode_context_tokens": steps.decode_context,
        "prefills": steps.prefills,
        "prefill_tokens": steps.tokens - steps.decodes - steps.drafts,
        "samples": steps.samples,
        **(_verified(history) if steps.drafted else {}),
        **({"images": steps.encoded[:, 0], "encoder_tokens": steps.encoded[:, 1]} if steps.encodes else {}),
        "waiting": steps.waiting,
        "running": steps.running,
        "kv_blocks": steps.blocks,
        "flops": steps.flops,
        "bytes": steps.bytes,
        "joules": steps.joules,
        "watts": steps.watts,
        "host_gap_s": history.host_gaps,
        "launch_wait_s": steps.launch_waits,
        "launch": texts(launch),
        "pace": paces,
    })


def _verified(history: History) -> dict[str, Ints]:
    """The columns of steps in runs that decode speculatively."""
    steps = history.steps
    return {"drafts": steps.drafts, "accepted": steps.verifications[:, 1:].sum(axis=1)}


def _nullable(column: Floats) -> pa.Array:
    return numbers(column, np.isnan(column))


#: What is a share or a number of seconds, and not a count.
_FLOATS = ("kv_usage", "scraped_s", "score")


def routing_table(log: Log) -> pa.Table | None:
    """One row per choice in order of time, with lists that have a number for each engine to choose from.

    None for a run whose router saw nothing, or had nothing to choose from.
    """
    columns = log.columns(Chosen)
    return routing_rows(columns) if len(columns["time"]) else None


def routing_rows(columns: Columns) -> pa.Table:
    """The same from events of kind `Chosen`, of which there are some."""
    seen: Sequence[Seen] = columns["seen"].tolist()
    prefill = columns["prefill_engine"]
    bounds = offsets(each([one.engines for one in seen], len)).astype(np.int32)
    return table({
        "request": columns["request_id"], "attempt": columns["attempt"], "time_s": columns["time"],
        "engine": columns["engine"], "prefill_engine": numbers(prefill, prefill < 0),
        "engines": _lists(bounds, [one.engines for one in seen], np.int64),
        **{name: _lists(bounds, [one.columns[name] for one in seen], np.float64 if name in _FLOATS else np.int64)
           for name in seen[0].columns}})


def _lists(bounds: Any, values: Sequence[Sequence[float]], kind: Any) -> pa.Array:
    """A list of numbers for each row; those that were not asked for are null."""
    flat = np.concatenate([np.asarray(row, kind) for row in values])
    missing = np.isneginf(flat) if kind is np.float64 else flat < 0
    return pa.ListArray.from_arrays(numbers(bounds), numbers(flat, missing))

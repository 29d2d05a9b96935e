"""What requests and engines do at each moment of a run.

`Stints` are the times in which a request is among the running ones: it prefills, decodes or recomputes.  `Shares` has
the shares of prompts and decodes in the GPU seconds of a step, and `Activity` the seconds of an engine by what it does.
"""

from functools import cached_property

import numpy as np
from attrs import define, frozen

from ksim.flow.events import AdapterLoaded, Admitted
from ksim.flow.log import Columns, only
from ksim.flow.steps import KernelKind
from ksim.results.history import History
from ksim.results.kernels import KernelUsage
from ksim.results.steps import Bools, Floats, Ints, Steps, each, offsets, shares

PREFILL, DECODE, PREEMPTED, AGAIN = range(4)


@frozen(eq=False)
class Stints:
    """The times of requests among the running ones: columns of (stints,), request by request.

    A stint lasts from an admission by the engine at the place `engine`, with `known` tokens of which `cached` were
    found, to the request's last step before it is preempted or done.  `begin` is the row of its engine's first step in
    it.  `first` is the row of the step of its first token, which is at the place `token` of all, -1 without one.  What
    the stint computes before that comes from steps before `before`.

    The stints of a split request on its prefill engine have `leg` 0, all other stints 1.  With a stint on the prefill
    engine `ahead`, all but one token were loaded: it decodes from the beginning.
    """

    row: Ints
    leg: Ints
    engine: Ints
    admitted: Floats
    cached: Ints
    known: Ints
    begin: Ints
    first: Ints
    token: Ints
    before: Ints
    caught_up: Floats
    end: Floats
    again: Bools
    ahead: Bools

    def __len__(self) -> int:
        return len(self.row)

    @property
    def state(self) -> Ints:
        """The state of each stint until it has caught up."""
        loaded = self.ahead & (self.known - self.cached <= 1)
        return np.where(self.again, AGAIN, np.where(loaded, DECODE, PREFILL))


@frozen(eq=False)
class PromptChunks:
    """Prompt chunks of stints: `step` computed `new` tokens after `context` ones, for the row `stint` of `Stints`."""

    stint: Ints
    step: Ints
    new: Ints
    context: Ints


@define(eq=False, slots=False)
class Stretches:
    """The stints of all completed requests; in between, they are preempted.

    *ends* says when the GPUs finish each step.  A preempted request still gets its tokens in flight, and counts as
    preempted when their step has ended, or until it is admitted again, which may be sooner in a pipeline.
    """

    history: History
    ends: Floats

    @cached_property
    def stints(self) -> Stints:
        """The stints in the order of their requests."""
        requests, (row, leg, events) = self.history.requests, self._admissions()
        admitted, engine = events["time"], self.history.steps.places(events["engine"])
        number = _numbered(2 * row + leg)
        begin, until = self._first_step(engine, admitted), self._preempted(2 * row + leg, number)
        # Preempted after its last token was scheduled, one is not admitted again; other sequences of it may go on.
        until[np.append(row[1:] != row[:-1], True) & (leg == 1)] = np.inf
        before = self._first_step(engine, until)
        own, others = requests.runs.place(row, begin), requests.runs.place(row, before)
        self._migrated(row, admitted, until, own, others)
        steps = requests.token_steps
        last, some = self.ends[steps[requests.first[row + 1] - 1]], own < others
        first = np.where(some, steps[np.minimum(own, len(steps) - 1)], -1)
        through = np.where(others > requests.first[row], self.ends[steps[others - 1]], 0.0)
        if len(self.history.splits):
            last, first, through = self._on_prefill_engines(row, leg, begin, before, (last, first, through))
        end = np.minimum(np.maximum(np.maximum(np.minimum(until, last), through), admitted), last)
        again = np.flatnonzero((row[1:] == row[:-1]) & (leg[1:] == leg[:-1]))
        end[again] = np.minimum(end[again], admitted[again + 1])
        caught_up = np.where(first >= 0, np.minimum(self.ends[first], end), end)
        return Stints(
            row=row, leg=leg, engine=engine, admitted=admitted, cached=events["cached"], known=events["known"],
            begin=begin, first=first, token=own, before=before, caught_up=caught_up, end=end, again=number > 0,
            ahead=np.append(False, row[1:] == row[:-1]) & (leg == 1) & (number == 0))

    def _migrated(self, row: Ints, admitted: Floats, until: Floats, own: Ints, others: Ints) -> None:
        """Correct the places of the first tokens from *admitted*, and from *until* on, of requests that were migrated:
        their steps on one engine say nothing of those on another."""
        requests, scheduled = self.history.requests, self.history.steps.scheduled
        for stint in np.flatnonzero(requests.migrated[row]).tolist():
            first, end = requests.first[row[stint]:row[stint] + 2].tolist()
            times = scheduled[requests.token_steps[first:end]]
            own[stint], others[stint] = first + np.searchsorted(times, [admitted[stint], until[stint]])

    def _on_prefill_engines(self, row: Ints, leg: Ints, begin: Ints, before: Ints, ends: tuple[Floats, Ints, Floats],
                            ) -> tuple[Floats, Ints, Floats]:
        """The same *ends* of stints, but that those of leg 0 end with the step of the last prompt token."""
        splits, (last, first, through) = self.history.splits, ends
        mine = np.flatnonzero(leg == 0)
        index = np.searchsorted(splits.row, row[mine])
        step, until = splits.last_prefill[index], np.fmin(splits.prefilled, splits.admitted)[index]
        reached = (begin[mine] <= step) & (step < before[mine])
        last[mine] = np.where(np.isnan(until), np.fmax(splits.queued[index], 0.0), until)
        first[mine], through[mine] = np.where(reached, step, -1), np.where(reached, until, 0.0)
        return last, first, through

    def _admissions(self) -> tuple[Ints, Ints, Columns]:
        """Admissions of completed requests: row of the request, which leg of it, columns of the events.

        Leg 0 comes first, though a decode engine may begin before the other one: it may compute the prompt by itself.
        """
        requests, events = self.history.requests, self.history.events[Admitted]
        rows = requests.rows(events["request_id"])
        legs = self._legs(rows, events)
        order = np.argsort(2 * rows + legs, kind="stable")
        order = order[requests.completed[rows[order]]]
        return rows[order], legs[order], only(events, order)

    def _legs(self, rows: Ints, events: Columns) -> Ints:
        """0 for events of the requests at *rows* on the engine that prefills them for another one, else 1."""
        source = self.history.requests.prefill_engine[rows]
        return np.where(source == self.history.steps.places(events["engine"]), 0, 1)

    def _preempted(self, key: Ints, number: Ints) -> Floats:
        """When requests were preempted for the *number*-th time, from 0; inf where they were not.

        The *key* is twice the row of the request plus the leg.
        """
        requests = self.history.requests
        rows = requests.rows(requests.preempted["request_id"])
        keys = 2 * rows + self._legs(rows, requests.preempted)
        order = np.argsort(keys, kind="stable")
        first, times = offsets(np.bincount(keys, minlength=2 * len(requests))), requests.preempted["time"][order]
        index = first[key] + number
        return np.where(index < first[key + 1], np.append(times, np.inf)[np.minimum(index, len(times))], np.inf)

    def _first_step(self, engine: Ints, times: Floats) -> Ints:
        """The row of the first step that an engine scheduled at or after each of these times."""
        steps, found = self.history.steps, np.zeros(len(times), np.int64)
        for index in range(len(self.history.engines)):
            rows, which = steps.rows(index), engine == index
            found[which] = rows.start + np.searchsorted(steps.scheduled[rows], times[which])
        return found

    @cached_property
    def prompt_chunks(self) -> PromptChunks:
        """The chunks that stints compute, step by step; a chunk belongs to the latest admission of its request."""
        steps, stints, requests = self.history.steps, self.stints, self.history.requests
        step, scale = steps.chunk_step, len(steps) + 1
        rows, known = requests.find(steps.chunk_request)
        source = np.append(requests.prefill_engine, -1)[rows]
        keys = 2 * rows + np.where(source == steps.engine[step], 0, 1)
        own = 2 * stints.row + stints.leg
        stint = np.searchsorted(own * scale + stints.begin, keys * scale + step, side="right") - 1
        for chunk in np.flatnonzero(known & requests.migrated[rows]).tolist():
            here = (stints.row == rows[chunk]) & (stints.engine == steps.engine[step[chunk]])
            stint[chunk] = max(np.flatnonzero(here & (stints.begin <= step[chunk])), default=-1)
        known &= stint >= 0
        known[known] = own[stint[known]] == keys[known]
        return PromptChunks(stint[known], step[known], steps.chunk_tokens[known], steps.chunk_context[known])

    def table(self) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """Stretches as columns: the row of the request, the place of its engine, its state, beginning and end."""
        stints = self.stints
        rows, begin, caught_up, end = stints.row, stints.admitted, stints.caught_up, stints.end
        again = np.flatnonzero((rows[1:] == rows[:-1]) & (stints.leg[1:] == stints.leg[:-1]))
        states = np.concatenate([stints.state, np.full(len(stints), DECODE), np.full(len(again), PREEMPTED)])
        begins = np.concatenate([begin, caught_up, end[again]])
        ends = np.maximum(begins, np.concatenate([caught_up, end, begin[again + 1]]))
        engines = np.concatenate([stints.engine, stints.engine, stints.engine[again]])
        return np.concatenate([rows, rows, rows[again]]), engines, states, begins, ends


def _numbered(rows: Ints) -> Ints:
    """The number of equal values before each of *rows*, which are sorted."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


#: The family of all communication between GPUs.
COMMUNICATION = "communication"
#: Families whose work grows with the cached tokens of sequences, not only with new tokens.
_ATTENTION = frozenset({"attention", "mla", "sparse_mla", "compressed_mla", "block_sparse",
                        "index_scores"})
#: A family that reads a number for each (query, key) pair, whatever its bound.
_OF_PAIRS = "index_topk"
#: Kernels of experts, which compute on the tokens of all data-parallel ranks (compute/blocks.py, `experts`).
EXPERTS = frozenset({"topk", "experts_gate_up", "experts_act", "experts_down", "combine"})
#: What a family is shared by: new tokens; (query, key) pairs; keys read.
TOKENS, PAIRS, KEYS = range(3)


def sizes(new: Ints, context: Ints) -> tuple[Ints, Ints, Ints]:
    """The tokens, (query, key) pairs and keys of sequences with *new* tokens after *context* cached ones."""
    return new, new * context + new * (new + 1) // 2, context + new


@frozen
class SharedKernels:
    """Kernels of one family that are shared in the same way.

    `by` is TOKENS, PAIRS or KEYS.  *pooled* kernels work for the tokens of all data-parallel ranks.
    """

    family: str
    by: int
    pooled: bool = False

    @classmethod
    def of(cls, kind: KernelKind) -> "SharedKernels":
        """Attention is shared by pairs where arithmetic bounds it, by keys where it reads them; all else by tokens."""
        if kind.group:
            return cls(COMMUNICATION, TOKENS)
        if kind.family == _OF_PAIRS:
            return cls(kind.family, PAIRS)
        if kind.family in _ATTENTION:
            return cls(kind.family, PAIRS if kind.bound == "compute" else KEYS)
        return cls(kind.family, TOKENS, pooled=kind.label.rpartition(".")[2] in EXPERTS)


@define(eq=False, slots=False)
class Shares:
    """The GPU seconds of each step by `parts`, (steps, parts), and the share that belongs to prompts.

    They are those of one rank of each pipeline stage, added up over the stages.
    """

    history: History
    usage: KernelUsage

    def __attrs_post_init__(self) -> None:
        self.parts, self.seconds = self.usage.seconds_by(SharedKernels.of)
        self.by = each(self.parts, lambda part: part.by)

    @cached_property
    def families(self) -> list[str]:
        """The families; communication is last, even if there is none."""
        return [*sorted({part.family for part in self.parts} - {COMMUNICATION}), COMMUNICATION]

    @cached_property
    def family(self) -> Ints:
        """The place in `families` of each part."""
        return each(self.parts, lambda part: self.families.index(part.family))

    def prompts(self, steps: Ints) -> Floats:
        """The share of each part that belongs to the prompt chunks of *steps*: (steps, parts)."""
        return shares(self.chunks[steps].astype(np.float64), self.totals[steps])[:, self.by]

    @cached_property
    def chunks(self) -> Ints:
        """Tokens, pairs and keys of the chunks of each step: (steps, 3)."""
        steps = self.history.steps
        found = np.stack(sizes(steps.chunk_tokens, steps.chunk_context))
        return np.diff(np.pad(np.cumsum(found, axis=1), ((0, 0), (1, 0)))[:, offsets(steps.prefills)]).T

    @cached_property
    def totals(self) -> Ints | Floats:
        """Tokens, pairs and keys of all sequences of each step: (steps, 3)."""
        steps = self.history.steps
        keys = steps.decode_context + steps.decodes
        if steps.drafted:
            return self.chunks + np.stack([steps.decodes + steps.drafts, keys * self.width, keys], axis=1)
        return self.chunks + np.stack([steps.decodes, keys, keys], axis=1)

    @cached_property
    def width(self) -> Floats:
        """Tokens of a decode of each step, drafted ones among them, on average; all are taken to have as many."""
        steps = self.history.steps
        return shares((steps.decodes + steps.drafts).astype(np.float64), steps.decodes)

    def of(self, steps: Ints, new: Ints, context: Ints) -> Floats:
        """The share of each part of *steps* for *new* tokens after *context* tokens: (steps, parts)."""
        own = np.stack(sizes(new, context), axis=1)
        return np.minimum(1.0, own / np.maximum(self.totals[steps], 1))[:, self.by]

    @cached_property
    def stretches(self) -> Stretches:
        """The states of each request over time."""
        return Stretches(self.history, self.history.steps.ended)


#: Activities.  The kernel families of decodes follow them, in the order of `Shares.families`.
UPDATE, SCHEDULE, LOADS, LAUNCH, PROMPTS = range(5)
#: The first family of decodes.
DECODES = 5


@define(eq=False, slots=False)
class Activity:
    """Every moment of an engine's time belongs to the step that ends next: to its GPUs, or to the host before it.

    GPU time of a step is the time from its start to its end, after the step before it has ended.  With one stage,
    that is all of its time.  With several stages, it is what the step adds.  Before it, the host processes the tokens
    of the last step until it schedules this one, then schedules and prepares this one; what it takes to load LoRA
    adapters for that is apart.  GPU time is split as `Shares`
    says.  It is longer than the kernels where the GPUs wait between stages; the kernel families then share the
    difference in proportion.  Waits for launches are kept apart.
    """

    history: History
    shares: Shares

    @property
    def _steps(self) -> Steps:
        return self.history.steps

    @property
    def ends(self) -> Floats:
        return self._steps.ended

    @property
    def begins(self) -> Floats:
        """When GPU time of each step begins."""
        return self._steps.begun

    @cached_property
    def launches(self) -> Floats:
        """The part of GPU time in which GPUs wait for launches; all of it if the step has no kernels."""
        lengths, busy = self.ends - self.begins, self._steps.stage_seconds
        return np.where(busy > 0, np.minimum(self._steps.launch_waits, lengths), lengths)

    @cached_property
    def loads(self) -> Floats:
        """Seconds in which the worker loads adapters for each step."""
        found, loads = np.zeros(len(self._steps)), self.history.log.columns(AdapterLoaded)
        for index, built in enumerate(self.history.engines if len(loads["time"]) else ()):
            rows, which = self._steps.rows(index), loads["engine"] == built.engine
            steps = rows.start + np.searchsorted(self._steps.prepared[rows], loads["time"][which])
            np.add.at(found, steps, loads["seconds"][which])
        return found

    @cached_property
    def _stretched(self) -> Floats:
        """The rest of GPU time over the time of kernels, for each step."""
        working = self.ends - self.begins - self.launches
        return shares(working, self.shares.seconds.sum(axis=1))

    def seconds(self, steps: Ints) -> Floats:
        """GPU time of *steps* without waits for launches, by `Shares.parts`: (steps, parts)."""
        return self.shares.seconds[steps] * self._stretched[steps][:, None]

    def prompts(self, steps: Ints) -> Floats:
        """The part of that time that belongs to prompt chunks: (steps, parts)."""
        return self.seconds(steps) * self.shares.prompts(steps)

    def _into(self, found: Floats, rows: slice) -> None:
        """Write the seconds of each activity into *found*: (activities, steps).

        A step includes the host's time before it.  Few steps have prompt chunks.
        """
        ahead, begins = self._steps.ahead[rows], self.begins[rows]
        scheduled = np.clip(self._steps.scheduled[rows], ahead, begins)
        found[UPDATE], found[LAUNCH], loads = scheduled - ahead, self.launches[rows], self.loads[rows]
        found[LOADS] = np.minimum(loads, begins - scheduled)
        found[SCHEDULE] = begins - scheduled - found[LOADS]
        chunked = np.flatnonzero(self._steps.prefills[rows])
        prompts = self.prompts(rows.start + chunked)
        found[PROMPTS, chunked] = prompts.sum(axis=1)
        for part, family in enumerate(self.shares.family.tolist()):
            decodes = self.shares.seconds[rows, part] * self._stretched[rows]
            decodes[chunked] -= prompts[:, part]
            found[DECODES + family] += decodes

    @cached_property
    def _curves(self) -> list["_Curve"]:
        """The curve of each engine."""
        return [self._curve(self._steps.rows(index)) for index in range(len(self.history.engines))]

    def _curve(self, rows: slice) -> "_Curve":
        added = np.zeros((DECODES + len(self.shares.families), 1 + rows.stop - rows.start))
        self._into(added[:, 1:], rows)
        knots = np.stack([self._steps.ahead[rows] + added[UPDATE, 1:], self.begins[rows], self.ends[rows]], axis=1)
        return _Curve(np.append(0.0, knots.ravel()), np.cumsum(added, axis=1, out=added))

    def between(self, engine: Ints, begin: Floats, end: Floats) -> Floats:
        """Seconds of each activity between two moments, on the engines at these places: (moments, activities)."""
        found = np.zeros((len(engine), DECODES + len(self.shares.families)))
        for index, curve in enumerate(self._curves):
            which = engine == index
            found[which] = curve.by(end[which]) - curve.by(begin[which])
        return found


@frozen(eq=False)
class _Curve:
    """Cumulative seconds of each activity.

    `knots` are times: the beginning, and three for each step.  In between, seconds grow linearly.  `added` has the
    cumulative seconds after each number of steps: (activities, 1 + steps).  In a step, the engine updates up to the
    first knot, schedules up to the second, and its GPUs work up to the third.  After the last step it updates: requests
    that are cut off are there until then.
    """

    knots: Floats
    added: Floats

    def by(self, times: Floats) -> Floats:
        """Cumulative seconds at each of *times*: (times, activities)."""
        knots, last = self.knots, len(self.knots) - 1
        before = np.clip(np.searchsorted(knots, times, side="right") - 1, 0, max(last - 1, 0))
        after = np.minimum(before + 1, last)
        passed = shares(np.clip(times, knots[0], knots[-1]) - knots[before], knots[after] - knots[before])
        found = np.empty((len(times), len(self.added)))
        for knot, which in enumerate((slice(UPDATE, SCHEDULE), slice(SCHEDULE, LAUNCH), slice(LAUNCH, None))):
            low, high = (self.added[which, (index + 2 - knot) // 3].T for index in (before, after))
            found[:, which] = low + passed[:, None] * (high - low)
        found[:, UPDATE] += np.maximum(times - knots[-1], 0.0)
        return found

"""The output tokens of requests as arrays: which steps sampled them, and the gaps between them."""

from functools import cached_property
from itertools import pairwise

import numpy as np
from attrs import frozen

from ksim.results.steps import Bools, Floats, Ints, Places, Steps, offsets, sums

#: The number of tokens that are processed together, roughly.
_TOKENS = 1 << 16


@frozen(eq=False)
class Runs:
    """Tokens of the request at `row`, `tokens` from each of the steps `first`, `first` + `every`, ..., `last`: columns.

    A prefill engine has `handed` tokens over to the decode engine, whose steps may have lower rows.
    """

    row: Ints
    first: Ints
    last: Ints
    every: Ints
    handed: Bools
    tokens: Ints

    @property
    def counts(self) -> Ints:
        """The number of tokens of each run."""
        return self.outputs * self.tokens

    @property
    def outputs(self) -> Ints:
        """The number of steps of each run, each of which put out its tokens at once."""
        return (self.last - self.first) // self.every + 1

    @cached_property
    def joined(self) -> Bools:
        """Runs that begin with the step with which the request's run before ends: behind a token handed over."""
        same = (self.row[1:] == self.row[:-1]) & (self.first[1:] == self.last[:-1])
        return np.append(np.zeros(min(1, len(self.row)), bool), same)

    @cached_property
    def single(self) -> bool:
        """Whether each token came alone."""
        return bool((self.tokens == 1).all()) and not self.joined.any()

    def place(self, row: Ints, step: Ints) -> Ints:
        """The place among all tokens of the first token that each request at *row* got from *step* or later.

        Of tokens that were handed over, all came before any step.
        """
        scale = 2 + int(max(self.last.max(initial=0), step.max(initial=0)))
        begins = np.where(self.handed, -1, self.first)
        run = np.searchsorted(self.row * scale + begins + 1, row * scale + step + 1) - 1
        counts, first = np.append(self.counts, 0), offsets(self.counts)
        own = np.append(self.row, -1)[run] == row
        passed = -((np.append(self.first, 0)[run] - step) // np.append(self.every, 1)[run])
        passed = np.where(np.append(self.handed, False)[run], counts[run], passed * np.append(self.tokens, 1)[run])
        return first[run + 1] - np.where(own, np.maximum(counts[run] - passed, 0), 0)


class OutputTokens:
    """The tokens of requests, which have `steps` and `runs`: request by request, in order of time.

    `token_steps` has the row of the step that sampled each.  Those of the request at row r are
    ``token_steps[first[r]:first[r + 1]]``, `output` many.  It is long, so work that needs more memory per token is
    done in `parts` of the requests.
    """

    steps: Steps
    runs: Runs
    output: Ints
    first: Ints
    token_steps: Places

    def __len__(self) -> int:
        raise NotImplementedError

    def _tokens(self) -> tuple[Ints, Places]:
        """The number of tokens of each request, and the rows of the steps that sampled them."""
        runs, numbers = self.runs, np.arange(len(self.steps), dtype=np.int32)
        counts = sums(runs.row, runs.counts, len(self)).astype(np.int64)
        stretches = np.stack([runs.first, runs.last + 1, runs.every], axis=1).tolist()
        steps = np.concatenate([numbers[:0], *(numbers[slice(*each)] for each in stretches)])
        return counts, steps if runs.single else np.repeat(steps, np.repeat(runs.tokens, runs.outputs))

    def came(self, places: Ints) -> Floats:
        """When the tokens at these places in `token_steps` were delivered."""
        return self.steps.time[self.token_steps[places]]

    @property
    def tokens(self) -> Floats:
        """When all tokens were delivered."""
        return self.steps.time[self.token_steps]

    def parts(self) -> list[slice]:
        """Slices of rows, each with few enough tokens to fit in memory."""
        begins = np.unique(np.searchsorted(self.first, np.arange(0, max(len(self.token_steps), 1), _TOKENS)))
        return [slice(*pair) for pair in pairwise([0, *begins[begins > 0].tolist(), len(self)])]

    @cached_property
    def gap_counts(self) -> Ints:
        """The number of gaps between tokens of each request; tokens that came at once have none between them."""
        if self.runs.single:
            return np.maximum(self.output - 1, 0)
        outputs = self.runs.outputs - self.runs.joined
        return np.maximum(sums(self.runs.row, outputs, len(self)).astype(np.int64) - 1, 0)

    @property
    def gaps(self) -> Floats:
        """Seconds between consecutive tokens, or several that came at once, request by request."""
        return self.gaps_of(np.ones(len(self), dtype=bool))

    def gaps_of(self, mask: Bools) -> Floats:
        """The gaps between the tokens of the requests in *mask*."""
        found, end = np.empty(int(self.gap_counts[mask].sum())), 0
        for rows in self.parts():
            gaps = self._gaps(rows)[np.repeat(mask[rows], self.gap_counts[rows])]
            found[end: end + len(gaps)] = gaps
            end += len(gaps)
        return found

    def _gaps(self, rows: slice) -> Floats:
        first = self.first[rows.start: rows.stop + 1]
        ends = first[1:][self.output[rows] > 0] - first[0] - 1
        steps = self.token_steps[first[0]: first[-1]]
        gaps: Floats = np.diff(self.steps.time[steps])
        if self.runs.single:
            return np.delete(gaps, ends[:-1])
        between = np.diff(steps) != 0
        between[ends[:-1]] = False
        return np.compress(between, gaps)

    def per_second(self, mask: Bools, begin: float) -> tuple[Ints, Ints]:
        """The seconds after *begin* in which the requests in *mask* got tokens, ascending, and how many in each.

        Seconds without tokens are left out, because there may be any number of them.
        """
        counts = np.zeros(len(self.steps), np.int64)
        for rows in self.parts():
            tokens = self.token_steps[self.first[rows.start]: self.first[rows.stop]]
            counts += np.bincount(tokens[np.repeat(mask[rows], self.output[rows])], minlength=len(counts))
        some = counts > 0
        seconds, which = np.unique((self.steps.time[some] - begin).astype(np.int64), return_inverse=True)
        return seconds, sums(which, counts[some], len(seconds)).astype(np.int64)

    @cached_property
    def gap_medians_and_peaks(self) -> tuple[Floats, Floats]:
        """The median and the largest gap of each request; nan without gaps."""
        medians, peaks = np.full(len(self), np.nan), np.full(len(self), np.nan)
        for rows in self.parts():
            medians[rows], peaks[rows] = _medians_and_peaks(self._gaps(rows), self.gap_counts[rows])
        return medians, peaks


def _medians_and_peaks(values: Floats, counts: Ints) -> tuple[Floats, Floats]:
    """The median and the maximum of consecutive groups of *values*, which are sorted in place; nan for empty groups."""
    first, some = offsets(counts), counts > 0
    for begin, end in pairwise(first.tolist()):
        values[begin:end].sort()
    begin, count = first[:-1][some], counts[some]
    medians, peaks = np.full(len(counts), np.nan), np.full(len(counts), np.nan)
    medians[some] = (values[begin + (count - 1) // 2] + values[begin + count // 2]) / 2
    peaks[some] = values[begin + count - 1]
    return medians, peaks

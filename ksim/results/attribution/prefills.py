"""Which step computed which tokens of whose prompt."""

import numpy as np
from attrs import frozen

from ksim.results.arrays import Ints
from ksim.results.attribution.stretches import Stints
from ksim.results.requests import Requests
from ksim.results.steps import Steps


@frozen(eq=False)
class Pieces:
    """`new` tokens on top of `context` that step `step` computed for a stint, before its first token or with it.

    Columns of (pieces,); `stint` is a row of `Stints`.
    """

    stint: Ints
    step: Ints
    new: Ints
    context: Ints

    @classmethod
    def of(cls, steps: Steps, requests: Requests, stints: Stints) -> "Pieces":
        """Those of *stints*, in the order of the *steps*: what a request prefills belongs to its latest admission."""
        rows, known = requests.find(steps.chunk_request)
        step = steps.chunk_step
        stint = np.searchsorted(_order(stints.row, stints.begin, len(steps)), _order(rows, step, len(steps)),
                                side="right") - 1
        known &= stint >= 0
        known[known] = stints.row[stint[known]] == rows[known]
        return cls(stint[known], step[known], steps.chunk_tokens[known], steps.chunk_context[known])


def _order(rows: Ints, steps: Ints, count: int) -> Ints:
    """Numbers that sort by the row of the request, and then by the step, of which there are *count*."""
    return rows * (count + 1) + steps

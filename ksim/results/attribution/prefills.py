"""Which step computed which tokens of whose prompt."""

import numpy as np
from attrs import frozen

from ksim.results.arrays import Ints
from ksim.results.attribution.stretches import Stints
from ksim.results.requests import Requests
from ksim.results.steps import Steps


@frozen(eq=False)
class Pieces:
    """Step `step` computed `new` tokens after `context` ones, for a stint, until it has caught up.

    Columns of (pieces,); `stint` is a row of `Stints`.
    """

    stint: Ints
    step: Ints
    new: Ints
    context: Ints

    @classmethod
    def of(cls, steps: Steps, requests: Requests, stints: Stints) -> "Pieces":
        """The pieces of *stints*, in order of *steps*.  A prompt chunk belongs to the latest admission of its request.
        """
        rows, known = requests.find(steps.chunk_request)
        step = steps.chunk_step
        stint = np.searchsorted(_order(stints.row, stints.begin, len(steps)), _order(rows, step, len(steps)),
                                side="right") - 1
        known &= stint >= 0
        known[known] = stints.row[stint[known]] == rows[known]
        return cls(stint[known], step[known], steps.chunk_tokens[known], steps.chunk_context[known])


def _order(rows: Ints, steps: Ints, count: int) -> Ints:
    """Numbers that sort by the row of the request, then by the step; *count* is the number of steps."""
    return rows * (count + 1) + steps

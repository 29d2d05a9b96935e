"""Acceptances: how many drafted tokens does the model accept?

Rejection sampling accepts a drafted token only if it has accepted all before it.  To add an acceptance, add a file
with an attrs class that has

    rates(k, request) -> Sequence[float]
                         for each of the `k` positions of a draft, the chance that this token of `request` and all
                         before it are accepted; no chance is larger than the one before it

Its fields are set by the scenario's options.  The scheduler draws: one number for each verification of each request,
whatever the order in which requests are served.  One from elsewhere is named ``package.module:Class``; nothing need be
inherited.  `tests/laws/test_acceptances.py` holds every one of this folder to the contract.
"""

from collections.abc import Sequence
from typing import Protocol

from ksim.flow.request import Request


class Acceptance(Protocol):
    def rates(self, k: int, request: Request) -> Sequence[float]: ...

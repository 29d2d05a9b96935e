"""Replicas that another process runs."""

from typing import NoReturn

from attrs import frozen

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError


@frozen
class RemoteReplica:
    """Stands for an engine before a router: it may be chosen, and cannot be looked at."""

    number: int
    role: str = "both"

    @property
    def outstanding(self) -> NoReturn:
        raise self._unseen("outstanding")

    @property
    def waiting(self) -> NoReturn:
        raise self._unseen("waiting")

    def prefix_hit(self, request: Request) -> NoReturn:
        raise self._unseen("prefix_hit")

    def adapter_place(self, name: str) -> NoReturn:
        raise self._unseen("adapter_place")

    def _unseen(self, name: str) -> ConfigError:
        return ConfigError("router", f"says that it is blind, and looks at {name} of replica {self.number};"
                                     " leave out its `blind`, or run without --jobs")

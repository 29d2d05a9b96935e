"""Replicas that another process runs."""

from attrs import frozen


@frozen
class RemoteReplica:
    """Stands for an engine before a router: it may be chosen, and cannot be looked at."""

    number: int
    role: str = "both"

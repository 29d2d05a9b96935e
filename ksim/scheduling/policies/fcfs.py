"""First come, first served: running jobs in order of admission, then waiting ones in order of arrival."""

from attrs import frozen

__all__ = ["Fcfs"]


@frozen
class Fcfs:
    """vLLM's default; the last admitted gives way."""

"""First come, first served: running jobs in order of admission, then waiting ones in order of arrival."""

from attrs import frozen

__all__ = ["Fcfs"]


@frozen
class Fcfs:
    """vLLM's default: who came first goes on first, and the last admitted is preempted.

    Source: vLLM's V1 scheduler (2025).  Good for: the baseline; nobody waits
    for ever, but one long prompt delays everyone behind it.  It has no members:
    what a policy lacks is as here.

        scheduling_policy = "fcfs"
    """

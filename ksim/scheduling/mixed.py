"""Schedulers' classes put together: rules that only some engines need come before those of another class."""

from functools import lru_cache

from attrs import define

from ksim.scheduling.scheduler import Scheduler

__all__ = ["mixed"]


@lru_cache
def mixed(rules: type[Scheduler], kind: type[Scheduler]) -> type[Scheduler]:
    """The class of schedulers like *kind* that ask *rules* first; *rules* alone where *kind* is what they build on."""
    if issubclass(rules, kind):
        return rules
    joined = type(f"{rules.__name__}{kind.__name__}", (rules, kind), {"__doc__": rules.__doc__})
    made: type[Scheduler] = define(eq=False, slots=False)(joined)
    return made

"""Schedulers, caches and policies that are each broken in one place, and the invariant that must catch each."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from attrs import frozen


@frozen
class Mutant:
    """One fault: `what` is wrong, the invariant that it has `broken`, and a `check` of the named invariants."""

    name: str
    what: str
    broken: str
    check: Callable[[tuple[str, ...]], None]


def patched(kind: type, method: str, old: str, new: str) -> Any:
    """A subclass of *kind* whose *method* has the text *new* in place of *old*."""
    source = textwrap.dedent(inspect.getsource(getattr(kind, method)))
    source = source.replace("super()", f"super({kind.__name__}, self)")  # outside of its class it has no other
    assert source.count(old) == 1, f"{kind.__name__}.{method} has {source.count(old)} times {old!r}: renew this mutant"
    names: dict[str, Any] = {}
    exec(source.replace(old, new), vars(inspect.getmodule(kind)), names)
    return type(f"Broken{kind.__name__}", (kind,), names)

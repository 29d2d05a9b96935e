"""`--pool NAME:KEY=VALUE,...`: pools of a fleet on the command line."""

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any

import typer
from attrs import fields_dict

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.specs.pools import PoolSettings
from ksim.specs.settings import EngineSettings

Pools = Annotated[list[str] | None, typer.Option("--pool", metavar="NAME:KEY=VALUE,...", help="a pool of a fleet: its"
                                                " role, replicas, gpu and others, and the engine settings in which it"
                                                " differs, such as decode:role=decode,tensor_parallel_size=4; may be"
                                                " repeated")]


def pool_changes(texts: Sequence[str], known: Collection[str] = ()) -> dict[str, Any]:
    """The values by dotted key that the *texts* of ``--pool`` give to a scenario, which has the *known* pools.

    Raises ConfigError for a text that cannot be read, and for a new pool without a role, and UnknownName for a key that
    is neither a pool's nor an engine setting, and for a pool that is not there.
    """
    changes = dict(change for text in texts for change in _changes(text))
    for name in dict.fromkeys(key.split(".")[1] for key in changes):
        if name not in known and f"pools.{name}.role" not in changes:
            if known:
                raise UnknownName("pool", name, known)
            raise ConfigError("--pool", f"{name} is a new pool, and needs a role, such as {name}:role=both")
    return changes


def with_pools(table: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A scenario's *table* with the pools that the *texts* of ``--pool`` describe."""
    from ksim.scenario.scenario import put

    for key, value in pool_changes(texts).items():
        put(table, key, value)
    return table


def _changes(text: str) -> Iterator[tuple[str, Any]]:
    from ksim.scenario.scenario import pieces, setting

    name, colon, values = (part.strip() for part in text.partition(":"))
    if not name or not colon or not values:
        raise ConfigError("--pool", f"expected NAME:KEY=VALUE,..., such as decode:role=decode,replicas=2, not {text!r}")
    if "." in name:
        raise ConfigError("--pool", f"{name!r} is no name; use letters, digits, - and _")
    for piece in pieces("--pool", name, values):
        if "=" not in piece:
            raise ConfigError("--pool", f"{name}: expected KEY=VALUE, not {piece.strip()!r}")
        key, value = setting(piece.strip())
        yield f"pools.{name}.{_place(key.replace('-', '_'))}", value


def _place(key: str) -> str:
    """The dotted key in a pool's table; *key* is a pool's, or an engine setting's."""
    first, own, settings = key.partition(".")[0], fields_dict(PoolSettings), fields_dict(EngineSettings)
    if first not in own and first not in settings:
        raise UnknownName("pool key", key, [*own, *settings])
    return key if first in own else f"serve.{key}"

"""KV events as vLLM publishes them: what enters and leaves the prefix cache of an engine (distributed/kv_events.py).

`KvEventsConfig` has the settings of vLLM's `--kv-events-config`.
"""

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from attrs import define, field, frozen
from attrs.validators import ge, in_

from ksim.engine.engine import Engine
from ksim.engine.observer import Observer
from ksim.flow.request import BlockKeys
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError

__all__ = ["OPTION", "KvEventsConfig", "endpoint_of", "CacheEvents", "TokenIds", "subscribe_to_cache", "Batch"]


#: What errors name.
OPTION = "--kv-events-config"
_LAST_PORT = 65535


@frozen(kw_only=True)
class KvEventsConfig:
    """vLLM's KVEventsConfig; with `enable_kv_cache_events`, the `publisher` is "zmq" unless it is "null".

    Subscribers can ask for the last `buffer_steps` batches again at `replay_endpoint`.  Up to `hwm` batches wait for a
    slow subscriber, further ones are lost.  Batches are sent at once, so `max_queue_size` has no effect.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = field(default=None, validator=in_((None, "null", "zmq")))
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = field(default=10_000, validator=ge(1))
    hwm: int = field(default=100_000, validator=ge(0))
    max_queue_size: int = field(default=100_000, validator=ge(1))
    topic: str = ""

    @classmethod
    def of(cls, text: str) -> "KvEventsConfig":
        """Read the JSON of `vllm serve --kv-events-config`; raises ConfigError for anything else."""
        try:
            table = json.loads(text)
        except ValueError as error:
            raise ConfigError(OPTION, f"is no JSON: {error}") from None
        if not isinstance(table, dict):
            raise ConfigError(OPTION, f"expected a JSON object, not {text!r:.80}")
        return structure(cls, table, OPTION)

    @property
    def publishes(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher != "null"


def endpoint_of(endpoint: str, number: int) -> str:
    """The *endpoint* of engine *number*: the port plus the number.  Port 0 stays: the system chooses."""
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{number}" if number else endpoint
    base, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise ConfigError(OPTION, f"the address {endpoint!r} has no port; write it like tcp://*:5557")
    if int(port) + number > _LAST_PORT:
        raise ConfigError(OPTION, f"the address {endpoint!r} leaves no port for engine {number}: {int(port) + number}"
                                   f" is more than {_LAST_PORT}")
    return f"{base}:{int(port) + number}" if int(port) else endpoint


#: Changes of a cache: their time, keys of blocks that entered and ~keys of those that left; the same for offloading.
Batch = tuple[float, Sequence[int], Sequence[int]]


@define(eq=False)
class TokenIds:
    """The token ids of named chunks, which have `chunk_tokens` tokens each."""

    chunk_tokens: int
    _ids: dict[Hashable, Sequence[int]] = field(factory=dict, init=False)

    def remember(self, name: Hashable, ids: Sequence[int]) -> None:
        """Note that *name* stands for these *ids*."""
        self._ids[name] = ids

    def of(self, name: Hashable, tokens: int) -> Sequence[int]:
        """The *tokens* ids of the block called *name*, which may be a part of a chunk, or made of several.

        A block without known ids gets made-up ones, always the same.
        """
        known, size = self._ids, self.chunk_tokens
        if name in known:
            return known[name][:tokens]
        parts = name if isinstance(name, tuple) else ()
        if len(parts) == 2 and parts[0] in known and isinstance(parts[1], int) and parts[1] * tokens < size:
            return known[parts[0]][parts[1] * tokens:(parts[1] + 1) * tokens]
        if all(part in known for part in parts[1:]) and parts and isinstance(parts[0], int):
            return [number for part in parts[1:] for number in known[part]][parts[0]:parts[0] + tokens]
        return _made_up(name, tokens)


@define(eq=False)
class CacheEvents:
    """Makes vLLM's events of the changes of caches whose blocks have these `keys`."""

    keys: BlockKeys
    token_ids: TokenIds
    #: By key: the block's hash, the LoRA adapter that computed it, and its name without the adapter.
    _known: dict[int, tuple[int, str | None, Hashable]] = field(factory=dict, init=False)

    def events(self, changes: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """The events of the *changes* in a batch; blocks that follow each other are stored by one event."""
        for left, keys in groupby(changes, key=_left):
            if left:
                yield from ({"type": "BlockRemoved", "block_hashes": [self.hash(~key)], "medium": "GPU",
                             "group_idx": 0} for key in keys)
            else:
                yield from map(self._stored, self._runs(keys))

    def hash(self, key: int) -> int:
        """The hash of the block with this *key*: 64 bits that depend on the hash before it and on its content."""
        return self._block(key)[0]

    def _block(self, key: int) -> tuple[int, str | None, Hashable]:
        missing = list[tuple[int, int, Hashable]]()
        while key >= 0 and key not in self._known:
            before, name = self.keys.block(key)
            missing.append((key, before, name))
            key = before
        for number, before, name in reversed(missing):
            self._known[number] = self._made(before, name)
        return self._known[missing[0][0] if missing else key]

    def _made(self, before: int, name: Hashable) -> tuple[int, str | None, Hashable]:
        parent, adapter, _ = self._known[before] if before >= 0 else (0, None, None)
        if before < 0 and isinstance(name, tuple) and isinstance(name[0], str) and name[0]:
            adapter, name = name
        digest = blake2b(repr((parent, adapter, name)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big"), adapter, name

    def _runs(self, keys: Iterable[int]) -> Iterator[list[int]]:
        """*keys* cut into runs in which each block comes after the one before."""
        run = list[int]()
        for key in keys:
            if run and self.keys.block(key)[0] != run[-1]:
                yield run
                run = []
            run.append(key)
        if run:
            yield run

    def _stored(self, run: Sequence[int]) -> Mapping[str, Any]:
        size, blocks = self.keys.block_tokens, [self._block(key) for key in run]
        before, adapter = self.keys.block(run[0])[0], blocks[0][1]
        return {"type": "BlockStored", "block_hashes": [block[0] for block in blocks],
                "parent_block_hash": self.hash(before) if before >= 0 else None,
                "token_ids": [number for *_, name in blocks for number in self.token_ids.of(name, size)],
                "block_size": size, "lora_id": None if adapter is None else _lora_id(adapter), "medium": "GPU",
                "lora_name": adapter, "extra_keys": [(adapter,) if adapter else None] * len(run), "group_idx": 0}


def subscribe_to_cache(engine: Engine, tell: Callable[[Batch], object]) -> None:
    """Have *tell* called with the changes of the cache of *engine*, which has not begun; routers still get them, too.

    Raises ConfigError for a cache without events.
    """
    tree: Any = getattr(engine.scheduler.cache, "tree", None)
    if not hasattr(tree, "tells"):
        raise ConfigError("--kv-events-config", f"the prefix cache of engine {engine.number} tells nothing: events of"
                                                " SGLang's cache, or of layers that keep different things, are not"
                                                " simulated; leave it out")
    if engine.observer is None:
        engine.show(Observer(engine.number))
    observer = engine.observer
    assert observer is not None, "it was shown one"
    observer.events = _EventQueue(tell, kept=observer.tells is not None)
    observer.tells = tree.tells


class _EventQueue(deque[Batch]):
    """Batches that are passed to *tell* at once, and `kept` if a router reads them, too."""

    def __init__(self, tell: Callable[[Batch], object], kept: bool) -> None:
        super().__init__()
        self._tell, self._kept = tell, kept

    def append(self, batch: Batch) -> None:
        if self._kept:
            super().append(batch)
        self._tell(batch)


def _left(key: int) -> bool:
    return key < 0


def _lora_id(adapter: str) -> int:
    """A number for an adapter; vLLM numbers adapters from 1 in the order of their loading."""
    return 1 + int.from_bytes(blake2b(adapter.encode(), digest_size=3).digest(), "big")


def _made_up(name: Hashable, tokens: int) -> Sequence[int]:
    seed = blake2b(repr(name).encode(), digest_size=32).digest()
    return [int.from_bytes(seed[2 * (index % 16):2 * (index % 16) + 2], "big") for index in range(tokens)]

"""What case files say of KV connectors and of speculative decoding; the names are theirs."""

from collections.abc import Sequence
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le, optional

#: Steps that a transfer may take at most: a replay takes them one by one.
_MOST = 1 << 16
#: The blocks of a request are not kept to be sent.
KEPT = object()


def _steps_or_never(_: Any, attribute: "Attribute[Any]", value: Any) -> None:
    if value is not KEPT and value is not None and (type(value) is not int or not 0 <= value <= _MOST):
        raise ValueError(f"{attribute.name!r} must be a number of steps from 0 to {_MOST}, or null, not {value!r}")


def _all_or_places(_: Any, attribute: "Attribute[Any]", value: Any) -> None:
    places = isinstance(value, list) and all(type(place) is int and place >= 0 for place in value)
    if value not in (None, "all") and not places:
        raise ValueError(f"{attribute.name!r} must be \"all\" or a list of places from 0 on, not {value!r}")


def _plan(_: Any, attribute: "Attribute[Any]", value: Any) -> None:
    if value is not None and (not value or min(value) < 0):
        raise ValueError(f"{attribute.name!r} must have numbers from 0 on, and at least one, not {value!r}")


@frozen(kw_only=True)
class ConnectorSettings:
    """Which KV connector a case has; leases last `lease_steps`.

    One that offloads has a store of `cpu_chunks` chunks; its n-th load takes `load_steps[n % len]` steps.
    """

    kind: str = field(default="nixl", validator=in_(("nixl", "case", "offload")))
    role: str = field(default="kv_consumer", validator=in_(("kv_consumer", "kv_producer", "kv_both")))
    on_load_failure: str = field(default="fail", validator=in_(("fail", "recompute")))
    lease_steps: int = field(default=100, validator=(ge(0), le(_MOST)))
    cpu_chunks: int = field(default=64, validator=gt(0))
    policy: str = field(default="lru", validator=in_(("lru", "arc")))
    store_threshold: int = field(default=0, validator=ge(0))
    offload_prompt_only: bool = False
    blocks_per_chunk: int = field(default=1, validator=gt(0))
    load_steps: Sequence[int] = field(default=(1,), validator=_plan)
    store_steps: Sequence[int] = field(default=(1,), validator=_plan)

    @property
    def offloads(self) -> bool:
        return self.kind == "offload"


@frozen(kw_only=True)
class SpeculativeSettings:
    """The drafter of a case, which drafts `k` tokens a step."""

    method: str = field(default="eagle", validator=in_(("eagle", "draft_model", "ngram")))
    k: int = field(default=3, validator=(gt(0), le(_MOST)))
    lookahead_hashes: bool = True
    block_drop: bool = True


@frozen(kw_only=True)
class Remote:
    """A prompt that was prefilled elsewhere: its load ends `recv` steps after it began, well or `bad`."""

    recv: int = field(validator=(ge(0), le(_MOST)))
    bad: Any = field(default=None, validator=_all_or_places)


@frozen(kw_only=True)
class External(Remote):
    """A store that holds the first `tokens` tokens of the prompt.

    It answers the first `unknown` questions "not known yet".  Blocks that are `bad` are reported `bad_at` steps after
    the load began, or with its end.
    """

    tokens: int = field(validator=ge(0))
    recv: int = field(default=0, validator=(ge(0), le(_MOST)))
    load: str = field(default="async", validator=in_(("async", "sync")))
    unknown: int = field(default=0, validator=(ge(0), le(_MOST)))
    bad_at: int | None = field(default=None, validator=optional((ge(0), le(_MOST))))


@frozen(kw_only=True)
class TransferKeys:
    """What a request of a case has beside the keys of a plain one.

    It is prefilled elsewhere (`remote`), or its blocks are reported as sent so many steps after its end (`send`; None:
    never), or a store holds a part of it (`external`).  `accept` says how many drafts are accepted at its
    verifications, and `drafts` how many are proposed, both used round and round.
    """

    remote: Remote | None = None
    send: Any = field(default=KEPT, validator=_steps_or_never)
    external: External | None = None
    accept: Sequence[int] | None = field(default=None, validator=_plan)
    drafts: Sequence[int] | None = field(default=None, validator=_plan)

"""Case files: the requests that vLLM's scheduler was given, and what it did, step by step.

Prompts as case files write them: lists of pieces that stand for tokens.

What case files say of KV connectors and of speculative decoding; the names are theirs.
"""

import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from gzip import BadGzipFile
from pathlib import Path
from typing import Any

import numpy as np
from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le, optional
from numpy.typing import NDArray

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, DataError, KsimError, UnknownName
from ksim.foundation.files import Unpacked, regular_file
from ksim.kv.cache import Group, Kind
from ksim.scheduling.job import Limits

Tokens = NDArray[np.uint64]

_MASK = (1 << 64) - 1


def length(pieces: Iterable[Any]) -> int:
    """Return the number of tokens in *pieces*; raises ValueError for a piece of an unknown kind."""
    return sum(_count(index, piece) for index, piece in enumerate(pieces))


def tokens(pieces: Iterable[Any]) -> Tokens:
    """The tokens of *pieces*: [seed, n] is a random stream, [seed, n, k] the same from its k-th token on,
    ["t", token, n] repeats a token, a number is one token."""
    return np.concatenate([_tokens(piece) for piece in pieces])


def blocks(content: Tokens, size: int, more: int = 0) -> Sequence[bytes]:
    """*content* in blocks of *size* tokens, as bytes, each with *more* tokens of the next; the last block is partial or
    empty."""
    return [content[first: first + size + more].tobytes() for first in range(0, len(content) + 1, size)]


def _count(index: int, piece: Any) -> int:
    match piece:
        case token if _whole(token):
            return 1
        case [seed, count] | ["t", seed, count] | [seed, count, _] if _whole(seed, count, piece[-1]):
            return int(count)
    raise ValueError(f"'prompt' piece {index} is {piece!r}; expected a token, [seed, count] or [\"t\", token, count]")


def _whole(*values: Any) -> bool:
    return all(type(value) is int and 0 <= value <= _MASK for value in values)


def _tokens(piece: Any) -> Tokens:
    match piece:
        case [seed, count]:
            return _stream(seed, count)
        case ["t", token, count]:
            return np.full(count, token, np.uint64)
        case [seed, count, start]:
            return _stream(seed, start + count)[start:]
        case token:
            return np.array([token], np.uint64)


def _stream(seed: int, count: int) -> Tokens:
    """The first *count* tokens of stream *seed*: SplitMix64's mixing of a counter, modulo 2 ** 64."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & _MASK)
    z = np.arange(count, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03) + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    tokens: Tokens = (z ^ (z >> np.uint64(31))) % np.uint64(100_000) + np.uint64(1000)
    return tokens


#: Steps that a transfer may take at most: a replay takes them one by one.
_MOST_STEPS = 1 << 16
#: The blocks of a request are not kept to be sent.
KEPT = object()


def _steps_or_never(_: Any, attribute: "Attribute[Any]", value: Any) -> None:
    if value is not KEPT and value is not None and (type(value) is not int or not 0 <= value <= _MOST_STEPS):
        raise ValueError(f"{attribute.name!r} must be a number of steps from 0 to {_MOST_STEPS}, or null,"
                         f" not {value!r}")


def _all_or_places(_: Any, attribute: "Attribute[Any]", value: Any) -> None:
    places = isinstance(value, list) and all(type(index) is int and index >= 0 for index in value)
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
    lease_steps: int = field(default=100, validator=(ge(0), le(_MOST_STEPS)))
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
    k: int = field(default=3, validator=(gt(0), le(_MOST_STEPS)))
    lookahead_hashes: bool = True
    block_drop: bool = True


@frozen(kw_only=True)
class Remote:
    """A prompt that was prefilled elsewhere: its load ends `recv` steps after it began, well or `bad`."""

    recv: int = field(validator=(ge(0), le(_MOST_STEPS)))
    bad: Any = field(default=None, validator=_all_or_places)


@frozen(kw_only=True)
class External(Remote):
    """A store that holds the first `tokens` tokens of the prompt.

    It answers the first `unknown` questions "not known yet".  Blocks that are `bad` are reported `bad_at` steps after
    the load began, or with its end.
    """

    tokens: int = field(validator=ge(0))
    recv: int = field(default=0, validator=(ge(0), le(_MOST_STEPS)))
    load: str = field(default="async", validator=in_(("async", "sync")))
    unknown: int = field(default=0, validator=(ge(0), le(_MOST_STEPS)))
    bad_at: int | None = field(default=None, validator=optional((ge(0), le(_MOST_STEPS))))


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


#: A step, or the outcome of a request, as the JSON files have it.
Row = Mapping[str, Any]

STEP_KEYS = ("s", "sched", "free", "q", "upd", "free2", "q2")
OUTCOME_KEYS = ("first", "tokens", "preempt", "hit", "end", "why")
_ENDINGS = (".json.gz", ".json")
LONGEST_CASE = 2**30  # bytes
_MOST = 1 << 24  # tokens, and blocks: more than any server has


def _zero_or_none(_: Any, attribute: "Attribute[Any]", value: int | None) -> None:
    if value:
        raise ValueError(f"{attribute.name!r} must be 0 or null: {value}")


@frozen(kw_only=True)
class KvGroup:
    """A group of layers with a block table of its own; 0 tokens a block are as many as the setting says."""

    type: str = field(validator=in_(("full", "sliding", "chunked", "mamba")))
    window: int = field(default=0, validator=ge(0))
    mode: str = field(default="align", validator=in_(("align", "none")))
    block_size: int = field(default=0, validator=ge(0))
    checkpoint: int = field(default=0, validator=ge(0))
    drafts: int = field(default=0, validator=ge(0))

    def group(self, block_size: int, lookahead: int = 0) -> Group:
        """The group as our cache knows it, where blocks have *block_size* tokens by default."""
        kinds: dict[str, Kind] = {"sliding": "window", "chunked": "chunk",
                                  "mamba": "state" if self.mode == "align" else "full"}
        kind = kinds.get(self.type, "full")
        return Group(kind, self.block_size or block_size, self.window, self.checkpoint, self.drafts,
                     lookahead if kind == "state" else 0)


@frozen(kw_only=True)
class Settings(Limits):
    """The settings of a case, with vLLM's names; the defaults are those of the format, not vLLM's."""

    max_num_batched_tokens: int = field(default=2048, validator=gt(0))
    max_num_seqs: int = field(default=128, validator=gt(0))
    max_model_len: int = field(default=8192, validator=(gt(1), le(_MOST)))
    max_num_active_seqs: int | None = None
    block_size: int = field(default=16, validator=gt(0))
    num_gpu_blocks: int = field(default=1024, validator=(gt(1), le(_MOST)))  # vLLM hands out all but one
    enable_prefix_caching: bool = True
    policy: str = field(default="fcfs", validator=in_(("fcfs", "priority")))
    kv_groups: Sequence[KvGroup] = ()
    mamba_cache_mode: str | None = None  # what the groups say too
    retention_interval: int | None = field(default=0, validator=_zero_or_none)
    connector: ConnectorSettings | None = None
    speculative: SpeculativeSettings | None = None


def _finite(_: Any, attribute: "Attribute[Any]", value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{attribute.name!r} must be finite: {value}")


def _known_pieces(_: Any, attribute: "Attribute[Any]", pieces: Any) -> None:
    if not isinstance(pieces, list) or length(pieces) < 1:
        raise ValueError(f"{attribute.name!r} must be a list of pieces with at least one token")


@frozen(kw_only=True)
class CaseRequest(TransferKeys):
    """A request of a case.

    Its output is `output_len` times `output_token`; if `max_tokens` is larger, the last one is a stop token.
    """

    id: str
    arrival_step: int = field(validator=ge(0))
    prompt: Any = field(validator=_known_pieces)
    output_len: int = field(validator=gt(0))
    priority: int = 0
    arrival_time: float | None = field(default=None, validator=_finite)
    max_tokens: int | None = None
    output_token: int = field(default=7, validator=(ge(0), le(_MOST)))
    skip_cache: bool = False

    @property
    def limit(self) -> int:
        """The number of output tokens at which the scheduler knows that it ends."""
        return self.output_len if self.max_tokens is None else self.max_tokens


@frozen
class Abort:
    """An abort of the request `id`, before or during a step."""

    id: str
    step: int = field(validator=ge(0))
    when: str = field(default="before", validator=in_(("before", "during")))


@frozen
class RecordedCase:
    """The input of a scheduler: settings, requests and aborts."""

    name: str
    settings: Settings
    requests: Sequence[CaseRequest]
    aborts: Sequence[Abort] = ()
    note: str = ""

    @property
    def kind(self) -> str:
        """The kind of the case: its name without the number."""
        kind, _, number = self.name.rpartition("_")
        return kind if number.isdecimal() else self.name


def _rows_with(*keys: str) -> Any:
    def check(_: Any, attribute: "Attribute[Any]", rows: Any) -> None:
        if not isinstance(rows, list):
            raise ValueError(f"{attribute.name!r} must be a list")
        for index, row in enumerate(rows):
            missing = [key for key in keys if key not in row] if isinstance(row, dict) else keys
            if missing:
                raise ValueError(f"'{attribute.name}[{index}]' lacks {', '.join(missing)}")

    return check


@frozen
class Expected:
    """The recorded behaviour of a scheduler: its steps, and the outcome of each request."""

    end: str = field(validator=in_(("done", "stalled")))
    depth: int = field(validator=gt(0))
    steps: Any = field(validator=_rows_with(*STEP_KEYS))
    requests: Any = field(validator=_rows_with(*OUTCOME_KEYS))


@frozen
class CaseFile:
    """The content of a case file."""

    format: int = field(validator=in_((1,)))
    vllm: str
    case: RecordedCase
    expected: Expected


def find(path: Path, name: str = "") -> list[Path]:
    """The case files in the folder *path*, or *path* itself; only that of the case *name*, if given.

    Raises DataError where there are none, and UnknownName for an unknown case.
    """
    if not path.exists():
        raise DataError(str(path), "no such file or folder")
    files = [path] if not path.is_dir() else sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS))
    if not files:
        raise DataError(str(path), f"holds no case files ({', '.join('*' + ending for ending in _ENDINGS)})")
    if name and name not in map(_stem, files):
        raise UnknownName("case", name, map(_stem, files))
    return [file for file in files if name in ("", _stem(file))]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def read(path: Path) -> CaseFile:
    """Read a case file; raises DataError if it cannot be read, and ConfigError, which names the key, if it is wrong."""
    recording = structure(CaseFile, load_json(path), str(path))
    case, expected = recording.case, recording.expected
    try:
        case.settings.check()
    except KsimError as error:
        raise ConfigError(f"{path}: case.settings", str(error)) from None
    if case.settings.kv_groups and case.settings.connector is not None and case.settings.connector.offloads:
        raise ConfigError(f"{path}: case.settings.kv_groups", "a connector that offloads is replayed with one group of"
                                                              " layers; leave them out")
    for index, request in enumerate(case.requests):
        if problem := _problem(request, case.settings):
            raise ConfigError(f"{path}: case.requests[{index}]", problem)
    for name, times in Counter(request.id for request in case.requests).items():
        if times > 1:
            raise ConfigError(f"{path}: case.requests", f"{times} of them have the id {name!r}")
    if len(expected.requests) != len(case.requests):
        raise ConfigError(f"{path}: expected.requests", f"has {len(expected.requests)} entries for"
                                                        f" {len(case.requests)} requests")
    return recording


def _problem(request: CaseRequest, settings: Settings) -> str:
    """Why vLLM would refuse *request*; "" if it would not."""
    if (prompt := length(request.prompt)) >= settings.max_model_len:
        return f"prompt of {prompt} tokens leaves no room for output in max_model_len = {settings.max_model_len}"
    if request.limit < request.output_len:
        return f"max_tokens ({request.limit}) is smaller than output_len ({request.output_len})"
    transfers = [key for key, given in (("remote", request.remote is not None), ("send", request.send is not KEPT),
                                        ("external", request.external is not None)) if given]
    if len(transfers) > 1:
        return f"has {' and '.join(transfers)}, of which a request has one at most"
    if transfers and (settings.connector is None or settings.connector.offloads):
        return f"{transfers[0]} needs settings.connector of another kind than offload"
    if (request.accept or request.drafts) and settings.speculative is None:
        return "accept and drafts need settings.speculative"
    return ""


def load_json(path: Path) -> Mapping[str, Any]:
    """The table in a JSON file, gzipped or not; raises DataError."""
    try:
        packed = regular_file(path, LONGEST_CASE).suffix == ".gz"
        with io.BufferedReader(Unpacked(path)) if packed else path.open("rb") as file:
            content = file.read(LONGEST_CASE + 1)
        if len(content) > LONGEST_CASE:
            raise DataError(str(path), f"unpacks to more than {LONGEST_CASE // 2**20} MiB, which is the most of a case")
        table = json.loads(content)
    except (BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(str(path), f"is not a gzip file, or cut short: {error}") from None
    except OSError as error:
        raise DataError(str(path), error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise DataError(str(path), f"is not valid JSON: {error}") from None
    if not isinstance(table, Mapping):
        raise DataError(str(path), "holds no table of keys and values")
    return table

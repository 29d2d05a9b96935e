"""Case files: the requests that vLLM's scheduler was given, and what it did, step by step."""

import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from gzip import BadGzipFile
from pathlib import Path
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, DataError, KsimError, UnknownName
from ksim.foundation.files import Unpacked, regular_file
from ksim.kv_cache.groups import Group, Kind
from ksim.scheduling.limits import Limits
from ksim.validation import prompts
from ksim.validation.transfer_cases import KEPT, ConnectorSettings, SpeculativeSettings, TransferKeys

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
    if not isinstance(pieces, list) or prompts.length(pieces) < 1:
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
class Case:
    """What a scheduler is given: settings, requests and aborts."""

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
        for place, row in enumerate(rows):
            missing = [key for key in keys if key not in row] if isinstance(row, dict) else keys
            if missing:
                raise ValueError(f"'{attribute.name}[{place}]' lacks {', '.join(missing)}")

    return check


@frozen
class Expected:
    """What the scheduler did, step by step and request by request."""

    end: str = field(validator=in_(("done", "stalled")))
    depth: int = field(validator=gt(0))
    steps: Any = field(validator=_rows_with(*STEP_KEYS))
    requests: Any = field(validator=_rows_with(*OUTCOME_KEYS))


@frozen
class Recording:
    """The content of a case file."""

    format: int = field(validator=in_((1,)))
    vllm: str
    case: Case
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


def read(path: Path) -> Recording:
    """Read a case file; raises DataError if it cannot be read, and ConfigError, which names the key, if it is wrong."""
    recording = structure(Recording, load_json(path), str(path))
    case, expected = recording.case, recording.expected
    try:
        case.settings.check()
    except KsimError as error:
        raise ConfigError(f"{path}: case.settings", str(error)) from None
    if case.settings.kv_groups and case.settings.connector is not None and case.settings.connector.offloads:
        raise ConfigError(f"{path}: case.settings.kv_groups", "a connector that offloads is replayed with one group of"
                                                              " layers; leave them out")
    for place, request in enumerate(case.requests):
        if problem := _problem(request, case.settings):
            raise ConfigError(f"{path}: case.requests[{place}]", problem)
    for name, times in Counter(request.id for request in case.requests).items():
        if times > 1:
            raise ConfigError(f"{path}: case.requests", f"{times} of them have the id {name!r}")
    if len(expected.requests) != len(case.requests):
        raise ConfigError(f"{path}: expected.requests", f"has {len(expected.requests)} entries for"
                                                        f" {len(case.requests)} requests")
    return recording


def _problem(request: CaseRequest, settings: Settings) -> str:
    """Why vLLM would refuse *request*; "" if it would not."""
    if (prompt := prompts.length(request.prompt)) >= settings.max_model_len:
        return f"prompt of {prompt} tokens leaves no room for output in max_model_len = {settings.max_model_len}"
    if request.limit < request.output_len:
        return f"max_tokens ({request.limit}) is smaller than output_len ({request.output_len})"
    transfers = [key for key, told in (("remote", request.remote is not None), ("send", request.send is not KEPT),
                                       ("external", request.external is not None)) if told]
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

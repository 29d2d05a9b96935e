"""The keys of a table as its attrs class documents them: the one source of help texts, pages and schemas.

A key's documentation is the string under its field.  Sentences that begin with a label say more than the text:

    max_num_seqs: int | None = field(default=None, validator=optional(gt(0)))
    \"\"\"Most sequences in a step. Unit: sequences. Default: set by release. Source: vLLM. Example: 64.\"\"\"

`Unit` is that of a number; `Default` says where an open value comes from; `Source` names the program that the
key is from; `Names` has the folders of plug-ins ("cluster.routers") or data files ("gpus") that a value may name;
`Example` is a value in TOML, for keys without a default.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs

from ksim.foundation import catalog
from ksim.foundation.units import OfEach, key_of

LABELS = ("Unit", "Default", "Source", "Names", "Example")
_LABEL = re.compile(rf"(?:^|(?<=\s))({'|'.join(LABELS)}): ")


@attrs.frozen
class Key:
    """One key of a table: its *field*, its type as a *hint* and as *written*, its *text* and what its *labels* say."""

    field: "attrs.Attribute[Any]"
    hint: Any
    written: Any
    text: str
    labels: dict[str, str]

    @property
    def name(self) -> str:
        """The key; that of a field whose name ends with an underscore is a word of Python's, such as for."""
        return key_of(self.field)

    @property
    def kind(self) -> Any:
        """The type of its value, but for None."""
        members = [each for each in _members(self.hint) if each is not type(None)] if _is_union(self.hint) else []
        return self.hint if not members else members[0] if len(members) == 1 else Union[tuple(members)]  # noqa: UP007

    @property
    def required(self) -> bool:
        return self.field.default is attrs.NOTHING

    @property
    def default(self) -> Any:
        """The value of a key that is left out; None where it is derived."""
        made: Any = self.field.default
        if hasattr(made, "factory"):  # what attrs' `factory=` leaves
            return None if made.takes_self else made.factory()
        return None if self.required else made

    @property
    def quantity(self) -> bool:
        """Whether a number may be written with its unit, such as "200 ms"."""
        return self.field.converter is not None and float in _members(self.hint)

    @property
    def tabled(self) -> bool:
        """Whether a table of quantities by name may stand in place of one."""
        return self.quantity and any(get_origin(member) is Mapping for member in _members(self.hint))

    @property
    def timed(self) -> bool:
        """Whether a number needs its unit, as times do that are ``Annotated[float, "s"]``; 0 needs none."""
        marked = (member for member in _members(self.written) if get_origin(member) is Annotated)
        return any(get_args(member)[1:] == ("s",) for member in marked)

    @property
    def part_of(self) -> type | None:
        """The table of which its value holds some keys: X of ``Annotated[Mapping[str, Any], X]``."""
        marked = get_args(self.written)[1:] if get_origin(self.written) is Annotated else ()
        return next((each for each in marked if attrs.has(each)), None)

    @property
    def described(self) -> str:
        """The text with the unit, where an open value comes from, and the values that there are."""
        unit, default = self.labels.get("Unit", "none"), self.labels.get("Default", "")
        return " ".join([self.text, *([f"Unit: {unit}."] if unit != "none" else []),
                         *([f"One of: {', '.join(map(str, self.shown))}."] if self.shown else []),
                         *([f"Default: {default}."] if default else [])])

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values that there are; empty where others can be."""
        return tuple(next((each.options for each in _simple(self.field.validator) if hasattr(each, "options")), ()))

    @property
    def shown(self) -> tuple[str, ...]:
        """Those of the choices that a text lists, where others are made of parts."""
        return tuple(next((each.shown for each in _simple(self.field.validator) if hasattr(each, "shown")),
                          self.choices))

    @property
    def bounds(self) -> list[tuple[str, float]]:
        """What its number must be, such as (">", 0)."""
        return [(each.compare_op, each.bound) for each in _simple(self.field.validator) if hasattr(each, "compare_op")]

    @property
    def names(self) -> list[str]:
        """The catalogue names of what it may name."""
        return [name for folder in self.folders for name in catalog.choices(folder)]

    @property
    def folders(self) -> list[str]:
        """Where these names come from."""
        return [folder for folder in self.labels.get("Names", "").split(", ") if folder]


@cache
def keys(cls: type) -> tuple[Key, ...]:
    """The keys of the table that attrs class *cls* is made from, in order; undocumented ones have an empty text."""
    hints, written, documented = get_type_hints(cls), get_type_hints(cls, include_extras=True), _documented(cls)
    return tuple(Key(each, hints[each.name], written[each.name], *_parsed(documented.get(each.name, "")))
                 for each in attrs.fields(cls) if each.init)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if _is_union(hint) else (hint,)


def _simple(validator: Any) -> Iterator[Any]:
    """The validators that attrs' `optional` and `and_` put together; attrs has no public way to ask."""
    kind = type(validator).__name__
    if kind == "_OptionalValidator":
        yield from _simple(validator.validator)
    elif kind == "_AndValidator":
        for each in validator._validators:
            yield from _simple(each)
    elif isinstance(validator, OfEach):
        for each in validator.rules:
            yield from _simple(each)
    elif validator is not None:
        yield validator


def _documented(cls: type) -> dict[str, str]:
    """The strings under the fields of *cls* and its bases, by field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = _body(base)
        for node, after in pairwise(body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_text(after):
                found[node.target.id] = after.value.value  # type: ignore[attr-defined]
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """The bodies of a module's classes, by name; none where ksim is installed without its source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _body(cls: type) -> list[ast.stmt]:
    return _classes(cls.__module__).get(cls.__name__, [])


def _parsed(docstring: str) -> tuple[str, dict[str, str]]:
    """The text of *docstring*, and what its labels say."""
    text, *rest = _LABEL.split(" ".join(docstring.split()))
    return text.strip(), {label: said.strip().removesuffix(".") for label, said in zip(rest[::2], rest[1::2],
                                                                                       strict=True)}

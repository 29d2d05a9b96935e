"""Quantities in SI base units: seconds, bytes, FLOP, joules and watts.

Data files write quantities with their unit ("4.8 TB/s"); `quantity` converts them at the file boundary, so no name
inside ksim carries a unit.  Types such as `Seconds` tell cattrs how a key in a unit is read and written.

A table may be written as the list of one key, which its class calls `listed`.  A field whose key is a word of Python's
ends with an underscore.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin

import attrs
from attrs import Attribute, frozen
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ksim.foundation.files import number_hint

__all__ = ["UnitKeys", "camel", "key_of", "quantity", "checked_unit", "Seconds", "Watts", "Hertz", "Amount", "LONGEST",
           "measured", "in_one_unit", "optional_quantity", "quantities", "OfEach", "GIB", "HOUR", "KWH", "DType",
           "by_dtype"]


_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
           "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
           "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}
_QUANTITY = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([KMGT]i|[kMGTPmunp])?(FLOP|B|W|J|s|Hz)?(/s|/B|/FLOP)?")


def quantity(value: float | str) -> float:
    """Return *value* in base units: ``quantity("4.8 TB/s") == 4.8e12``.

    Raises ValueError where *value* is neither a finite number nor such a text.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a quantity such as '4.8 TB/s'")
    if not isinstance(value, str):
        number = float(value)
    else:
        match = _QUANTITY.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a quantity such as '4.8 TB/s'")
        # Divide by 1e3, 1e6, ... where that is exact and multiplying by 1e-3, 1e-6 is not.
        scale = _PREFIX[match[2] or ""]
        number = float(match[1]) * scale if scale >= 1 else float(match[1]) / round(1 / scale)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number


def unit_in(text: str) -> str | None:
    """The unit of a quantity without its prefix: "B/s" of "4.8 TB/s", "" of a bare number, None of anything else."""
    match = _QUANTITY.fullmatch(text.strip())
    return f"{match[3] or ''}{match[4] or ''}" if match else None


def checked_unit(value: Any, unit: str) -> None:
    """Raise ValueError unless *value* is 0 or a text in *unit*: ``checked_unit("4.8 TB/s", "B/s")`` passes."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return
    found = unit_in(str(value)) if isinstance(value, int | float | str) else None
    if (found or "") != unit:
        problem = "is no quantity" if found is None else f"is in {found}" if found else "has no unit"
        raise ValueError(f"{value!r} {problem}; expected a quantity in {unit}, such as {_EXAMPLES.get(unit, unit)!r}")


_EXAMPLES = {"B/s": "4.8 TB/s", "B": "80 GiB", "Hz": "1980 MHz", "FLOP/s": "989 TFLOP/s", "W": "700 W",
             "J/B": "25 pJ/B", "J/FLOP": "0.5 pJ/FLOP", "s": "1.8 us"}


#: A key of a scenario that is in this unit: `config.structure` refuses any other, and `config.plain` writes it.
#: An amount is in the unit of the key that it stands under, or in none.
Seconds = Annotated[float, "s"]
Watts = Annotated[float, "W"]
Hertz = Annotated[float, "Hz"]
Amount = Annotated[float, ""]
#: Seconds in about 31 years: after longer ones, times could no longer be told apart to a microsecond.
LONGEST = 1e9


def measured(value: float | str, unit: str) -> float:
    """Return *value*, a number or a text such as "200 ms", in *unit* without a prefix; "" is for counts.

    Raises ValueError for another unit, and for a time without one: it could be meant in seconds or in milliseconds.
    """
    if isinstance(value, str) and not _QUANTITY.fullmatch(value.strip()):
        example = "'200 ms' or '1 s'" if unit == "s" else repr(_EXAMPLES.get(unit, "1.5"))
        raise ValueError(f"{value!r} is not a quantity such as {example}{number_hint(value)}")
    number = quantity(value)
    given = (isinstance(value, str) and unit_in(value)) or ""
    if unit == "s" and not given and number:
        bare = value.strip() if isinstance(value, str) else f"{value:g}"
        raise ValueError(f"{bare} has no unit; write '{bare} ms' or '{bare} s'")
    if given not in ("", unit):
        raise ValueError(f"{value!r} is in {given}; expected {unit or 'a number without a unit'}")
    if unit == "s" and abs(number) > LONGEST:
        raise ValueError(f"{number:g} s is too long: at most {LONGEST:g} s, which is 31 years")
    return number


def in_one_unit(values: Sequence[Any]) -> tuple[list[float | None], str] | None:
    """*values* as numbers, and the unit that they share: 400 and 700 in "W" for "400 W" and "700 W".

    None where they are not all quantities of one kind.  The unit keeps its prefix where all have the same, a bare 0 is
    in any unit, and None has no number.
    """
    known = [value for value in values if value is not None]
    try:
        exact = [quantity(value) for value in known]
    except (TypeError, ValueError):
        return None
    written = {str(value).lstrip("+-.0123456789eE ") for value, base in zip(known, exact, strict=True) if base}
    kinds = {unit_in(f"1 {unit}") or "" for unit in written} - {""}
    if not known or len(kinds) > 1:
        return None
    unit = next(iter(written if len(written) == 1 else kinds), "")
    return [None if value is None else quantity(value) / quantity(f"1 {unit}") for value in values], unit


def optional_quantity(value: float | str | None) -> float | None:
    """Return *value* in base units, or None for None."""
    return None if value is None else quantity(value)


def quantities(value: float | str | Mapping[str, float | str] | None) -> float | Mapping[str, float] | None:
    """Return *value* in base units: a quantity, a table of them, or None."""
    if not isinstance(value, Mapping):
        return optional_quantity(value)
    return {str(name): quantity(item) for name, item in value.items()}


@frozen
class OfEach:
    """Checks a value, or each value of a table, by all of `rules`, which are validators of attrs."""

    rules: tuple[Any, ...]

    def __call__(self, table: Any, attribute: "Attribute[Any]", value: Any) -> None:
        for item in value.values() if isinstance(value, Mapping) else (value,):
            for rule in self.rules:
                rule(table, attribute, item)


#: Bytes.
GIB = 2.0**30
#: Seconds.
HOUR = 3600.0
#: Joules.
KWH = 3.6e6


class DType(Enum):
    """A number format; its value is the bytes one number takes.

    Numbers of a block-scaled format share a scale, which counts with them; `element` is what remains of it without.
    A `group` of integers is so many weights of a column that share one, 0 where a whole column does.
    """

    # Formats of equal size would be aliases of each other in an Enum: the tuple keeps them apart.
    FP4 = ("fp4", 0.5)
    INT4 = ("int4", 0.5)
    FP8 = ("fp8", 1.0)
    INT8 = ("int8", 1.0)
    BF16 = ("bf16", 2.0)
    FP16 = ("fp16", 2.0)
    FP32 = ("fp32", 4.0)
    #: DeepSeek's: an FP32 scale for each 128 x 128 weights (arXiv 2412.19437, section 3.3.2).
    FP8_BLOCK = ("fp8_block", 1.0 + 4 / 128**2, "fp8")
    #: NVIDIA's: an FP8 scale for each 16 numbers.
    NVFP4 = ("nvfp4", 0.5 + 1 / 16, "fp4")
    #: OCP Microscaling Formats 1.0: an 8-bit exponent for each 32 numbers.
    MXFP4 = ("mxfp4", 0.5 + 1 / 32, "fp4")
    #: A 16-bit scale for each group of 32, 64 or 128 weights of a column, as GPTQ and compressed-tensors have them, and
    #: with a zero point of as many bits as a weight has (AWQ).  Scales of whole columns are too few to count.
    INT4_BLOCK = ("int4_block", 0.5 + 2 / 32, "int4", 32)
    INT4_G64 = ("int4_g64", 0.5 + 2 / 64, "int4", 64)
    INT4_G128 = ("int4_g128", 0.5 + 2 / 128, "int4", 128)
    INT4_G32_ZP = ("int4_g32_zp", 0.5 + 2.5 / 32, "int4", 32)
    INT4_G64_ZP = ("int4_g64_zp", 0.5 + 2.5 / 64, "int4", 64)
    INT4_G128_ZP = ("int4_g128_zp", 0.5 + 2.5 / 128, "int4", 128)
    INT8_G32 = ("int8_g32", 1 + 2 / 32, "int8", 32)
    INT8_G64 = ("int8_g64", 1 + 2 / 64, "int8", 64)
    INT8_G128 = ("int8_g128", 1 + 2 / 128, "int8", 128)
    INT8_G32_ZP = ("int8_g32_zp", 1 + 3 / 32, "int8", 32)
    INT8_G64_ZP = ("int8_g64_zp", 1 + 3 / 64, "int8", 64)
    INT8_G128_ZP = ("int8_g128_zp", 1 + 3 / 128, "int8", 128)
    #: bitsandbytes': an FP32 scale for each 64 weights; double-quantized, 8 bits, and an FP32 one for each 256 of these
    #: (arXiv 2305.14314, section 3).
    NF4 = ("nf4", 0.5 + 4 / 64, "int4")
    NF4_DOUBLE = ("nf4_double", 0.5 + 1 / 64 + 4 / (64 * 256), "int4")

    def __init__(self, label: str, size: float, element: str = "", group: int = 0):
        self.label = label
        self.bytes = size
        self._element = element or label
        self.group = group

    @cached_property
    def element(self) -> "DType":
        """The format of the numbers themselves, in which they are multiplied."""
        return DType.named(self._element)

    @classmethod
    def named(cls, label: str) -> "DType":
        """Return the format called *label*, such as "bf16"; raise ValueError for any other."""
        try:
            return cls[label.upper()]
        except (KeyError, AttributeError):
            raise ValueError(f"{label!r} is not a number format ({', '.join(d.label for d in cls)})") from None

    def __str__(self) -> str:
        return self.label


def by_dtype(table: Mapping[str | DType, float | str]) -> dict[DType, float]:
    """A table of quantities by number format, whose keys may be their labels."""
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table of quantities by number format, not {table!r}")
    return {key if isinstance(key, DType) else DType.named(key): quantity(value) for key, value in table.items()}


_EXAMPLES_BY_KIND = {"s": "200 ms", "W": "500 W", "Hz": "1.5 GHz", "": "2k"}


def key_of(field: "attrs.Attribute[Any]") -> str:
    """The key that *field* is made from: its name without the underscore that keeps it from being a word of Python.

    It is another where the field's metadata say how it is `written`, as those of classes in `camel` case do.
    """
    return str(field.metadata.get("written") or field.name.removesuffix("_"))


def camel(_: type, table: "list[attrs.Attribute[Any]]") -> "list[attrs.Attribute[Any]]":
    """A field_transformer of attrs for tables whose keys are in camel case, as Kubernetes writes them."""
    return [field.evolve(metadata={"written": re.sub(r"_(\w)", lambda match: match[1].upper(), key_of(field)),
                                   **field.metadata}) for field in table]


@attrs.frozen
class UnitKeys:
    """Hooks for *converter*; *kinds* gives the classes of a union of tables by their `kind`, none for other types."""

    converter: Converter
    kinds: Callable[[Any], dict[str, type]]

    def register(self) -> None:
        """Have the converter read and write keys in a unit."""
        self.converter.register_structure_hook_func(self._has_unit, self._read)
        self.converter.register_structure_hook_factory(self._is_table, self._table_reader)
        self.converter.register_unstructure_hook_factory(self._has_unit, self._writer)
        self.converter.register_unstructure_hook_factory(self._is_renamed, self._table_writer)

    def _has_unit(self, target: Any) -> bool:
        return self._unit(target) is not None

    def _unit(self, target: Any) -> str | None:
        """The unit of a type such as `Seconds`, or of a union of tables under a unit; None where it has none."""
        if get_origin(target) is not Annotated or not isinstance(target.__metadata__[0], str):
            return None
        return target.__metadata__[0] if target.__origin__ is float or self.kinds(target.__origin__) else None

    def _units(self, field: "attrs.Attribute[Any]") -> set[str]:
        """The unit of the type of *field*, or of what it may be besides None."""
        return {unit for member in (field.type, *get_args(field.type)) if (unit := self._unit(member)) is not None}

    def _amounts(self, table: Any) -> set[str]:
        """The keys of a table whose unit is that of the key that it stands under."""
        return {field.name for field in attrs.fields(table) if "" in self._units(field)}

    def _read(self, value: Any, target: Any) -> Any:
        unit, origin = target.__metadata__[0], target.__origin__
        if origin is float:
            return _number(value, unit)
        member = self.kinds(origin).get(str(value.get("kind"))) if isinstance(value, Mapping) else None
        if member is not None:
            amounts = self._amounts(member)
            value = {key: _amount(key, item, unit) if key in amounts else item for key, item in value.items()}
        return self.converter.structure(value, origin)

    def _writer(self, target: Any) -> Callable[[Any], Any]:
        """What writes a time with its unit, and leaves other numbers bare."""
        unit = target.__metadata__[0]
        if target.__origin__ is float:
            return (lambda value: f"{value!r} s") if unit == "s" else (lambda value: value)

        def write(value: Any) -> Any:
            amounts = self._amounts(type(value)) if unit == "s" else set()
            return {key: f"{item!r} s" if key in amounts and item is not None else item
                    for key, item in self.converter.unstructure(value).items()}

        return write

    def _is_table(self, target: Any) -> bool:
        return attrs.has(target) and (hasattr(target, "listed") or self._is_renamed(target) or
                                      any(map(self._is_read_before, attrs.fields(target))))

    def _is_renamed(self, target: Any) -> bool:
        return attrs.has(target) and any(key_of(field) != field.name for field in attrs.fields(target))

    def _is_read_before(self, field: "attrs.Attribute[Any]") -> bool:
        """Whether *field* is read before its own converter is called, so that an error names its key.

        Converters of keys in a unit are for Python, where a bare time is in seconds.
        """
        converter: Any = field.converter
        return bool(self._units(field)) or converter in (quantity, optional_quantity, quantities)

    def _table_reader(self, target: Any) -> Any:
        hooks: dict[str, Any] = {field.name: override(rename=key_of(field)) for field in attrs.fields(target)}
        hooks |= {field.name: override(struct_hook=self._field_reader(field), rename=key_of(field))
                  for field in attrs.fields(target) if self._is_read_before(field)}
        read = make_dict_structure_fn(target, self.converter, **hooks)
        if (key := getattr(target, "listed", None)) is None:
            return read
        return lambda value, kind: read({key: value} if isinstance(value, list) else value, kind)

    def _table_writer(self, target: Any) -> Any:
        renamed: dict[str, Any] = {field.name: override(rename=key_of(field)) for field in attrs.fields(target)}
        return make_dict_unstructure_fn(target, self.converter, **renamed)

    def _field_reader(self, field: Any) -> Callable[[Any, Any], Any]:
        if self._units(field):
            return lambda value, _: self.converter.structure(value, field.type)
        return lambda value, _: field.converter(value)


def _number(value: Any, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number or a text such as '{_EXAMPLES_BY_KIND[unit]}', not {value!r}")
    return measured(value, unit)


def _amount(key: str, value: Any, unit: str) -> float:
    try:
        return _number(value, unit)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None

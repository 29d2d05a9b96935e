"""Quantities in SI base units: seconds, bytes, FLOP, joules and watts.

Data files write quantities with their unit ("4.8 TB/s"); `quantity` converts
them at the file boundary, so no name inside ksim carries a unit.
"""

import math
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from attrs import Attribute, frozen

from ksim.foundation.text_hints import number_hint

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

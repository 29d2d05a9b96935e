"""How cattrs reads and writes keys in a unit: `Seconds` and the like, and tables of amounts under such a unit.

It also reads tables that may be a list, that of the key which their class calls `listed`, and keys that are words of
Python's, whose fields end with an underscore.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ksim.foundation.units import measured, optional_quantity, quantities, quantity

__all__ = ["UnitKeys", "key_of"]

_EXAMPLES = {"s": "200 ms", "W": "500 W", "Hz": "1.5 GHz", "": "2k"}


def key_of(field: "attrs.Attribute[Any]") -> str:
    """The key that *field* is made from: its name without the underscore that keeps it from being a word of Python."""
    return field.name.removesuffix("_")


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
        hooks: dict[str, Any] = {field.name: override(struct_hook=self._field_reader(field), rename=key_of(field))
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
        raise ValueError(f"expected a number or a text such as '{_EXAMPLES[unit]}', not {value!r}")
    return measured(value, unit)


def _amount(key: str, value: Any, unit: str) -> float:
    try:
        return _number(value, unit)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None

"""Values of a YAML or JSON text that know where they stand: every error names the file, the line and the key."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from attrs import field, frozen

from ksim.deploy.texts.pasted import Pasted
from ksim.foundation.errors import ConfigError

__all__ = ["RENDER", "TEMPLATE", "Entry"]

#: What a template that nobody has rendered looks like, and how to render it.
TEMPLATE = "{{"
RENDER = "is a Helm template; render it first: helm template RELEASE CHART -f values.yaml > rendered.yaml"


@frozen(eq=False)
class Entry:
    """A value, and the dotted `key` and the `line` of that key in the text that it is from."""

    node: yaml.Node
    pasted: Pasted
    key: str = ""
    line: int = 1
    origins: Mapping[int, tuple[str, int]] = field(factory=dict, repr=False)
    """The keys and lines of nodes inside that stand elsewhere in the text, by the nodes' identities."""
    _values: dict[str, Any] = field(factory=dict, init=False, repr=False)

    def each(self, *keys: str) -> "list[Entry]":
        """The values of the list under *keys*; none if there is no list."""
        value = self.get(*keys)
        return value.items if value is not None else []

    @property
    def place(self) -> str:
        """The file and the line: "serve.yaml:3"."""
        return self.pasted.at(self.line)

    @property
    def where(self) -> str:
        """The file, the line and the key: "serve.yaml:3: spec.replicas"."""
        return self.place + (f": {self.key}" if self.key else "")

    def error(self, problem: str) -> ConfigError:
        return ConfigError(self.where, problem)

    @property
    def is_table(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_null(self) -> bool:
        return str(self.node.tag) == "tag:yaml.org,2002:null"

    @property
    def table(self) -> "dict[str, Entry]":
        """The values by key; raises ConfigError if this is no table."""
        if "table" not in self._values:
            self._values["table"] = dict(self._rows())
        table: dict[str, Entry] = self._values["table"]
        return table

    def _rows(self) -> "Iterator[tuple[str, Entry]]":
        if self.is_null:
            return
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"expected keys and values, not {self._shown}")
        for key, value in self.node.value:
            inner = f"{self.key}.{key.value}" if self.key else str(key.value)
            yield str(key.value), self._inner(value, inner, key.start_mark.line + 1)

    @property
    def items(self) -> "list[Entry]":
        """The values of a list, none of an absent one; raises ConfigError if this is no list."""
        if self.is_null:
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"expected a list, not {self._shown}")
        return [self._inner(item, f"{self.key}[{place}]", item.start_mark.line + 1)
                for place, item in enumerate(self.node.value)]

    def _inner(self, node: yaml.Node, key: str, line: int) -> "Entry":
        return Entry(node, self.pasted, *self.origins.get(id(node), (key, line)), self.origins)

    def get(self, *keys: str) -> "Entry | None":
        """The value under *keys*, tables in tables; None where there is none, or null."""
        inner: Entry | None = self
        for key in keys:
            inner = inner.table.get(key) if inner is not None else None
        return None if inner is None or inner.is_null else inner

    def need(self, *keys: str) -> "Entry":
        """The value under *keys*; raises ConfigError where there is none."""
        value = self.get(*keys)
        if value is None:
            raise self.error(f"has no {'.'.join(keys)}")
        return value

    @property
    def text(self) -> str:
        """The text of a scalar, as it is written: "8", 8 and true alike."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"expected a text, not {self._shown}")
        return str(self.node.value)

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.items]

    @property
    def count(self) -> int:
        """A whole number of 0 or more, quoted or not."""
        text = self.text.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise self.error(f"expected a whole number, not {text!r}{_HINT if TEMPLATE in text else ''}")
        return int(text)

    @property
    def flag(self) -> bool:
        """A truth value."""
        if (text := self.text.lower()) not in ("true", "false"):
            raise self.error(f"expected true or false, not {self.text!r}")
        return text == "true"

    @property
    def plain(self) -> Any:
        """The value as Python's."""
        if "plain" not in self._values:
            self._values["plain"] = _constructed(self)
        return self._values["plain"]

    @property
    def _shown(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return repr(self.node.value) if len(self.node.value) < 60 else "a long text"
        return "a table" if self.is_table else "a list"


_HINT = f"; the file {RENDER}"


def _constructed(entry: Entry) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(entry.node, deep=True)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise entry.error(f"is no value that can be read: {getattr(error, 'problem', None) or error}") from None

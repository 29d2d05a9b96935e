"""YAML, and the comments above it on what a form cannot say."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

import yaml

__all__ = ["comments", "documents"]


def comments(missing: Sequence[str]) -> str:
    """Comment lines that list what is *missing*; none if nothing is."""
    if not missing:
        return ""
    lines = ["Not in here:"]
    for text in missing:
        first, *more = wrap(text, 112, break_long_words=False, break_on_hyphens=False)
        lines += [f"- {first}", *(f"  {line}" for line in more)]
    return "".join(f"# {line}\n" for line in lines)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes lists indented, texts of several lines as blocks, and no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def documents(tables: Iterable[Mapping[str, Any]]) -> str:
    """*tables* as the documents of a YAML file."""
    return "---\n".join(yaml.dump(dict(table), Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)
                        for table in tables)

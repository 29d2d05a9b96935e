"""The documents of a YAML or JSON text, checked: no key twice, no loops, no more values than anybody writes."""

import json
from typing import Any

import yaml

from ksim.deploy.texts.entries import RENDER, TEMPLATE, Entry
from ksim.deploy.texts.pasted import Pasted
from ksim.foundation.errors import DataError

__all__ = ["documents"]

#: Most values of a document once its aliases are followed.  Some ten lines of aliases of aliases stand for billions.
_MOST_VALUES = 200_000


def documents(pasted: Pasted) -> list[Entry]:
    """The documents of a YAML or JSON text that are not empty.

    Raises DataError, which names the line, for text that is neither, for a key that is there twice and for aliases that
    stand for too much.
    """
    nodes = _composed(_without_tabs(pasted.text), pasted)
    for node in nodes:
        _check(node, pasted)
    return [Entry(node, pasted, line=node.start_mark.line + 1) for node in nodes
            if node.tag != "tag:yaml.org,2002:null"]


def _without_tabs(text: str) -> str:
    """*text*, with spaces for tabs if it is JSON: JSON may be indented by tabs, YAML may not."""
    if "\t" not in text or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _composed(text: str, pasted: Pasted) -> list[yaml.Node]:
    whole = pasted.source or "the text"
    try:
        return [node for node in yaml.compose_all(text, yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DataError(pasted.at(mark.line + 1) if mark else whole, _complaint(error, mark, pasted.text)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DataError(pasted.at(line), f"is no text that YAML allows: {error.reason}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(whole, f"is not valid YAML: {(str(error) or type(error).__name__).splitlines()[0]}") from None


def _complaint(error: yaml.MarkedYAMLError, mark: Any, text: str) -> str:
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if TEMPLATE in text and (TEMPLATE in line or "{{-" in text or "{{ " in text):
        return RENDER
    if "\t" in line[:mark.column + 1 if mark else None]:
        return "has a tab, and YAML is indented by spaces"
    if any(line.startswith("<<<<<<< ") for line in lines):
        return "has a conflict of a merge that is not resolved"
    return f"is not valid YAML: {error.problem or error.context}"


def _check(root: yaml.Node, pasted: Pasted) -> None:
    """Merge the tables that `<<` names, and raise DataError for keys that are there twice, loops and sheer size."""
    try:
        size = _size(root, {}, set(), pasted)
    except RecursionError:
        raise DataError(pasted.source or "the text", "is nested too deeply") from None
    if size > _MOST_VALUES:
        raise DataError(pasted.at(root.start_mark.line + 1), f"stands for {size:,} values once its aliases are"
                                                             f" followed; {_MOST_VALUES:,} are allowed")


def _size(node: yaml.Node, sizes: dict[int, int], path: set[int], pasted: Pasted) -> int:
    """How many values *node* stands for.  *sizes* has those that are known, *path* those that *node* is inside of."""
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in path:
        raise DataError(pasted.at(node.start_mark.line + 1), "has an alias of what it is inside of")
    path.add(id(node))
    inner = list(node.value) if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        inner = [value for _, value in node.value]
    size = 1 + sum(_size(item, sizes, path, pasted) for item in inner)
    if isinstance(node, yaml.MappingNode) and size <= _MOST_VALUES:
        _check_keys(node, pasted)
    path.discard(id(node))
    sizes[id(node)] = size
    return size


def _check_keys(node: yaml.MappingNode, pasted: Pasted) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        where = pasted.at(key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            raise DataError(where, RENDER if TEMPLATE in pasted.text else "has a key that is no text")
        if key.value in seen and key.value != "<<":
            raise DataError(where, f"the key {key.value!r} is there twice")
        seen.add(key.value)
    if "<<" in seen:
        _merge(node, pasted)


def _merge(node: yaml.MappingNode, pasted: Pasted) -> None:
    """Put the keys of what `<<` names into *node*, whose own keys come last and win."""
    try:
        yaml.SafeLoader("").flatten_mapping(node)
    except yaml.MarkedYAMLError as error:
        raise DataError(pasted.at(node.start_mark.line + 1), f"is not valid YAML: {error.problem}") from None
    node.value = [*{key.value: (key, value) for key, value in node.value}.values()]

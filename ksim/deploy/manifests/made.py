"""Entries made of others, as a chart makes pods of its values; what they are made of keeps its places."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from attrs import evolve

from ksim.deploy.texts.entries import Entry

__all__ = ["listed", "tabled", "text", "texts"]


def tabled(near: Entry, values: Mapping[str, Entry]) -> Entry:
    """A table of *values*; it stands where *near* does."""
    rows = [(_scalar(value, key), value.node) for key, value in values.items()]
    node = yaml.MappingNode("tag:yaml.org,2002:map", rows, near.node.start_mark)
    return evolve(near, node=node, origins=_origins(near, [*values.values()]))


def listed(near: Entry, values: Sequence[Entry]) -> Entry:
    """A list of *values*."""
    node = yaml.SequenceNode("tag:yaml.org,2002:seq", [value.node for value in values], near.node.start_mark)
    return evolve(near, node=node, origins=_origins(near, values))


def _origins(near: Entry, values: Sequence[Entry]) -> Mapping[int, tuple[str, int]]:
    """Where the parts stand in the text."""
    inner = {place: origin for value in values for place, origin in value.origins.items()}
    return {**near.origins, **inner, **{id(value.node): (value.key, value.line) for value in values}}


def text(near: Entry, content: str) -> Entry:
    """A text that stands where *near* does."""
    return evolve(near, node=_scalar(near, content))


def texts(near: Entry, *contents: str) -> list[Entry]:
    return [text(near, content) for content in contents]


def _scalar(near: Entry, content: str) -> Any:
    return yaml.ScalarNode("tag:yaml.org,2002:str", content, near.node.start_mark)

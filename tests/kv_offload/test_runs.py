"""What holds for every run whose engines offload."""

from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.copied import Copied
from ksim.flow.events import Event, Failed, Prefilled, Released, Transferred
from ksim.flow.log import Log
from tests.kv_offload.runs import offloading, run
from tests.laws.happenings import facts, happenings
from tests.properties import examples


@given(data=st.data())
@examples(12)
def test_going_ahead_never_changes_anything(model, data):
    table = data.draw(offloading(model))
    skipped, stepped = run(table).log, run(table, skips=False).log
    assert sorted(map(repr, facts(skipped))) == sorted(map(repr, facts(stepped)))
    assert [number for event in told(skipped) for number in numbers(event)] == pytest.approx(
        [number for event in told(stepped) for number in numbers(event)], rel=1e-9)


def told(log: Log) -> list[Event]:
    more = [event for kind in (Transferred, Prefilled, Released, Failed, Copied) for event in log.of(kind)]
    return sorted([*happenings(log), *more], key=lambda event: (
        type(event).__name__, getattr(event, "engine", 0), getattr(event, "request_id", 0),
        getattr(event, "source", ""), event.time))


def numbers(event: Event) -> list[Any]:
    return [value for value in (getattr(event, field.name) for field in fields(type(event)))
            if isinstance(value, int | float)]

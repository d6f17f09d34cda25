"""Filters that Spark pushes down, as selections."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from sluicemq.pipeline.schema import EVENTS, Event
from sluicemq.pipeline.source.options import microseconds
from sluicemq.pipeline.source.selection import Selection


def apply_filter(selection: Selection, given: Filter) -> tuple[Selection, bool]:
    """The selection that is left, and whether it has no row that the filter refuses: if not, Spark
    has to look at each."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if column not in EVENTS.names:
        return selection, False
    if isinstance(given, IsNotNull):
        return selection, not EVENTS.field(column).nullable
    if isinstance(given, EqualTo):
        return _among(selection, column, (given.value,))
    if isinstance(given, In):
        return _among(selection, column, tuple(given.value))
    if isinstance(given, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return _bounded(selection, column, given)
    return selection, False


def _among(selection: Selection, column: str, values: tuple[object, ...]) -> tuple[Selection, bool]:
    values = tuple(value for value in values if value is not None)
    if column == "destination" and all(isinstance(value, str) for value in values):
        names = frozenset(str(value) for value in values)
        if selection.names is not None:
            names &= selection.names
        return replace(selection, names=names), True
    if column == "event" and all(isinstance(value, str) for value in values):
        wanted = frozenset(event for event in Event if event in values)
        return replace(selection, events=selection.events & wanted), True
    numbers = [_number(column, value) for value in values]
    if column in ("sequence", "time", "message") and None not in numbers:
        known = [number for number in numbers if number is not None]
        if not known:
            return replace(selection, events=frozenset()), True
        if column == "message":
            # a list may hold it among others, so that Spark has to look
            if len(known) > 1 or selection.message is not None:
                return selection, False
            return replace(selection, message=known[0], low=max(selection.low, known[0])), False
        bounded = _between(selection, column, min(known), max(known) + 1)
        return bounded, len(known) == 1
    return selection, False


def _bounded(
    selection: Selection,
    column: str,
    given: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual,
) -> tuple[Selection, bool]:
    number = _number(column, given.value)
    if number is None or column not in ("sequence", "time"):
        return selection, False
    if isinstance(given, GreaterThan):
        return _between(selection, column, number + 1, None), True
    if isinstance(given, GreaterThanOrEqual):
        return _between(selection, column, number, None), True
    if isinstance(given, LessThan):
        return _between(selection, column, None, number), True
    return _between(selection, column, None, number + 1), True


def _between(selection: Selection, column: str, low: int | None, high: int | None) -> Selection:
    if column == "sequence":
        return replace(
            selection,
            low=selection.low if low is None else max(selection.low, low),
            high=selection.high if high is None else min(selection.high, high),
        )
    return replace(
        selection,
        since=selection.since if low is None else max(selection.since, low),
        until=selection.until if high is None else min(selection.until, high),
    )


def _number(column: str, value: object) -> int | None:
    if column == "time":
        if isinstance(value, datetime) and value.tzinfo is not None:
            return microseconds(value)
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None

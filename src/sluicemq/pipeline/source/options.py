"""Options of a read: their names, defaults and syntax, which of them exclude each other, and the
columns of its rows (docs/pipeline/source.md).

Options that Spark's Kafka source has are written as there, and mean the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.clients.http import HttpTarget, target
from sluicemq.model.access import is_pattern, matcher
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.options import (
    CONNECTION,
    MAX_NUMBER,
    OPTIONS_NOT_PASSED,
    OptionSpec,
    choice,
    from_json,
    own_options,
    parse_values,
    positive,
)
from sluicemq.pipeline.schema import EPOCH, EVENTS, HEADERS, KAFKA, Event

_DIGITS: Final = re.compile(r"-?\d+")

EARLIEST: Final = -2
LATEST: Final = -1
_POSITION_NAMES: Final = {"earliest": EARLIEST, "latest": LATEST}
"""Positions that are no sequence numbers, as Kafka writes them in JSON, and their names."""
PARTITION: Final = 0
"""The only partition of a destination."""

_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_KAFKA_ONLY: Final = frozenset(
    {
        "groupidprefix",
        "startingoffsetsbytimestampstrategy",
        "maxrecordsperpartition",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "kafkaconsumer.polltimeoutms",
    }
)


class Timestamp(NamedTuple):
    """Time in µs since 1970, as the position of the first event with this time or a later one."""

    microseconds: int


Position = int | Timestamp
"""EARLIEST, LATEST, a sequence number or a time."""
Positions = Position | Mapping[str, Position]
"""Position of all destinations, or of each."""
Destinations = tuple[re.Pattern[str], ...] | frozenset[str]
"""Patterns, of which one matches the whole name, or names; empty = all destinations. A topic is
`topic:NAME`."""

log = logging.getLogger("sluicemq.pipeline.source")


class Shape(StrEnum):
    """Columns of a read: those of schema.EVENTS, or of Spark's Kafka source."""

    EVENTS = "events"
    KAFKA = "kafka"


_COLUMNS: Final = {Shape.EVENTS: EVENTS, Shape.KAFKA: KAFKA}
"""All columns of each shape."""
_OF_HEADERS: Final = frozenset((*HEADERS.names, "headers"))
"""Columns that a read has only with `include_headers`, or if they are named."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of a read (docs/pipeline/source.md). OPTIONS has their names in Spark.

    path, target             location of the journal: one of them is set
    start                    None = earliest for a batch, latest for a stream
    end                      exclusive; None = latest
    min_offsets_per_trigger, max_offsets_per_trigger, max_bytes_per_trigger, min_partitions
                             0 = no limit
    columns                  () = all
    slot_limit_bytes         None = the broker's default
    """

    path: Path | None = None
    target: HttpTarget | None = None
    shape: Shape = Shape.EVENTS
    destinations: Destinations = ()
    events: tuple[Event, ...] = (Event.PUBLISHED,)
    start: Positions | None = None
    end: Positions | None = None
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 900_000
    max_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] = ()
    slot: str = ""
    slot_limit_bytes: int | None = None


# --- values -----------------------------------------------------------------------------------

_Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_NOT_EMPTY: Final = msgspec.Meta(min_length=1)


class _CheckpointOffset(msgspec.Struct):
    """Offset of a stream, of which only the sequence number counts."""

    sequence: _Sequence


class _Partitions(msgspec.Struct, forbid_unknown_fields=True):
    """Number for the only partition of a destination."""

    number: Annotated[int, msgspec.Meta(ge=EARLIEST, le=MAX_NUMBER)] = msgspec.field(
        name=str(PARTITION)
    )


def _path(text: str) -> Path | None:
    """Return a path, also for a file: URL; None if the text is empty. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if "://" in text:
        raise ValueError(f"{text} is not a local path; give a broker's address as the option url")
    return Path(text) if text else None


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _non_empty_list(text: str, item_name: str) -> tuple[str, ...]:
    """Return the names in a list that has one at least. Raises ValueError."""
    names = _list(text)
    if not names:
        raise ValueError(f"it has no {item_name}")
    return names


def _boolean(text: str) -> Any:
    return from_json(text.lower(), bool, "neither true nor false")


def _globs(text: str) -> tuple[re.Pattern[str], ...]:
    patterns = _non_empty_list(text, "destination, such as orders,topic:n")
    for pattern in patterns:
        if not is_pattern(pattern.removeprefix("topic:")):
            raise ValueError(f"{pattern!r} is not a valid pattern")
    return tuple(map(matcher, patterns))


def _events(text: str) -> tuple[Event, ...]:
    names = _non_empty_list(text, "event, such as published,acknowledged")
    requested = {choice(name, (*Event, "*")) for name in names}
    return tuple(event for event in Event if event in requested or "*" in requested)


def _offsets(text: str) -> Positions:
    value = text.strip()
    if value.lower() in _POSITION_NAMES:
        return _POSITION_NAMES[value.lower()]
    with suppress(msgspec.MsgspecError):
        position = msgspec.json.decode(value, type=_Sequence | _CheckpointOffset)
        return position.sequence if isinstance(position, _CheckpointOffset) else position
    return _by_destination(
        value,
        "neither earliest, latest, a sequence number, JSON such as "
        '{"sequence": 1000}, nor JSON with destinations and offsets such as {"orders":{"0":1000}}. '
        "A destination has the partition 0 only; its offset must be a whole number, where -2 is "
        "earliest and -1 latest",
    )


def _timestamp(text: str) -> Timestamp:
    value = text.strip()
    if _DIGITS.fullmatch(value):
        return Timestamp(int(value) * 1000)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # exact, unlike `timestamp`
    return Timestamp((moment - EPOCH) // timedelta(microseconds=1))


def _destination_names(text: str) -> frozenset[str]:
    """Return the names in a list with commas. Raises ValueError."""
    names = _non_empty_list(text, "destination, such as orders,topic:n")
    for destination in names:
        if "*" in destination:
            raise ValueError(
                f"{destination!r} is a pattern, but here are names. Use "
                "destinations for such patterns, or subscribePattern for a regular expression"
            )
    return frozenset(names)


def _regular_expression(text: str) -> tuple[re.Pattern[str], ...]:
    """Return the regular expression. Raises ValueError."""
    if not text:
        raise ValueError("it is empty; .* matches all destinations")
    try:
        return (re.compile(text),)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None


def _assigned_destinations(text: str) -> frozenset[str]:
    """Return the destinations of `{"orders":[0]}`. Raises ValueError."""
    rule = (
        'not JSON such as {"orders":[0],"topic:news":[0]}. The partitions of each destination must '
        "be [0], because it has the partition 0 only"
    )
    return frozenset(from_json(text, Annotated[dict[str, tuple[Literal[0]]], _NOT_EMPTY], rule))


def _timestamps_by_destination(text: str) -> dict[str, Timestamp]:
    """Return the time of each destination. Raises ValueError."""
    milliseconds = _by_destination(
        text,
        "not JSON with destinations and milliseconds since 1970, such as "
        '{"orders":{"0":1767225600000}}. A destination has the partition 0 only; its timestamp '
        "must be a whole number",
    )
    return {destination: Timestamp(ms * 1000) for destination, ms in milliseconds.items()}


def _by_destination(text: str, rule: str) -> dict[str, int]:
    """Return the number of each destination. Raises ValueError."""
    partitions = from_json(text, Annotated[dict[str, _Partitions], _NOT_EMPTY], rule)
    return {destination: item.number for destination, item in partitions.items()}


def _duration_ms(text: str) -> int:
    """Return a duration such as `15m` in ms; without a unit it is in ms.

    Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(int(match[1]) * _UNITS_MS[match[2]])


def _advice(name: str) -> str:
    """Return the advice for an option, in lower case, that this source does not have."""
    if name == "kafka.bootstrap.servers":
        return (
            "the sluicemq source connects to a broker's HTTP address. Remove the option, and give "
            "the option url, such as http://localhost:7680"
        )
    if name.startswith("kafka.") or name in _KAFKA_ONLY:
        return "it belongs to Kafka and has no counterpart in the sluicemq source: remove it"
    return f"the sluicemq source has none of that name, but {', '.join(OPTION_NAMES)}"


# --- options ----------------------------------------------------------------------------------

READ: Final = "spark.read"
READ_STREAM: Final = "spark.readStream"

OPTIONS: Final = (
    OptionSpec("path", "path", _path),
    OptionSpec("shape", "shape", partial(choice, choices=Shape)),
    OptionSpec("destinations", "destinations", _globs),
    OptionSpec("subscribe", "destinations", _destination_names),
    OptionSpec("subscribePattern", "destinations", _regular_expression),
    OptionSpec("assign", "destinations", _assigned_destinations),
    OptionSpec("events", "events", _events),
    OptionSpec("startingOffsets", "start", _offsets),
    OptionSpec("endingOffsets", "end", _offsets, only=READ),
    OptionSpec("startingTimestamp", "start", _timestamp),
    OptionSpec("endingTimestamp", "end", _timestamp, only=READ),
    OptionSpec("startingOffsetsByTimestamp", "start", _timestamps_by_destination),
    OptionSpec("endingOffsetsByTimestamp", "end", _timestamps_by_destination, only=READ),
    OptionSpec("minOffsetsPerTrigger", "min_offsets_per_trigger", positive, only=READ_STREAM),
    OptionSpec("maxTriggerDelay", "max_trigger_delay_ms", _duration_ms, only=READ_STREAM),
    OptionSpec("maxOffsetsPerTrigger", "max_offsets_per_trigger", positive, only=READ_STREAM),
    OptionSpec("maxBytesPerTrigger", "max_bytes_per_trigger", positive, only=READ_STREAM),
    OptionSpec("minPartitions", "min_partitions", positive),
    OptionSpec("failOnDataLoss", "fail_on_data_loss", _boolean),
    OptionSpec("includeHeaders", "include_headers", _boolean),
    OptionSpec("columns", "columns", _list),
    OptionSpec("slot", "slot", str, only=READ_STREAM),
    OptionSpec("kafka.group.id", "slot", str, only=READ_STREAM),
    OptionSpec("slotLimitBytes", "slot_limit_bytes", positive, only=READ_STREAM),
)
"""All options but CONNECTION, in the order of the documentation."""

OPTION_NAMES: Final = ("path", *CONNECTION, *(option.name for option in OPTIONS[1:]))


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options that Spark passes. Raises ConfigurationError that names the option."""
    known = {name.lower() for name in OPTION_NAMES}
    texts = own_options(given, known)
    for name in texts:
        if name not in known:
            raise ConfigurationError(f"option {name!r}: {_advice(name)}")
    if bool(texts.get("path")) == bool(texts.get("url")):
        raise ConfigurationError(
            "options path and url: give one of them. path is a broker's data directory on this "
            f"machine, url its HTTP address, such as http://localhost:7680. {OPTIONS_NOT_PASSED}"
        )
    values = parse_values(texts, OPTIONS)
    subscribed = values.get("destinations", ())
    for option in OPTIONS if isinstance(subscribed, frozenset) else ():
        value = values.get(option.field)
        if option.name.lower() in texts and isinstance(value, Mapping):
            _check_destinations(option.name, value.keys(), subscribed)
    options = SourceOptions(target=target(texts) if texts.get("url") else None, **values)
    _check(options)
    return options


def _check(options: SourceOptions) -> None:
    names = _COLUMNS[options.shape].names
    for column in options.columns:
        if column not in names:
            raise ConfigurationError(
                f"option columns: there is no column {column!r}, but {', '.join(names)}"
            )
    if options.shape is Shape.KAFKA and options.events != (Event.PUBLISHED,):
        raise ConfigurationError(
            "options shape and events: with the shape kafka, a row is a published message. Remove "
            "the option events, or read the other events with the shape events"
        )
    minimum, maximum = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if maximum and minimum > maximum:
        raise ConfigurationError(
            f"options minOffsetsPerTrigger and maxOffsetsPerTrigger: a micro-batch cannot have at "
            f"least {minimum} and at most {maximum} rows: lower minOffsetsPerTrigger"
        )


def _check_destinations(name: str, given: Set[str], subscribed: Set[str]) -> None:
    """Check that offsets by destination are those of the subscription.

    As in Kafka, they name every destination of `subscribe` or `assign`. A pattern may match
    destinations that do not exist yet, so there the others have the earliest or latest offset.
    """
    if missing := ", ".join(sorted(subscribed - given)):
        raise ConfigurationError(
            f"option {name}: it lacks {missing}, which the query subscribes to: give an "
            "offset for every destination"
        )
    if others := ", ".join(sorted(given - subscribed)):
        raise ConfigurationError(
            f"option {name}: it names {others}, which the query does not subscribe to: "
            "remove it, or subscribe to it"
        )


def check_batch(options: SourceOptions, given: Container[str]) -> None:
    """Check the options of `spark.read`. Raises ConfigurationError; logs ignored options.

    given   names of the options that the user gave, in lower case
    """
    _reject_offset("startingOffsets", options.start, "latest")
    _reject_offset("endingOffsets", options.end, "earliest")
    ignored = [
        f"option {option.name}"
        for option in OPTIONS
        if option.only == READ_STREAM and option.name.lower() in given
    ]
    if ignored:
        log.warning("Ignored in a batch: %s. These options are for streams.", " and ".join(ignored))


def _reject_offset(name: str, given: Positions | None, word: str) -> None:
    if _POSITION_NAMES[word] in (given.values() if isinstance(given, Mapping) else (given,)):
        raise ConfigurationError(
            f"option {name}: {word} leaves nothing to read in a batch. Give another position, or "
            "use spark.readStream"
        )


def check_stream(options: SourceOptions) -> None:
    """Check the options of `spark.readStream`. Raises ConfigurationError; logs ignored options."""
    if options.end is not None:
        names = " or ".join(option.name for option in OPTIONS if option.only == READ)
        raise ConfigurationError(
            f"a stream has no end: remove the option {names}. The trigger availableNow ends a "
            "query when it has read all existing records"
        )
    if options.slot_limit_bytes is not None and not options.slot:
        raise ConfigurationError(
            "option slotLimitBytes: it is the limit of a slot: give the option slot, too"
        )
    if (
        options.max_trigger_delay_ms != SourceOptions.max_trigger_delay_ms
        and not options.min_offsets_per_trigger
    ):
        log.warning("Ignored: maxTriggerDelay has no effect without minOffsetsPerTrigger.")


# --- columns -----------------------------------------------------------------------------------


def requested_columns(options: SourceOptions) -> StructType:
    """Return the schema of a read, in the column order of `EVENTS` or `KAFKA`.

    The option `columns` selects the columns; without it, `include_headers` adds the headers.
    """
    columns = _COLUMNS[options.shape]
    names = set(options.columns or columns.names)
    if not options.columns and not options.include_headers:
        names -= _OF_HEADERS
    return from_arrow_schema(pa.schema([field for field in columns if field.name in names]))


def arrow_columns(schema: StructType, shape: Shape = Shape.EVENTS) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with.

    Raises ConfigurationError for an unknown column, one of another type, and if there is none: rows
    without columns could not be counted.
    """
    if not schema.fields:
        raise ConfigurationError(
            "the schema of the read has no columns: name one, such as sequence, to count rows"
        )
    columns = _COLUMNS[shape]
    types = {field.name: field.dataType for field in from_arrow_schema(columns)}
    for column in schema:
        name = column.name
        if name not in types:
            raise ConfigurationError(f"there is no column {name!r}, but {', '.join(columns.names)}")
        if column.dataType.simpleString() != types[name].simpleString():
            raise ConfigurationError(
                f"the column {name} is of type {types[name].simpleString()}, not "
                f"{column.dataType.simpleString()}: cast it after reading"
            )
    return to_arrow_schema(schema, timezone="UTC")

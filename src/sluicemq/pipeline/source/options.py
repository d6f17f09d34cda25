"""Options of a read: their names, defaults and syntax, and which of them exclude each other.

Options that Spark's Kafka source has are written as there, and mean the same. kafka_options.py
parses the ones whose values are in Kafka's syntax.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sluicemq.model.access import is_pattern
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.catalog import NOT_HANDED_ON, own_options
from sluicemq.pipeline.schema import EVENTS, KAFKA, Event
from sluicemq.pipeline.source.kafka_options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    assigned,
    duration_ms,
    is_offset,
    is_offset_json,
    no_counterpart,
    offsets_by_destination,
    regular_expression,
    subscribed,
    timestamps_by_destination,
)

_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no")
_DIGITS: Final = re.compile(r"-?\d+")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Position = str | int | Mapping[str, int]
"""EARLIEST, LATEST, a sequence number, or a sequence number by destination, in which
EARLIEST_OFFSET and LATEST_OFFSET stand for EARLIEST and LATEST."""

log = logging.getLogger("sluicemq.pipeline.source")


class Shape(StrEnum):
    """Columns of a read.

    EVENTS  a row for each event, with the columns of schema.EVENTS
    KAFKA   a row for each published message, with the columns of Spark's Kafka source
    """

    EVENTS = "events"
    KAFKA = "kafka"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of a read. OPTIONS has their names in Spark.

    path, url                location of the journal; exactly one of them. `path` is the broker's
                             data directory or its journal; `url` is http(s)://host:7680
    user, password, token    credentials for `url`, which may contain them instead; never printed
    shape                    columns of the rows
    destinations             globs (`*` = any run of characters); `topic:NAME` selects topics;
                             () = all
    subscribe                names of destinations, instead of `destinations`
    subscribe_pattern        regular expression of such names; "" = none
    events                   event types, see schema.Event
    starting_offsets         first record; None = earliest for a batch, latest for a stream
    ending_offsets           exclusive end of a batch
    starting_timestamp       µs; a batch excludes earlier events, a stream starts at the first
                             record with this time or a later one
    ending_timestamp         exclusive end of a batch, in µs
    starting_timestamps, ending_timestamps   µs by destination; a destination starts or ends at the
                             first record of the journal with this time or a later one
    min_offsets_per_trigger  a micro-batch waits for this number of rows; 0 = it does not wait
    max_trigger_delay_ms     longest wait for `min_offsets_per_trigger`
    max_offsets_per_trigger  rows of one micro-batch; 0 = no limit
    max_bytes_per_trigger    bytes of records of one micro-batch; 0 = no limit
    min_partitions           minimum number of tasks, if there are that many records. By default
                             the number of processors of the driver's machine: on a cluster, set
                             it to the number of the executors' cores
    fail_on_data_loss        removed or damaged records raise an error instead of a warning
    include_headers          include the columns of schema.HEADERS, or `headers` of schema.KAFKA
    columns                  columns to read; () = all
    slot                     name of the stream's retention slot; "" = none
    slot_limit_bytes         maximum bytes that the slot retains; None = the broker's default
    """

    path: str = ""
    url: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    shape: Shape = Shape.EVENTS
    destinations: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str = ""
    events: tuple[Event, ...] = (Event.PUBLISHED,)
    starting_offsets: Position | None = None
    ending_offsets: Position | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_timestamps: Mapping[str, int] | None = None
    ending_timestamps: Mapping[str, int] | None = None
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


def _text(name: str, text: str) -> str:
    return text


def _list(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _boolean(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ConfigurationError(f"option {name}: {text!r} is neither true nor false")


def _positive(name: str, text: str) -> int:
    if _DIGITS.fullmatch(text.strip()) and int(text) > 0:
        return int(text)
    raise ConfigurationError(f"option {name}: {text!r} is no number above 0")


def _shape(name: str, text: str) -> Shape:
    lowered = text.strip().lower()
    if lowered in list(Shape):
        return Shape(lowered)
    raise ConfigurationError(f"option {name}: {text!r} is none; there are {', '.join(Shape)}")


def _globs(name: str, text: str) -> tuple[str, ...]:
    patterns = _list(name, text)
    for pattern in patterns:
        if not is_pattern(pattern.removeprefix("topic:")):
            raise ConfigurationError(f"option {name}: {pattern!r} is no pattern")
    return patterns


def _events(name: str, text: str) -> tuple[Event, ...]:
    names = _list(name, text.lower())
    if "*" in names:
        return tuple(Event)
    for event in names:
        if event not in list(Event):
            raise ConfigurationError(
                f"option {name}: {event!r} is none; there are {', '.join(Event)}, or * for all"
            )
    return tuple(event for event in Event if event in names)


def _position(name: str, text: str) -> Position:
    stripped = text.strip()
    if stripped.lower() in (EARLIEST, LATEST):
        return stripped.lower()
    try:
        value = json.loads(stripped)
    except ValueError:
        value = None
    if is_offset_json(value):
        return offsets_by_destination(name, value)
    if isinstance(value, dict):
        value = value.get("sequence")
    if is_offset(value) and value >= 0:
        return int(value)
    raise ConfigurationError(
        f"option {name}: {text!r} is neither earliest, latest, a sequence number, JSON such as "
        '{"sequence": 1000}, nor JSON with destinations and offsets such as {"orders":{"0":1000}}'
    )


def _timestamp(name: str, text: str) -> int:
    stripped = text.strip()
    if _DIGITS.fullmatch(stripped):
        return int(stripped) * 1000
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise ConfigurationError(
            f"option {name}: {text!r} is neither milliseconds since 1970 nor a time "
            "such as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return microseconds(moment)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Return the exact number of microseconds since 1970; `moment` has a time zone."""
    span = moment - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


# --- options ----------------------------------------------------------------------------------


class OptionSpec(NamedTuple):
    """One option.

    name     its name in Spark; case does not matter
    field    field of SourceOptions
    parse    returns the value for the option's name and text; raises ConfigurationError
    default  default as it would be written; "" = none
    """

    name: str
    field: str
    parse: Callable[[str, str], object]
    default: str = ""


OPTIONS: Final = (
    OptionSpec("path", "path", _text),
    OptionSpec("url", "url", _text),
    OptionSpec("user", "user", _text),
    OptionSpec("password", "password", _text),
    OptionSpec("token", "token", _text),
    OptionSpec("shape", "shape", _shape, "events"),
    OptionSpec("destinations", "destinations", _globs),
    OptionSpec("subscribe", "subscribe", subscribed),
    OptionSpec("subscribePattern", "subscribe_pattern", regular_expression),
    OptionSpec("assign", "subscribe", assigned),
    OptionSpec("events", "events", _events, "published"),
    OptionSpec("startingOffsets", "starting_offsets", _position),
    OptionSpec("endingOffsets", "ending_offsets", _position, "latest"),
    OptionSpec("startingTimestamp", "starting_timestamp", _timestamp),
    OptionSpec("endingTimestamp", "ending_timestamp", _timestamp),
    OptionSpec("startingOffsetsByTimestamp", "starting_timestamps", timestamps_by_destination),
    OptionSpec("endingOffsetsByTimestamp", "ending_timestamps", timestamps_by_destination),
    OptionSpec("minOffsetsPerTrigger", "min_offsets_per_trigger", _positive),
    OptionSpec("maxTriggerDelay", "max_trigger_delay_ms", duration_ms, "15m"),
    OptionSpec("maxOffsetsPerTrigger", "max_offsets_per_trigger", _positive),
    OptionSpec("maxBytesPerTrigger", "max_bytes_per_trigger", _positive),
    OptionSpec("minPartitions", "min_partitions", _positive),
    OptionSpec("failOnDataLoss", "fail_on_data_loss", _boolean, "true"),
    OptionSpec("includeHeaders", "include_headers", _boolean, "false"),
    OptionSpec("columns", "columns", _list),
    OptionSpec("slot", "slot", _text),
    OptionSpec("kafka.group.id", "slot", _text),
    OptionSpec("slotLimitBytes", "slot_limit_bytes", _positive),
)
"""All options, in the order of the documentation."""

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_EXCLUSIVE: Final = (
    ("destinations", "subscribe", "subscribePattern", "assign"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    ("slot", "kafka.group.id"),
)
"""Options of which a read has at most one."""


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options that Spark passes. Raises ConfigurationError that names the option."""
    texts = own_options(given, _BY_NAME)
    for name in texts:
        if name not in _BY_NAME:
            known = ", ".join(option.name for option in OPTIONS)
            reason = no_counterpart(name)
            raise ConfigurationError(
                f"option {name!r}: {reason}"
                if reason
                else f"option {name!r}: the sluicemq source has none of that name, but {known}"
            )
    if bool(texts.get("path")) == bool(texts.get("url")):
        raise ConfigurationError(
            "options path and url: give one of them. path is a broker's data directory on this "
            f"machine, url its HTTP address, such as http://localhost:7680. {NOT_HANDED_ON}"
        )
    for group in _EXCLUSIVE:
        both = [name for name in group if name.lower() in texts]
        if len(both) > 1:
            raise ConfigurationError(
                f"options {' and '.join(both)}: they contradict each other, give one of them"
            )
    values: dict[str, Any] = {
        option.field: option.parse(option.name, texts[name])
        for name, option in _BY_NAME.items()
        if name in texts
    }
    options = SourceOptions(**values)
    _check_shape(options)
    _check_limits(options)
    _check_destinations(options)
    return options


def _check_shape(options: SourceOptions) -> None:
    kafka = options.shape is Shape.KAFKA
    names = KAFKA.names if kafka else EVENTS.names
    for column in options.columns:
        if column not in names:
            raise ConfigurationError(
                f"option columns: there is no column {column!r}, but {', '.join(names)}"
            )
    if kafka and options.events != (Event.PUBLISHED,):
        raise ConfigurationError(
            "options shape and events: with the shape kafka, a row is a published message. Remove "
            "the option events, or read the other events with the shape events"
        )


def _check_limits(options: SourceOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if most and least > most:
        raise ConfigurationError(
            f"options minOffsetsPerTrigger and maxOffsetsPerTrigger: a micro-batch cannot have at "
            f"least {least} and at most {most} rows: lower minOffsetsPerTrigger"
        )


def _check_destinations(options: SourceOptions) -> None:
    """Check that offsets by destination are those of the subscription.

    As in Kafka, they name every destination of `subscribe` or `assign`. A pattern may match
    destinations that do not exist yet, so there the others have the earliest or latest offset.
    """
    for name in ("starting_offsets", "ending_offsets", "starting_timestamps", "ending_timestamps"):
        by_destination = getattr(options, name)
        if not isinstance(by_destination, Mapping) or not options.subscribe:
            continue
        written = next(option.name for option in OPTIONS if option.field == name)
        missing = _named(set(options.subscribe) - by_destination.keys())
        if missing:
            raise ConfigurationError(
                f"option {written}: it lacks {missing}, which the query subscribes to: give an "
                "offset for every destination"
            )
        others = _named(by_destination.keys() - set(options.subscribe))
        if others:
            raise ConfigurationError(
                f"option {written}: it names {others}, which the query does not subscribe to: "
                "remove it, or subscribe to it"
            )


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def check_batch(options: SourceOptions) -> None:
    """Check the options of `spark.read`. Raises ConfigurationError; logs ignored options."""
    _reject_offset("startingOffsets", options.starting_offsets, LATEST, LATEST_OFFSET)
    _reject_offset("endingOffsets", options.ending_offsets, EARLIEST, EARLIEST_OFFSET)
    ignored = [
        name
        for name, value in (
            ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
            ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
            ("maxBytesPerTrigger", options.max_bytes_per_trigger),
            ("slot", options.slot),
        )
        if value
    ]
    if ignored:
        log.warning(
            "Ignored in a batch: %s. These options are for streams.",
            " and ".join(f"option {name}" for name in ignored),
        )


def _reject_offset(name: str, given: Position | None, word: str, number: int) -> None:
    values = given.values() if isinstance(given, Mapping) else (given,)
    if word in values or (isinstance(given, Mapping) and number in values):
        raise ConfigurationError(
            f"option {name}: {word} leaves nothing to read in a batch. Give another position, or "
            "use spark.readStream"
        )


def check_stream(options: SourceOptions) -> None:
    """Check the options of `spark.readStream`. Raises ConfigurationError."""
    for name, value in (
        ("endingOffsets", options.ending_offsets),
        ("endingTimestamp", options.ending_timestamp),
        ("endingOffsetsByTimestamp", options.ending_timestamps),
    ):
        if value is not None:
            raise ConfigurationError(
                f"option {name}: a stream has no end. Remove the option; the trigger availableNow "
                "ends a query when it has read what exists"
            )

"""Options of a read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Final

from sluicemq.model.access import is_pattern
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.catalog import NOT_HANDED_ON, own_options
from sluicemq.pipeline.schema import EVENTS, Event

_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no")
_DIGITS: Final = re.compile(r"-?\d+")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Position = str | int
"""EARLIEST, LATEST or a sequence number."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of a read. Spark's option names are these without `_`; case does not matter.

    path, url                location of the journal; exactly one of them. `path` is the broker's
                             data directory or its journal; `url` is http(s)://host:7680
    user, password, token    credentials for `url`, which may contain them instead; never printed
    destinations             globs (`*` = any run of characters); `topic:NAME` selects topics;
                             () = all
    events                   event types, see schema.Event
    starting_offsets         first record; None = earliest for a batch, latest for a stream
    ending_offsets           exclusive end of a batch
    starting_timestamp       µs; a batch excludes earlier events, a stream starts at the first
                             record with this time or a later one
    ending_timestamp         exclusive end of a batch, in µs
    max_offsets_per_trigger  rows of one micro-batch; 0 = no limit
    max_bytes_per_trigger    bytes of records of one micro-batch; 0 = no limit
    min_partitions           minimum number of tasks, if there are that many records. By default
                             the number of processors of the driver's machine: on a cluster, set
                             it to the number of the executors' cores
    fail_on_data_loss        removed or damaged records raise an error instead of a warning
    include_headers          include the columns of schema.HEADERS
    columns                  columns to read; () = all
    slot                     name of the stream's retention slot; "" = none
    slot_limit_bytes         maximum bytes that the slot retains; None = the broker's default
    """

    path: str = ""
    url: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    destinations: tuple[str, ...] = ()
    events: tuple[Event, ...] = (Event.PUBLISHED,)
    starting_offsets: Position | None = None
    ending_offsets: Position | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    max_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] = ()
    slot: str = ""
    slot_limit_bytes: int | None = None


_NAMES: Final = {option.name.replace("_", ""): option.name for option in fields(SourceOptions)}
_SPELLED: Final = (
    "path, url, user, password, token, destinations, events, startingOffsets, endingOffsets, "
    "startingTimestamp, endingTimestamp, maxOffsetsPerTrigger, maxBytesPerTrigger, minPartitions, "
    "failOnDataLoss, includeHeaders, columns, slot, slotLimitBytes"
)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options that Spark passes. Raises ConfigurationError that names the option."""
    texts: dict[str, str] = {}
    for name, text in own_options(given, _NAMES).items():
        known = _NAMES.get(name)
        if known is None:
            raise ConfigurationError(
                f"option {name!r}: the sluicemq source has none of that name, but {_SPELLED}"
            )
        texts[known] = text
    if bool(texts.get("path")) == bool(texts.get("url")):
        raise ConfigurationError(
            "options path and url: give one of them. path is a broker's data directory on this "
            f"machine, url its HTTP address, such as http://localhost:7680. {NOT_HANDED_ON}"
        )
    values: dict[str, object] = {}
    for name in ("path", "url", "user", "password", "token", "slot"):
        if name in texts:
            values[name] = texts[name]
    for name in ("destinations", "columns"):
        if name in texts:
            values[name] = _list(texts[name])
    for name in ("starting_offsets", "ending_offsets"):
        if name in texts:
            values[name] = _position(name, texts[name])
    for name in ("starting_timestamp", "ending_timestamp"):
        if name in texts:
            values[name] = _timestamp(name, texts[name])
    for name in (
        "max_offsets_per_trigger",
        "max_bytes_per_trigger",
        "min_partitions",
        "slot_limit_bytes",
    ):
        if name in texts:
            values[name] = _positive(name, texts[name])
    for name in ("fail_on_data_loss", "include_headers"):
        if name in texts:
            values[name] = _boolean(name, texts[name])
    if "events" in texts:
        values["events"] = _events(texts["events"])
    options = SourceOptions(**values)  # type: ignore[arg-type]
    for pattern in options.destinations:
        if not is_pattern(pattern.removeprefix("topic:")):
            raise ConfigurationError(f"option destinations: {pattern!r} is no pattern")
    for column in options.columns:
        if column not in EVENTS.names:
            raise ConfigurationError(
                f"option columns: there is no column {column!r}, but {', '.join(EVENTS.names)}"
            )
    return options


def _spelled(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _boolean(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    raise ConfigurationError(f"option {_spelled(name)}: {text!r} is neither true nor false")


def _positive(name: str, text: str) -> int:
    if _DIGITS.fullmatch(text.strip()) and int(text) > 0:
        return int(text)
    raise ConfigurationError(f"option {_spelled(name)}: {text!r} is no number above 0")


def _events(text: str) -> tuple[Event, ...]:
    names = _list(text.lower())
    if "*" in names:
        return tuple(Event)
    for name in names:
        if name not in list(Event):
            raise ConfigurationError(
                f"option events: {name!r} is none; there are {', '.join(Event)}, or * for all"
            )
    return tuple(event for event in Event if event in names)


def _position(name: str, text: str) -> Position:
    stripped = text.strip()
    if stripped.lower() in (EARLIEST, LATEST):
        return stripped.lower()
    try:
        number = json.loads(stripped)
    except ValueError:
        number = None
    if isinstance(number, dict):
        number = number.get("sequence")
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    raise ConfigurationError(
        f"option {_spelled(name)}: {text!r} is neither earliest, latest, a sequence number "
        'nor JSON such as {"sequence": 1000}'
    )


def _timestamp(name: str, text: str) -> int:
    stripped = text.strip()
    if _DIGITS.fullmatch(stripped):
        return int(stripped) * 1000
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise ConfigurationError(
            f"option {_spelled(name)}: {text!r} is neither milliseconds since 1970 nor a time "
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

"""Values of options in the syntax of Spark's Kafka source.

A destination is written as in all options: a queue by its name, a topic as `topic:NAME`. It is a
Kafka topic with the single partition 0, and the offset of a message is its sequence number.

    subscribe                    orders,topic:news
    assign                       {"orders":[0],"topic:news":[0]}
    startingOffsets              {"orders":{"0":1000},"topic:news":{"0":-2}}
    startingOffsetsByTimestamp   {"orders":{"0":1767225600000}}
    maxTriggerDelay              15m

In offsets, -2 is earliest and -1 latest; timestamps are ms since 1970.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeGuard

from sluicemq.model.errors import ConfigurationError

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
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


def no_counterpart(name: str) -> str:
    """Return what to do about an option of Spark's Kafka source that this source does not have.

    Return "" for other names. `name` is in lower case.
    """
    if name == "kafka.bootstrap.servers":
        return (
            "the sluicemq source connects to a broker's HTTP address. Remove the option, and give "
            "the option url, such as http://localhost:7680"
        )
    if name.startswith("kafka.") or name in _KAFKA_ONLY:
        return "it belongs to Kafka and has no counterpart in the sluicemq source: remove it"
    return ""


def subscribed(name: str, text: str) -> tuple[str, ...]:
    """Return the names in a list with commas. Raises ConfigurationError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ConfigurationError(f"option {name}: it names no destination, such as orders,topic:n")
    for destination in names:
        if "*" in destination:
            raise ConfigurationError(
                f"option {name}: {destination!r} is a pattern, but here are names. Use "
                "destinations for such patterns, or subscribePattern for a regular expression"
            )
    return names


def regular_expression(name: str, text: str) -> str:
    """Return the regular expression. Raises ConfigurationError."""
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigurationError(
            f"option {name}: {text!r} is no regular expression: {error}"
        ) from None
    if not text:
        raise ConfigurationError(f"option {name}: it is empty; .* matches all destinations")
    return text


def assigned(name: str, text: str) -> tuple[str, ...]:
    """Return the destinations of `{"orders":[0]}`. Raises ConfigurationError."""
    value = _json(name, text)
    if not isinstance(value, dict) or not value:
        raise ConfigurationError(
            f'option {name}: {text!r} is no JSON such as {{"orders":[0],"topic:news":[0]}}'
        )
    for destination, partitions in value.items():
        if partitions != [PARTITION] or isinstance(partitions[0], bool):
            raise ConfigurationError(
                f"option {name}: the partitions of {destination} must be [0], because a "
                f"destination has the partition 0 only, not {json.dumps(partitions)}"
            )
    return tuple(value)


def is_offset(value: object) -> TypeGuard[int]:
    """Return True for an integer; JSON's true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_offset_json(value: object) -> TypeGuard[dict[str, Any]]:
    """Return True if the value may be offsets by destination: `{"orders":{"0":1000}}`."""
    return isinstance(value, dict) and any(isinstance(item, dict) for item in value.values())


def offsets_by_destination(name: str, value: dict[str, Any]) -> dict[str, int]:
    """Return the offset of each destination. Raises ConfigurationError."""
    offsets = _by_destination(name, value, "offset")
    for destination, offset in offsets.items():
        if offset < EARLIEST_OFFSET:
            raise ConfigurationError(
                f"option {name}: the offset {offset} of {destination} is none: give a sequence "
                "number, -2 for earliest, or -1 for latest"
            )
    return offsets


def timestamps_by_destination(name: str, text: str) -> dict[str, int]:
    """Return the time of each destination, in µs. Raises ConfigurationError."""
    value = _json(name, text)
    if not is_offset_json(value):
        raise ConfigurationError(
            f"option {name}: {text!r} is no JSON with destinations and milliseconds since 1970, "
            'such as {"orders":{"0":1767225600000}}'
        )
    return {to: ms * 1000 for to, ms in _by_destination(name, value, "timestamp").items()}


def _by_destination(name: str, value: dict[str, Any], what: str) -> dict[str, int]:
    numbers = {}
    for destination, partitions in value.items():
        if not isinstance(partitions, dict) or list(partitions) != [str(PARTITION)]:
            raise ConfigurationError(
                f"option {name}: give {destination} one {what} for the partition 0, which is its "
                f'only one: {{"{destination}":{{"0":...}}}}, not {json.dumps(partitions)}'
            )
        number = partitions[str(PARTITION)]
        if not is_offset(number):
            raise ConfigurationError(
                f"option {name}: the {what} of {destination} must be a whole number, not "
                f"{json.dumps(number)}"
            )
        numbers[destination] = number
    return numbers


def duration_ms(name: str, text: str) -> int:
    """Return a duration such as `15m` in ms; without a unit it is in ms.

    Raises ConfigurationError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ConfigurationError(
            f"option {name}: {text!r} is no duration such as 500ms, 30s, 15m, 2h or 1d"
        )
    return int(int(found[1]) * _UNITS_MS[found[2]])


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"option {name}: {text!r} is no JSON: {error}") from None

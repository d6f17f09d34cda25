"""Columns that a row may have, and their types.

    destination       string     required unless the option `destination` names one for all rows
    destination_kind  string     "queue" (also for null) or "topic"
    body              string, binary or map<string,string>; required; null = no body
    body_kind         string     null or no column: text, bytes or map, by the type of `body`
    properties        map<string,string>
    property_types    map<string,string>   types of the properties that are not text
    priority          integer    0-9; null = 4
    ttl               integer    time to live in ms; null or 0 = no limit
    expiration        timestamp  time of expiration; null = never
    deliver_at        timestamp  earliest delivery time; null = at once
    message_id        string     message id chosen by the publisher
    correlation_id    string
    reply_to          string     destination for replies; a topic is "topic:NAME"
    type              string     JMSType or similar
    durability        string     "none", "lazy" or "sync"; null = "sync"

A column of type void is ignored.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from sluicemq.model.errors import ConfigurationError

_TEXT: Final = (StringType, CharType, VarcharType)
_INTEGER: Final = (ByteType, ShortType, IntegerType, LongType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, _TEXT)


def _is_integer(kind: DataType) -> bool:
    return isinstance(kind, _INTEGER)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _is_texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


def _is_body(kind: DataType) -> bool:
    return isinstance(kind, BinaryType) or _is_text(kind) or _is_texts(kind)


_TEXTS: Final = "map<string,string>"
COLUMNS: Final = {
    "destination": ("string", _is_text),
    "destination_kind": ("string", _is_text),
    "body": (f"string, binary or {_TEXTS}", _is_body),
    "body_kind": ("string", _is_text),
    "properties": (_TEXTS, _is_texts),
    "property_types": (_TEXTS, _is_texts),
    "priority": ("an integer", _is_integer),
    "ttl": ("an integer (ms)", _is_integer),
    "expiration": ("timestamp", _is_time),
    "deliver_at": ("timestamp", _is_time),
    "message_id": ("string", _is_text),
    "correlation_id": ("string", _is_text),
    "reply_to": ("string", _is_text),
    "type": ("string", _is_text),
    "durability": ("string", _is_text),
}
"""Type of each column, as text for error messages, and its check."""

DEFAULT_SCHEMA: Final = (
    StructType()
    .add("destination", StringType())
    .add("destination_kind", StringType())
    .add("body", StringType())
    .add("body_kind", StringType())
    .add("properties", MapType(StringType(), StringType()))
    .add("property_types", MapType(StringType(), StringType()))
    .add("priority", IntegerType())
    .add("ttl", LongType())
    .add("expiration", TimestampType())
    .add("deliver_at", TimestampType())
    .add("message_id", StringType())
    .add("correlation_id", StringType())
    .add("reply_to", StringType())
    .add("type", StringType())
    .add("durability", StringType())
)
"""Default columns of a view or table created without columns; bodies are text."""


def places(schema: StructType, destination: str) -> dict[str, int]:
    """Return the index of each column in a batch, by its name in COLUMNS.

    `destination` is the option of that name, or "". Raises ConfigurationError if the schema does
    not fit.
    """
    found: dict[str, int] = {}
    wrong: list[str] = []
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in COLUMNS:
            wrong.append(f"there is no column {field.name}")
            continue
        expected, fits = COLUMNS[name]
        if name in found:
            wrong.append(f"there are two columns {name}")
        elif not isinstance(field.dataType, NullType) and not fits(field.dataType):
            wrong.append(f"{name} is {expected}, and not {field.dataType.simpleString()}")
        found[name] = place
    if "body" not in found:
        wrong.append("there has to be a column body")
    if "destination" not in found and not destination:
        wrong.append("there has to be a column destination, or the option destination")
    if "property_types" in found and "properties" not in found:
        wrong.append("property_types needs a column properties, which is missing")
    if wrong:
        raise ConfigurationError(
            f"these rows are no messages: {'; '.join(wrong)}. Messages have the columns "
            + ", ".join(COLUMNS)
        )
    return {
        name: place
        for name, place in found.items()
        if not isinstance(schema.fields[place].dataType, NullType)
    }

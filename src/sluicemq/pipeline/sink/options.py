"""Options of a write, and the columns that a row may have: docs/pipeline/sink.md describes both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from pyspark.sql import types as t

from sluicemq.clients.http import RETRY_TIMEOUT, HttpTarget, target
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.catalog import OPTIONS_NOT_PASSED, own_options

DEAD_LETTERS: Final = "sluicemq.sink.dlq"
"""Default dead-letter queue (option deadLetterQueue)."""
PART_BYTES: Final = 16 * 1024 * 1024
PART_ROWS: Final = 16_384

_CONNECTION_OPTIONS: Final = ("url", "user", "password", "token")
"""Options that a read has, too."""
_OPTION_NAMES: Final = {
    name.lower(): name
    for name in (
        *_CONNECTION_OPTIONS,
        "destination",
        "badRows",
        "deadLetterQueue",
        "transactionBytes",
        "transactionRows",
        "writeId",
        "batchId",
        "retryTimeout",
    )
}
WRITE_ONLY: Final = frozenset(_OPTION_NAMES) - {*_CONNECTION_OPTIONS}
"""Options, in lower case, that identify a table or view as one for writing."""
_ADDED_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark adds; a path is that of `save(path)`."""
_NUMBER: Final = re.compile(r"[1-9]\d{0,9}\Z|0\Z", re.ASCII)
_WRITE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")

BAD_ROWS: Final = ("fail", "drop", "dead-letter")
"""Values of badRows: handling of rows that are not valid messages, by the broker."""


class SinkOptions(NamedTuple):
    """Options of a write, created on the driver and sent to the tasks.

    destination  destination of rows that have none, "" = required in each row; topic: it is a topic
    part_bytes, part_rows   limits of a transaction (transactionBytes, transactionRows)
    write_id     "" = none
    batch        index of the write within `write_id` (batchId)
    retry_timeout     seconds (retryTimeout)
    """

    target: HttpTarget
    destination: str = ""
    topic: bool = False
    bad_rows: str = BAD_ROWS[0]
    dead_letters: str = DEAD_LETTERS
    part_bytes: int = PART_BYTES
    part_rows: int = PART_ROWS
    write_id: str = ""
    batch: int = 0
    retry_timeout: float = RETRY_TIMEOUT


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes; case is ignored. Raises ConfigurationError."""
    options_by_name = own_options(options, _OPTION_NAMES)
    unknown = sorted(set(options_by_name) - set(_OPTION_NAMES) - _ADDED_BY_SPARK)
    if unknown:
        raise ConfigurationError(
            f"a write to sluicemq has no option {', '.join(unknown)}; "
            f"there are {', '.join(_OPTION_NAMES.values())}"
        )
    if "path" in options_by_name:
        raise ConfigurationError(
            "messages are written to a running broker: set the option url, and call save() "
            "without a path"
        )
    if "url" not in options_by_name:
        raise ConfigurationError(
            "the option url names the HTTP listener of a broker, such as http://localhost:7680. "
            + OPTIONS_NOT_PASSED
        )
    destination = options_by_name.get("destination", "")
    topic = destination.startswith("topic:")
    bad_rows = options_by_name.get("badrows", BAD_ROWS[0]).lower()
    if bad_rows not in BAD_ROWS:
        raise ConfigurationError(
            f"badRows is {', '.join(BAD_ROWS)}, not {options_by_name['badrows']!r}"
        )
    if not options_by_name.get("deadletterqueue", DEAD_LETTERS):
        raise ConfigurationError("deadLetterQueue names a queue")
    write_id = options_by_name.get("writeid", "")
    if "writeid" in options_by_name and not _WRITE_ID.match(write_id):
        raise ConfigurationError("writeId has 1 to 128 characters of ASCII, and no blanks")
    if "batchid" in options_by_name and not write_id:
        raise ConfigurationError("batchId counts the writes of one writeId: set writeId, too")
    return SinkOptions(
        target(options_by_name),
        destination.removeprefix("topic:") if topic else destination,
        topic,
        bad_rows,
        options_by_name.get("deadletterqueue", DEAD_LETTERS),
        _number(options_by_name, "transactionBytes", PART_BYTES, 1),
        _number(options_by_name, "transactionRows", PART_ROWS, 1),
        write_id,
        _number(options_by_name, "batchId", 0, 0),
        _number(options_by_name, "retryTimeout", int(RETRY_TIMEOUT), 0),
    )


def _number(options_by_name: Mapping[str, str], name: str, default: int, minimum: int) -> int:
    text = options_by_name.get(name.lower())
    if text is None:
        return default
    if not _NUMBER.match(text) or int(text) < minimum:
        raise ConfigurationError(f"{name} is a whole number from {minimum} on, not {text!r}")
    return int(text)


# --- columns ------------------------------------------------------------------------------------

_TEXT: Final = "string"
_TEXTS: Final = "map<string,string>"
_STRING: Final = (_TEXT, {_TEXT}, t.StringType())
_MAP: Final = (_TEXTS, {_TEXTS}, t.MapType(t.StringType(), t.StringType()))
COLUMNS: Final[Mapping[str, tuple[str, Set[str], t.DataType]]] = {
    "destination": _STRING,
    "destination_kind": _STRING,
    "body": (f"string, binary or {_TEXTS}", {_TEXT, _TEXTS, "binary"}, t.StringType()),
    "body_kind": _STRING,
    "properties": _MAP,
    "property_types": _MAP,
    "priority": ("an integer", {"integer"}, t.IntegerType()),
    "ttl": ("an integer (ms)", {"integer"}, t.LongType()),
    "expiration": ("timestamp", {"timestamp"}, t.TimestampType()),
    "deliver_at": ("timestamp", {"timestamp"}, t.TimestampType()),
    "message_id": _STRING,
    "correlation_id": _STRING,
    "reply_to": _STRING,
    "type": _STRING,
    "durability": _STRING,
}
"""Types of each column: as text for error messages, as of `_type_name`, and in DEFAULT_SCHEMA."""

DEFAULT_SCHEMA: Final = t.StructType(
    [t.StructField(name, default) for name, (_, _, default) in COLUMNS.items()]
)
"""Default columns of a view or table created without columns; bodies are text."""

_TYPE_NAMES: Final = {
    "char": _TEXT,
    "varchar": _TEXT,
    "byte": "integer",
    "short": "integer",
    "long": "integer",
}


def _type_name(kind: t.DataType) -> str:
    """Return the name of the type without its width."""
    if isinstance(kind, t.MapType):
        return f"map<{_type_name(kind.keyType)},{_type_name(kind.valueType)}>"
    return _TYPE_NAMES.get(kind.typeName(), kind.typeName())


def column_indexes(schema: t.StructType, destination: str) -> dict[str, int]:
    """Return the index of each column in a batch, by its name in COLUMNS.

    Columns of type void are left out. `destination` is the option of that name, or "". Raises
    ConfigurationError if the schema does not fit.
    """
    indices: dict[str, int] = {}
    problems: list[str] = []
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in COLUMNS:
            problems.append(f"there is no column {field.name}")
            continue
        expected, type_names, _ = COLUMNS[name]
        if name in indices:
            problems.append(f"there are two columns {name}")
        elif (
            not isinstance(field.dataType, t.NullType)
            and _type_name(field.dataType) not in type_names
        ):
            problems.append(f"{name} is {expected}, and not {field.dataType.simpleString()}")
        indices[name] = index
    if "body" not in indices:
        problems.append("the column body is missing")
    if "destination" not in indices and not destination:
        problems.append("the column destination, or the option destination, is missing")
    if "property_types" in indices and "properties" not in indices:
        problems.append("property_types needs a column properties, which is missing")
    if problems:
        raise ConfigurationError(
            f"these rows are not messages: {'; '.join(problems)}. Messages have the columns "
            + ", ".join(COLUMNS)
        )
    return {
        name: index
        for name, index in indices.items()
        if not isinstance(schema.fields[index].dataType, t.NullType)
    }

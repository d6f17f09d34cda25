"""Options of a write, and the columns that a row may have: docs/pipeline/sink.md describes both."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import types as t

from sluicemq.clients.http import RETRY_TIMEOUT, HttpTarget, target
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.options import (
    CONNECTION,
    OPTIONS_NOT_PASSED,
    OptionSpec,
    choice,
    matching,
    number,
    own_options,
    parse_values,
    positive,
)

DEAD_LETTERS: Final = "sluicemq.sink.dlq"
PART_BYTES: Final = 16 * 1024 * 1024
PART_ROWS: Final = 16_384

_ADDED_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark adds; a path is that of `save(path)`."""

BAD_ROWS: Final = ("fail", "drop", "dead-letter")
"""Values of badRows: handling of rows that are not valid messages, by the broker."""


class SinkOptions(NamedTuple):
    """Options of a write, created on the driver and sent to the tasks.

    destination  destination of rows that have none; without a name, each row must have one
    part_bytes, part_rows   limits of a transaction (transactionBytes, transactionRows)
    write_id     "" = none
    batch        index of the write within `write_id` (batchId)
    retry_timeout     seconds (retryTimeout)
    """

    target: HttpTarget
    destination: Address = Address(Kind.QUEUE, "")
    bad_rows: str = BAD_ROWS[0]
    dead_letters: str = DEAD_LETTERS
    part_bytes: int = PART_BYTES
    part_rows: int = PART_ROWS
    write_id: str = ""
    batch: int = 0
    retry_timeout: float = RETRY_TIMEOUT


def _address(text: str) -> Address:
    name = text.removeprefix("topic:")
    return Address(Kind.QUEUE if name == text else Kind.TOPIC, name)


_queue: Final = partial(matching, pattern="(?!topic:).+", rule="not the name of a queue")
_write_id: Final = partial(
    matching, pattern=r"[\x21-\x7e]{1,128}", rule="not 1 to 128 characters of ASCII without blanks"
)

OPTIONS: Final = (
    OptionSpec("destination", "destination", _address),
    OptionSpec("badRows", "bad_rows", partial(choice, choices=BAD_ROWS)),
    OptionSpec("deadLetterQueue", "dead_letters", _queue),
    OptionSpec("transactionBytes", "part_bytes", positive),
    OptionSpec("transactionRows", "part_rows", positive),
    OptionSpec("writeId", "write_id", _write_id),
    OptionSpec("batchId", "batch", number),
    OptionSpec("retryTimeout", "retry_timeout", number),
)
"""All options but CONNECTION, in the order of the documentation."""
OPTION_NAMES: Final = (*CONNECTION, *(option.name for option in OPTIONS))
WRITE_ONLY: Final = frozenset(option.name.lower() for option in OPTIONS)
"""Options, in lower case, that identify a table or view as one for writing."""


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes; case is ignored. Raises ConfigurationError."""
    known = WRITE_ONLY.union(CONNECTION)
    texts = own_options(given, known)
    unknown = sorted(set(texts) - known - _ADDED_BY_SPARK)
    if unknown:
        raise ConfigurationError(
            f"a write to sluicemq has no option {', '.join(unknown)}; "
            f"there are {', '.join(OPTION_NAMES)}"
        )
    if "path" in texts:
        raise ConfigurationError(
            "messages are written to a running broker: set the option url, and call save() "
            "without a path"
        )
    if "url" not in texts:
        raise ConfigurationError(
            "the option url names the HTTP listener of a broker, such as http://localhost:7680. "
            + OPTIONS_NOT_PASSED
        )
    options = SinkOptions(target(texts), **parse_values(texts, OPTIONS))
    if "batchid" in texts and not options.write_id:
        raise ConfigurationError("batchId counts the writes of one writeId: set writeId, too")
    return options


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

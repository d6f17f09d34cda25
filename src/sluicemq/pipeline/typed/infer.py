"""Inference of a typed table's schema from messages, to be reviewed and then declared.

Spark infers the schema from a sample of the bodies. The result is widened where a sample is not
sufficient: decimals get more digits, and columns without any value are STRING. Columns whose names
a table cannot have are left out, and columns with such fields are STRING.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.session import cached
from sluicemq.pipeline.typed.bodies import DECIMAL, TOO_MANY_FIELDS, with_text
from sluicemq.pipeline.typed.definition import (
    MAX_NAME,
    QUARANTINE,
    RESERVED_TABLES,
    TOMBSTONES,
    Format,
    TypedTable,
)
from sluicemq.pipeline.typed.rows import selects, subscription
from sluicemq.pipeline.typed.validation import RESERVED_PREFIX, column_problems

SAMPLE: Final = 10_000
"""Messages that a schema is inferred from."""
PRECISION: Final = 18
"""Minimum precision of an inferred decimal: more would take 16 bytes instead of 8."""
_MORE_DIGITS: Final = 4
"""Digits that values outside the sample may have more."""
_INTEGER_DIGITS: Final = 20
"""Digits that Spark reserves for BIGINT in a decimal."""
_MAX_PRECISION: Final = 38
INFERRED_SUFFIX: Final = ".inferred"
_NO_LITERAL: Final = re.compile(r"'''|[\x00-\x1f\x7f]")
"""Text that a TOML literal on one line cannot contain."""
_TABLE: Final = "_table"
"""End of a table's name that would be reserved without it."""

_OPTIONS: Final = {
    Format.JSON: {
        "mode": "DROPMALFORMED",
        "prefersDecimal": "true",
        "inferTimestamp": "true",
        "allowSingleQuotes": "false",
        "allowNonNumericNumbers": "false",
    },
    Format.CSV: {"mode": "DROPMALFORMED", "inferSchema": "true", "escape": '"'},
    Format.XML: {"mode": "DROPMALFORMED", "attributePrefix": ""},
}


@dataclass(frozen=True)
class InferredSchema:
    """Inferred schema.

    sampled   messages that were read
    readable  those of them that are of the format
    left_out  names of the columns that a table cannot have
    """

    format: Format
    columns: StructType
    sampled: int
    readable: int
    left_out: tuple[str, ...] = ()


def infer_schema(
    events: DataFrame, destination: str, format: Format | None = None, sample: int = SAMPLE
) -> InferredSchema:
    """Infer the schema of a destination's messages (a pattern, as in the definition).

    format  None = JSON or XML if most bodies are, else text
    sample  largest number of messages to read

    Raises ConfigurationError if there are no messages, or none of the format, or no columns.
    """
    probe = TypedTable(name="sample", destination=destination, format=format or Format.JSON)
    texts = with_text(
        events.where(selects(probe)).limit(sample), probe.format, may_need_udf=True
    ).selectExpr("if(_error IS NULL, try_validate_utf8(_text), NULL) AS _text")
    with cached(texts):
        return _infer(texts, destination, format)


def _infer(texts: DataFrame, destination: str, format: Format | None) -> InferredSchema:
    """Infer a schema from the column `_text`, which is NULL for messages without text."""
    (counts,) = texts.selectExpr(
        "count(1) AS sampled",
        "count(_text) AS text",
        # json_object_keys accepts objects only, and does not read them to their end
        "count_if(json_object_keys(_text) IS NOT NULL "
        "AND try_parse_json(_text) IS NOT NULL) AS json",
        "count_if(_text RLIKE '^\\\\s*<') AS xml",
        "count_if(_text LIKE '%,%') AS csv",
    ).collect()
    sampled = int(counts["sampled"])
    if not sampled:
        raise ConfigurationError(
            f"there are no messages of {destination!r} in the journal: check the name (topics are "
            "topic:NAME), or publish some"
        )
    if format is None:
        format = next(
            (
                candidate
                for candidate in (Format.JSON, Format.XML)
                if 2 * counts[str(candidate)] > sampled
            ),
            Format.TEXT,
        )
    readable = int(counts[str(format)])
    if not readable:
        raise ConfigurationError(
            f"none of the {sampled:,} messages of {destination!r} that were read is {format}: "
            "name another --format"
        )
    columns = (
        StructType([StructField("body", StringType())])
        if format is Format.TEXT
        else _sampled_schema(texts.where("_text IS NOT NULL"), format)
    )
    columns, left_out = _allowed_columns(columns, format)
    if not columns.fields:
        raise ConfigurationError(
            f"the {readable:,} {format} messages of {destination!r} that were read have no field "
            "that a column can be named after: declare the table with format text"
        )
    return InferredSchema(format, columns, sampled, readable, left_out)


def _allowed_columns(columns: StructType, format: Format) -> tuple[StructType, tuple[str, ...]]:
    """Return the columns as a table can have them, and the names of those that it cannot have."""
    allowed: dict[str, StructField] = {}
    left_out = []
    for column in columns:
        name = column.name
        if format is Format.CSV:  # its columns are known by their positions
            name = name.removeprefix("_")
        text = StructField(name, StringType())
        if (
            name.startswith(RESERVED_PREFIX)
            or name.lower() in allowed
            or not _can_be_declared(text)
        ):
            left_out.append(name)
        else:
            typed = StructField(name, column.dataType)
            allowed[name.lower()] = typed if _can_be_declared(typed) else text
    return StructType([*allowed.values()]), tuple(left_out)


def _can_be_declared(column: StructField) -> bool:
    """Return True if a table can have the column, and a definition file its declaration."""
    return not any(column_problems(column)) and not _NO_LITERAL.search(column.simpleString())


def _sampled_schema(texts: DataFrame, format: Format) -> StructType:
    """Return the schema that Spark infers, with wider decimals."""
    reader = texts.sparkSession.read.options(**_OPTIONS[format])
    if format is Format.CSV:
        texts = texts.where(f"NOT {TOO_MANY_FIELDS}")
    parsers: dict[Format, Callable[[DataFrame], DataFrame]] = {
        Format.JSON: reader.json,
        Format.CSV: reader.csv,
        Format.XML: reader.xml,
    }
    return StructType.fromJson(
        json.loads(DECIMAL.sub(_widen_decimal, parsers[format](texts).schema.json()))
    )


def _widen_decimal(decimal: re.Match[str]) -> str:
    """Return a type that holds the values of messages outside the sample, too."""
    precision, scale = int(decimal[1]), int(decimal[2])
    integer_digits = precision - scale
    # some values have no fraction, which Spark infers as BIGINT
    if integer_digits == _INTEGER_DIGITS:
        integer_digits = PRECISION - scale - _MORE_DIGITS
    precision = max(PRECISION, integer_digits + scale + _MORE_DIGITS)
    return f"decimal({min(_MAX_PRECISION, precision)},{scale})"


def table_definition(inferred: InferredSchema, destination: str, name: str) -> str:
    """Return a [[table]] of the definition file with an inferred schema; needs a Spark session."""
    columns = ",\n".join(f"    {StructType([item]).toDDL()}" for item in inferred.columns)
    lines = [
        f"# inferred from {inferred.readable:,} of {inferred.sampled:,} messages:",
        "# review the types, and name the columns that identify a row",
        *(
            f"# left out, because a table cannot have a column of this name: {json.dumps(name)}"
            for name in inferred.left_out
        ),
        "[[table]]",
        f'name = "{name}"',
        # a JSON text is a TOML text, too
        f"destination = {json.dumps(destination, ensure_ascii=False)}",
        f'format = "{inferred.format}"',
        f"schema = '''\n{columns}\n'''",
        "key = []            # empty: every message is a row",
        "partition_by = []",
    ]
    return "\n".join(lines) + "\n"


def table_name(destination: str) -> str:
    """Return a name for the table of a destination: its letters, digits and underscores."""
    plain = destination.removeprefix("topic:").lower()
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in plain).strip("_")
    name = (name if name[:1].isalpha() else f"t_{name}".rstrip("_"))[:MAX_NAME]
    is_reserved = name in RESERVED_TABLES or name.endswith((QUARANTINE, TOMBSTONES))
    return f"{name[: MAX_NAME - len(_TABLE)]}{_TABLE}" if is_reserved else name


def write_inferred(events: DataFrame, tables: Sequence[TypedTable], path: Path) -> Path:
    """Write tables with inferred schemas to a file in the directory of the definition file `path`.

    Returns the file, whose tables are to be reviewed and moved to the definition.
    """
    blocks = [
        table_definition(
            infer_schema(events, table.destination, table.format), table.destination, table.name
        )
        for table in tables
    ]
    path = path.with_name(f"{path.stem}{INFERRED_SUFFIX}{path.suffix}")
    path.write_text("\n".join(blocks), "utf-8")
    return path


def read_published(spark: SparkSession, source: dict[str, str], destination: str) -> DataFrame:
    """Return the published messages of a journal's destinations, those that the broker moved
    forward in its journal included; `source` has the options that locate it."""
    return (
        spark.read.format("sluicemq")
        .options(**source)
        .option("subscribePattern", subscription([destination]))
        .option("events", "published,relocated")
        .option("includeHeaders", "true")
        .load()
    )

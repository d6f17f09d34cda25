"""Checks of a definition that need Spark: schemas, expectations, deletions and queries.

All errors are reported at once, with the line of their table, expectation or query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from sluicemq.pipeline.delta import temporary_settings
from sluicemq.pipeline.typed.definition import (
    INFER,
    QUARANTINE,
    Definition,
    DefinitionError,
    Format,
    GoldTable,
    Problem,
    Refresh,
    TypedTable,
)
from sluicemq.pipeline.typed.gold import first_line, incremental_problem, query, references
from sluicemq.pipeline.typed.rows import LENIENT, METADATA, QUARANTINE_COLUMNS

_LAYER_ALIAS: Final = re.compile(
    r"\b(bronze|silver|gold)\.`?\w+`?\s+(?:as\s+)?(`?)\1\b\2(?!\s*\.)", re.IGNORECASE
)
"""Table of the lake with its layer's name as its alias."""
_NESTED: Final = (t.ArrayType, t.MapType, t.StructType, t.VariantType)
_UNSUPPORTED: Final = (
    t.AnsiIntervalType,
    t.CalendarIntervalType,
    t.CharType,
    t.NullType,
    t.SpatialType,
    t.TimeType,
    t.VarcharType,
)
RESERVED_PREFIX: Final = "_"
"""Start of the names of the pipeline's own columns."""
_TWICE: Final = "is declared twice (case does not matter)"
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""Characters that Delta accepts in no name of a column or field."""


def check(spark: SparkSession, definition: Definition) -> None:
    """Check everything of a definition that its parser cannot. Raises DefinitionError."""
    problems: list[Problem] = []
    tables: dict[str, DataFrame] = {}
    for table in definition.tables:
        title = f"table {table.name!r}"
        columns, texts = _columns(table)
        if columns is not None:
            texts += _key_problems(table, columns)
        problems += (Problem(table.line, f"{title}: {text}") for text in texts)
        if columns is None:
            continue
        row_type = t.StructType([*columns.fields, *METADATA.fields])
        rows = spark.createDataFrame([], row_type)
        tables[f"silver.{table.name}"] = rows
        tables[f"silver.{table.name}{QUARANTINE}"] = spark.createDataFrame([], QUARANTINE_COLUMNS)
        problems += (
            Problem(line, f"{title}, {condition}: {text}")
            for line, condition, text in _condition_problems(spark, table, rows)
        )
    if not problems:
        for gold in definition.gold:
            _check_gold(spark, gold, tables, problems)
    if problems:
        raise DefinitionError(definition.path, problems)


def _columns(table: TypedTable) -> tuple[t.StructType | None, list[str]]:
    """Return the declared columns, None if Spark has no such rows, and their problems."""
    if table.schema == INFER:
        return None, [
            "the schema is not inferred yet: run sluicemq pipeline schema infer "
            f"'{table.destination}', and review and paste its output"
        ]
    try:
        columns = t.StructType.fromDDL(table.schema)
    except PySparkException as error:
        return None, [f'schema is not DDL such as "id BIGINT, name STRING": {first_line(error)}']
    if not isinstance(columns, t.StructType):
        return None, ['schema has one type and no columns: write it as "id BIGINT, name STRING"']
    texts = [
        f"the column {item.name}: {problem}"
        for item in columns
        for problem in column_problems(item)
    ]
    if texts:
        return None, texts  # Spark has no rows of some of these types
    texts += (f"the column {name} {_TWICE}" for name in _repeated_names(columns))
    for item in columns:
        if item.name.startswith(RESERVED_PREFIX):
            texts.append(
                f"the column {item.name} has a name that begins with _, as only the pipeline's own "
                "columns do"
            )
        if table.format in (Format.CSV, Format.TEXT) and isinstance(item.dataType, _NESTED):
            texts.append(f"the column {item.name}: {table.format} has no nested values")
    are_strings = [isinstance(item.dataType, t.StringType) for item in columns]
    if table.format is Format.TEXT and are_strings != [True]:
        texts.append('format text has one column of type STRING, such as schema = "body STRING"')
    return columns, texts


def _repeated_names(columns: t.StructType) -> list[str]:
    """Return the names that equal an earlier one, whatever their case."""
    names = [name.lower() for name in columns.names]
    return [name for index, name in enumerate(columns.names) if name.lower() in names[:index]]


def column_problems(field: t.StructField) -> Iterator[str]:
    """Yield the reasons why a table cannot have a column, or a field within it."""
    kind: t.DataType = field.dataType
    if not _FORBIDDEN.isdisjoint(field.name):
        yield f"the name {field.name!r} has a blank or one of ,;{{}}()=, which Delta rejects"
    if not field.nullable:
        yield "NOT NULL is not checked: declare an expectation instead"
    is_collated = isinstance(kind, t.StringType) and not kind.isUTF8BinaryCollation()
    if is_collated or isinstance(kind, _UNSUPPORTED):
        yield f"tables have no type {kind.simpleString().upper()}"
    if isinstance(kind, t.MapType) and not isinstance(kind.keyType, t.StringType):
        yield "the keys of a MAP are of type STRING, because they are the names of fields"
    parts = kind if isinstance(kind, t.StructType) else t.StructType()
    if isinstance(kind, t.ArrayType):
        parts = parts.add("element", kind.elementType)
    elif isinstance(kind, t.MapType):
        parts = parts.add("key", kind.keyType).add("value", kind.valueType)
    yield from (f"the field {name} {_TWICE}" for name in _repeated_names(parts))
    for part in parts:
        yield from column_problems(part)


def _key_problems(table: TypedTable, columns: t.StructType) -> Iterator[str]:
    """Yield the problems of the columns of `key` and `partition_by`."""
    kinds = {item.name: item.dataType for item in columns}
    for name in columns.names if table.key else ():
        if "`" in name:  # not quoted in the change data feed of a merge
            yield f"the column {name}: with a key, Delta rejects a backtick in the name of a column"
    for title, names in (("key", table.key), ("partition_by", table.partition_by)):
        for name in names:
            if name not in kinds:
                yield f"{title} {name!r} is not among the columns {', '.join(kinds)}"
            elif isinstance(kinds[name], _NESTED):
                yield f"{title} {name!r} is nested, which cannot be compared"
            elif title == "partition_by" and isinstance(kinds[name], t.BinaryType):
                yield f"partition_by {name!r} is BINARY, of which Delta keeps valid UTF-8 only"


def _condition_problems(
    spark: SparkSession, table: TypedTable, rows: DataFrame
) -> Iterator[tuple[int, str, str]]:
    """Yield line, title and problem of each check, and `delete`, that is no condition."""
    conditions = [
        (item.line, f"expectation {item.name!r}", item.check) for item in table.expectations
    ]
    if table.delete:
        conditions.append((table.line, "delete", table.delete))
    for line, title, sql in conditions:
        try:
            with temporary_settings(spark, LENIENT):
                (kind,) = rows.where(f"({sql}) IS NOT NULL").selectExpr(f"({sql}) AS c").schema
        except PySparkException as error:
            yield line, title, first_line(error)
        else:
            if not isinstance(kind.dataType, t.BooleanType):
                kind_name = kind.dataType.simpleString().upper()
                yield line, title, f"the condition is {kind_name}, not BOOLEAN"


def _result_problems(columns: t.StructType) -> Iterator[str]:
    """Yield the reasons why no table can have the result of a query."""
    for name in _repeated_names(columns):
        yield f"two columns of the result are named {name} (case does not matter)"
    # values that are never NULL, such as counts, are no problem
    text = columns.json().replace('"nullable":false', '"nullable":true')
    for item in t.StructType.fromJson(json.loads(text)):
        yield from (f"the column {item.name}: {problem}" for problem in column_problems(item))


def _check_gold(
    spark: SparkSession, gold: GoldTable, tables: dict[str, DataFrame], problems: list[Problem]
) -> None:
    text: str | None = None
    result: DataFrame | None = None
    names = references(gold.sql)
    try:
        result = query(spark, gold.sql, {name: tables[name] for name in names if name in tables})
    except PySparkException as error:
        # tables that are not of the definition possibly do not exist before the refresh
        if "silver.messages" not in names and all(name.startswith("silver.") for name in names):
            text = first_line(error)
    else:
        missing = [key for key in gold.keys if key not in result.columns]
        # Spark takes an unknown name for a column, but a refresh would wait for that table
        if not tables.keys() >= {*names} and (alias := _LAYER_ALIAS.search(gold.sql)):
            text = f"{alias[1]}.NAME means a table of the lake: give {alias[0]!r} another alias"
        elif missing:
            text = f"keys: {missing[0]!r} is not among the columns {', '.join(result.columns)}"
        else:
            text = next(_result_problems(result.schema), None)
    if text is None and gold.refresh is Refresh.INCREMENTAL:
        text = incremental_problem(gold, result)
    if text:
        problems.append(Problem(gold.line, f"gold table {gold.name!r}: {text}"))

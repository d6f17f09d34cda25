"""Spark and Arrow schemas of a read."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.schema import EVENTS, KAFKA, PLAIN
from sluicemq.pipeline.source.options import Shape, SourceOptions


def asked_columns(options: SourceOptions) -> StructType:
    """Return the schema of a read, in the column order of `EVENTS` or `KAFKA`.

    The option `columns` selects the columns; without it, `include_headers` adds the headers.
    """
    if options.shape is Shape.KAFKA:
        all_columns, usual = KAFKA, pa.schema([field for field in KAFKA if field.name != "headers"])
    else:
        all_columns, usual = EVENTS, PLAIN
    fields = all_columns if options.include_headers else usual
    if options.columns:
        fields = pa.schema([field for field in all_columns if field.name in options.columns])
    return from_arrow_schema(fields)


def arrow_columns(schema: StructType, shape: Shape = Shape.EVENTS) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with.

    Raises ConfigurationError for an unknown column or one of another type.
    """
    columns = KAFKA if shape is Shape.KAFKA else EVENTS
    types = {field.name: field.dataType for field in from_arrow_schema(columns)}
    for field in schema:
        if field.name not in types:
            raise ConfigurationError(
                f"there is no column {field.name!r}, but {', '.join(columns.names)}"
            )
        if field.dataType.simpleString() != types[field.name].simpleString():
            raise ConfigurationError(
                f"the column {field.name} is of type {types[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading"
            )
    return to_arrow_schema(schema, timezone="UTC")

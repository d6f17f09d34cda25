"""Spark and Arrow schemas of a read."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.schema import EVENTS, PLAIN
from sluicemq.pipeline.source.options import SourceOptions


def asked_columns(options: SourceOptions) -> StructType:
    """Return the schema of a read, in the column order of `EVENTS`.

    The option `columns` selects the columns; without it, `include_headers` adds the headers.
    """
    fields = EVENTS if options.include_headers or options.columns else PLAIN
    if options.columns:
        fields = pa.schema([field for field in EVENTS if field.name in options.columns])
    return from_arrow_schema(fields)


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with.

    Raises ConfigurationError for an unknown column or one of another type.
    """
    ours = {field.name: field.dataType for field in from_arrow_schema(EVENTS)}
    for field in schema:
        if field.name not in ours:
            raise ConfigurationError(
                f"there is no column {field.name!r}, but {', '.join(EVENTS.names)}"
            )
        if field.dataType.simpleString() != ours[field.name].simpleString():
            raise ConfigurationError(
                f"the column {field.name} is of type {ours[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading"
            )
    return to_arrow_schema(schema, timezone="UTC")

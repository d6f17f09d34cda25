"""The columns of a read, as Spark and as Arrow see them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.schema import EVENTS, PLAIN
from sluicemq.pipeline.source.options import SourceOptions


def asked_columns(options: SourceOptions) -> StructType:
    """Those of the option columns, in the order of the schema; else all, or all but the headers."""
    fields = EVENTS if options.include_headers or options.columns else PLAIN
    if options.columns:
        fields = pa.schema([field for field in EVENTS if field.name in options.columns])
    return from_arrow_schema(fields)


def arrow_columns(schema: StructType) -> pa.Schema:
    """What Spark compares batches with. Raises ConfigurationError for a column that there is not,
    or of another type."""
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

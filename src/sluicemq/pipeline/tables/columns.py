"""Column types that all three kinds of table and all their readers agree on.

integers (32 and 64 bits), float, double, boolean, string, binary, date, timestamp in microseconds
(UTC, or without zone), decimal; lists, maps and structs of them. Every column may hold nulls: only
so can columns be added later.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from sluicemq.pipeline.tables.errors import SchemaMismatch

_PLAIN: Final = (
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.string(),
    pa.binary(),
)


def plain_type(given: pa.DataType, column: str) -> pa.DataType:
    """The type under which a table keeps values of type `given`. Raises SchemaMismatch."""
    if pa.types.is_dictionary(given):
        return plain_type(given.value_type, column)
    if pa.types.is_large_string(given) or pa.types.is_string_view(given):
        return pa.string()
    if (
        pa.types.is_large_binary(given)
        or pa.types.is_binary_view(given)
        or pa.types.is_fixed_size_binary(given)
    ):
        return pa.binary()
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", tz=None if given.tz is None else "UTC")
    if pa.types.is_map(given):
        return pa.map_(plain_type(given.key_type, column), plain_type(given.item_type, column))
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        return pa.list_(plain_type(given.value_type, column))
    if pa.types.is_struct(given):
        return pa.struct(
            [pa.field(field.name, plain_type(field.type, column)) for field in given.fields]
        )
    if given in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()):
        return pa.int32()
    if given == pa.uint32():
        return pa.int64()
    if given in _PLAIN or pa.types.is_decimal128(given):
        return given
    raise SchemaMismatch(
        f"column {column!r} has type {given}, which tables cannot keep; cast it, for example to "
        "string, bigint or timestamp"
    )


def plain(schema: pa.Schema) -> pa.Schema:
    """That schema in the types of tables, without metadata, all columns nullable."""
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise SchemaMismatch(f"several columns have the same name: {', '.join(sorted(repeated))}")
    return pa.schema([pa.field(field.name, plain_type(field.type, field.name)) for field in schema])


def added(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """The columns of `rows` that the table does not have yet; both schemas are plain.

    Raises SchemaMismatch if a column of both has another type in `rows`.
    """
    new = []
    for field in rows:
        place = table.get_field_index(field.name)
        if place < 0:
            new.append(field)
        elif table.field(place).type != field.type:
            raise SchemaMismatch(
                f"column {field.name!r} is {table.field(place).type} in the table and "
                f"{field.type} in the rows. A column never changes its type: cast the rows, or "
                "write the column under a new name"
            )
    return new


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly these columns, in this order; what is missing is null.

    Raises SchemaMismatch for values that do not fit, such as a timestamp in nanoseconds.
    """
    arrays = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(place)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(f"column {field.name!r}: {error}") from error
    return pa.Table.from_arrays(arrays, schema=schema)

"""Decoding of message bodies into columns: text, JSON, map entries, stream values.

Spark decodes text and JSON itself. A Python UDF decodes map, stream and compressed bodies of JMS
clients by the code of the broker (protocols/java.py). A body that does not match its kind sets
`decode_error`; no body makes a job fail.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import COMPRESSED_SIZE, UNCOMPRESSED_SIZE
from sluicemq.pipeline.schema import SILVER, property_text, sql_list
from sluicemq.protocols import java

UNTYPED_PROTOCOLS: Final = ("phpmq", "msglite", "internal")
"""Protocols that do not distinguish text from bytes (protocols/transcoding.py)."""

IS_COMPRESSED: Final = (
    "coalesce(protocol = 'jmq' AND "
    f"element_at(properties, '{COMPRESSED_SIZE}') = string(octet_length(body)), false)"
)
"""SQL condition of compressed bodies; the property is ignored if it has another size."""
NEEDS_UDF: Final = f"(body IS NOT NULL AND (body_kind IN ('map', 'stream') OR {IS_COMPRESSED}))"
"""SQL condition of rows whose body only the Python UDF can decode (protocols/java.py)."""

_OF_MAPS: Final = ("map", "map_types", "values", "value_types")
"""Columns of map and stream bodies."""
_DECODED_ARROW: Final = pa.struct(
    [
        pa.field("plain", pa.binary()),
        pa.field("error", pa.string()),
        *(SILVER.field(name) for name in ("json", *_OF_MAPS)),
    ]
)
_DECODED: Final = from_arrow_type(_DECODED_ARROW)
DECODED: Final = ("body", "text", "json", *_OF_MAPS, "decode_error")
"""Columns that `decode` sets."""

_TYPES: Final[dict[type, str]] = {
    bool: "boolean",
    java.Byte: "byte",
    java.Short: "short",
    java.Long: "long",
    int: "integer",
    java.Float: "float",
    float: "double",
    java.Char: "character",
    str: "text",
    bytes: "bytes",
    dict: "map",
    type(None): "null",
}
"""Name of the type of each value of a map or stream."""


def decode(frame: DataFrame, may_need_udf: bool = True) -> DataFrame:
    """Add the columns DECODED to `frame` (with body, body_kind, protocol, properties).

    may_need_udf  True if a row may fulfil NEEDS_UDF; otherwise the plan has no UDF
    """
    names = frame.columns
    frame = frame.selectExpr("*", "octet_length(body) AS _size", f"{NEEDS_UDF} AS _needs_udf")
    frame = frame.withColumn("_decoded", udf_columns(may_need_udf)).selectExpr(
        "*",
        "if(_decoded.error IS NULL, "
        "try_validate_utf8(string(coalesce(_decoded.plain, body))), NULL) AS _text",
    )
    frame = frame.selectExpr(
        "*", "body_kind = 'json' AND try_parse_json(_text) IS NOT NULL AS _json"
    )
    untyped = sql_list(UNTYPED_PROTOCOLS)
    columns = {
        "text": "CASE WHEN body_kind = 'text' OR (body_kind = 'json' AND NOT _json)"
        f" OR (body_kind = 'bytes' AND protocol IN ({untyped})) THEN _text END",
        "json": "if(_json, _text, _decoded.json)",
        "body": "CASE WHEN _size = 0 AND body_kind = 'none' THEN NULL"
        " WHEN _needs_udf OR _text IS NULL OR body_kind IN ('none', 'object')"
        f" OR (body_kind = 'bytes' AND NOT protocol IN ({untyped})) THEN body END",
        "decode_error": "CASE WHEN _decoded.error IS NOT NULL THEN _decoded.error"
        " WHEN body_kind IN ('text', 'json') AND _text IS NULL AND body IS NOT NULL"
        " THEN 'the body is not UTF-8'"
        " WHEN body_kind = 'json' AND NOT _json THEN 'the body is not JSON'"
        " WHEN body_kind = 'none' AND _size > 0"
        " THEN concat(_size, ' bytes where there should be none') END",
        **{name: f"_decoded.{name}" for name in _OF_MAPS},
    }
    unchanged = (f"`{name}`" for name in names if name not in columns)
    return frame.selectExpr(
        *unchanged, *(f"{expression} AS `{name}`" for name, expression in columns.items())
    )


def udf_columns(may_need_udf: bool) -> Column:
    """Return the struct of `decode_body` for rows that fulfil NEEDS_UDF, and null for others.

    may_need_udf  False = all are null
    """
    if not may_need_udf:
        return f.lit(None).cast(_DECODED)
    size = f"coalesce(try_cast(element_at(properties, '{UNCOMPRESSED_SIZE}') AS BIGINT), -1)"
    columns: Column = _decode_bodies(
        f.expr(f"if({NEEDS_UDF}, body, NULL)"),
        f.col("body_kind"),
        f.expr(f"if({IS_COMPRESSED}, {size}, NULL)"),
    )
    return columns


@arrow_udf(_DECODED)  # type: ignore[call-overload, untyped-decorator]
def _decode_bodies(bodies: pa.Array, kinds: pa.Array, sizes: pa.Array) -> pa.Array:
    rows = zip(bodies.to_pylist(), kinds.to_pylist(), sizes.to_pylist(), strict=True)
    results = [None if body is None else decode_body(body, kind, size) for body, kind, size in rows]
    return pa.array(results, _DECODED_ARROW)


def decode_body(body: bytes, kind: str, plain_size: int | None) -> dict[str, Any]:
    """Return the columns that `decode` makes of one body.

    `plain_size` is None for a body that is not compressed, and -1 for a compressed one of unknown
    size."""
    columns: dict[str, Any] = {}
    try:
        if plain_size is not None:
            body = java.inflate(body, plain_size if plain_size >= 0 else None, java.MAX_SIZE)
            columns["plain"] = body
        if kind == "map":
            entries = java.loads_map(body)
            columns["json"] = java.json_of_map(body).decode()
            json_value = msgspec.json.decode(columns["json"])
            texts = [_text(value, json_value[name]) for name, value in entries.items()]
            columns["map"] = list(zip(entries, texts, strict=True))
            columns["map_types"] = [(name, _TYPES[type(value)]) for name, value in entries.items()]
        elif kind == "stream":
            values = java.loads_stream(body) if body else []
            columns["json"] = java.json_of_stream(body).decode()
            columns["values"] = [_text(value, None) for value in values]
            columns["value_types"] = [_TYPES[type(value)] for value in values]
    except ProtocolError as error:
        return {"error": str(error)}
    return columns


def _text(value: java.Value, json_value: Any) -> str | None:
    """Return a value as text; `json_value` is its JSON form, for maps."""
    if isinstance(value, dict):
        return msgspec.json.encode(json_value).decode()
    return property_text(value)

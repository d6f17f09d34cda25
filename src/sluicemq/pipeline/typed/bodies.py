"""Text of message bodies, and its parsing into columns: JSON, CSV, XML and plain text.

Spark's parsers are lenient: `from_json` ignores what follows the first value, replaces bytes that
are not UTF-8 and unpaired surrogates, keeps the last of two equal fields, and turns a number beyond
DOUBLE into infinity.
Here each of these makes a message unparseable, with a reason. docs/pipeline/typed-tables.md lists
what is deliberately left as Spark does it.

Only map, stream and compressed bodies of JMS clients need a Python UDF, because Spark cannot read
Java's serialization.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from sluicemq.model.message import COMPRESSED_SIZE
from sluicemq.pipeline.jobs.bodies import NEEDS_UDF, udf_columns
from sluicemq.pipeline.schema import quoted
from sluicemq.pipeline.typed.definition import Format

MAX_REASON_VALUE: Final = 100
"""Characters of a value, or of its type, in a reason."""

SAMPLE: Final = 20
"""Messages whose field names `common_field_lists` looks at."""
MAX_LISTS: Final = 3
"""Lists that `common_field_lists` returns: each is one more comparison for a body that has another
list."""
MAX_CHARACTERS: Final = 2_000
"""Characters of the names of a list: they become literals of the query."""

DECIMAL: Final = re.compile(r'(?<=ype":")decimal\((\d+),(\d+)\)')
"""Type of a column, or of the elements or values of one, in the JSON of a schema."""

MAY_NEED_UDF: Final = (
    "(body_kind IN ('map', 'stream') OR coalesce(protocol = 'jmq' AND "
    f"map_contains_key(properties, '{COMPRESSED_SIZE}'), false))"
)
"""Condition that NEEDS_UDF implies, and that reads no bodies."""

_NONCE: Final = f"n{secrets.token_hex(8)}"
"""Name that no message can contain on purpose: see _parse_json."""
_CORRUPT: Final = "_corrupt"
_INTERNAL: Final = (
    *("_text", "_error", "_object", "_keys", _CORRUPT),
    *("_listed", "_twice", "_valid", "_ended", "_raw", "_parsed", "_plain"),
)
"""Columns that `parse` needs, and does not return."""
_TOKENS: Final = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_LENIENT: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
# The fallback takes a text of digits for a number of days: "20260101" would be in the year 57440.
_STRICT: Final = {**_LENIENT, **_TOKENS, "enableDateTimeParsingFallback": "false"}
_CSV: Final = {**_LENIENT, "escape": '"'}
_XML: Final = {**_LENIENT, "attributePrefix": ""}
_CLOSED: Final = "binary(if(endswith(_text, '}'), _text, rtrim(' \\t\\r\\n', _text)))"
_FIELDS: Final = (
    f"json_object_keys(string(concat(substring({_CLOSED}, 1, octet_length({_CLOSED}) - 1), "
    f"binary(',\"{_NONCE}\":0}}'))))"
)
"""Names of the fields of a JSON object, the last of which is the nonce."""
_NO_FIELDS: Final = f"if(_text RLIKE '^\\\\s*[{{]\\\\s*[}}]\\\\s*$', array('{_NONCE}'), NULL)"
"""The same of an empty object."""
_COSTLY: Final = r"[eE][+-]?[\p{Nd},]{5}|[\p{Nd},.]{1000}"
"""Number that takes Spark up to hours to parse: it removes commas from values for DECIMAL, and
writes out all digits. Numbers with fewer digits, or a smaller exponent, take a few milliseconds."""
_COSTLY_REASON: Final = "a number for DECIMAL has an exponent of 5 digits, or 1,000 digits"
_TYPES: Final = re.compile(r'(?<=ype":")(?:decimal\(\d+,\d+\)|timestamp)(?=")')
"""As DECIMAL, with TIMESTAMP."""
_MISREAD_SUSPECT: Final = r"(?<![0-9:+T-]|[0-9]\s)T?[0-9]{1,2}:|[0-9]{13}"
"""Text with a value that `_misread_times` possibly finds."""
_MISREAD_TIME: Final = r"^\s*T?[0-9]{1,2}:"
"""Value for TIMESTAMP without a date: Spark takes the day on which it is parsed."""
_MISREAD_REASON: Final = "a value for TIMESTAMP has no date, or is a number out of range"
_MAX_SECONDS: Final = (1 << 63) // 1_000_000
"""Largest number for TIMESTAMP: Spark multiplies it without a check."""
_MAX_FIELDS: Final = 20_480
"""Fields of a CSV record for which Spark's parser has room: more of them end the query."""
_COMMAS: Final = "(length({0}) - length(replace({0}, ',', '')))"
TOO_MANY_FIELDS: Final = (
    f"({_COMMAS.format('_text')} >= {_MAX_FIELDS} AND "
    + _COMMAS.format("""regexp_replace(_text, '(^|,)"[^"]*+"', '$1')""")
    + f" >= {_MAX_FIELDS})"
)
"""Condition that a CSV record possibly has more fields; commas within quotes separate none."""
_DIGITS: Final = "^[+-]?[0-9]{1,40}(?:[.][0-9]{1,40})?$"
"""String that is a number without an exponent."""
_NOT_UTF8: Final = "the body is not UTF-8"
_NOT_JSON: Final = "the body is not JSON"
_REPLACED: Final = "�"
"""Character that decoding puts where bytes are not UTF-8."""
_SUBSTITUTE: Final = "?"
"""Character that Spark stores for an unpaired surrogate."""
_UNPAIRED: Final = (
    r"(?i)(?<!\\)(?:\\\\)*+"
    r"(?:\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f])"
)
"""Escape of an unpaired surrogate in JSON: a character beyond U+FFFF is written as two of them."""
_UNPAIRED_REASON: Final = "a text has an unpaired surrogate, such as \\ud800"
_XML_END: Final = (
    r"^(?s)\\s*+(?:(?:<\\?.*?\\?>|<!--.*?-->)\\s*+)*+<([^\\s/>]++).*(?:</\\1\\s*>|/>)\\s*$"
)
"""An XML document ends with the end tag of its first element, or with an empty element.

Possessive (`+`): Java's search would take time exponential in the number of comments otherwise, or
overflow its stack."""


def with_text(messages: DataFrame, format: Format, may_need_udf: bool) -> DataFrame:
    """Add `_text`, the body as text, and `_error`, the reason why there is none.

    may_need_udf  True if a row may fulfil NEEDS_UDF; otherwise the plan has no UDF
    """
    condition = NEEDS_UDF if may_need_udf else "false"
    kinds = "('object')" if format is Format.JSON else "('object', 'map', 'stream')"
    return messages.withColumn("_decoded", udf_columns(may_need_udf)).selectExpr(
        "* EXCEPT (_decoded)",
        f"if({condition}, coalesce(_decoded.json, string(_decoded.plain)), string(body)) AS _text",
        f"CASE WHEN body_kind IN {kinds} THEN concat('a body of the kind ', body_kind, "
        f"' is not {format}') WHEN _decoded.error IS NOT NULL THEN _decoded.error "
        "WHEN coalesce(octet_length(body), 0) = 0 THEN 'the body is empty' END AS _error",
    )


def parse(
    frame: DataFrame,
    format: Format,
    columns: t.StructType,
    field_lists: Sequence[tuple[str, ...]] = (),
) -> DataFrame:
    """Parse `_text` into `columns`.

    Adds the columns, `_good` (True if the text is of the format and every value of its type),
    `_reason` (why it is not) and `_unknown` (number of fields that no column has; JSON only), and
    removes `_text` and `_error`. `field_lists` is the result of `common_field_lists`.

    Reasons cost as much as parsing: Spark leaves them out if nothing that a query returns depends
    on `_reason`.
    """
    parsers: dict[Format, Callable[[DataFrame, t.StructType], DataFrame]] = {
        Format.JSON: lambda frame, columns: _parse_json(frame, columns, field_lists),
        Format.CSV: _parse_csv,
        Format.XML: _parse_xml,
        Format.TEXT: _parse_text,
    }
    return parsers[format](frame, columns).drop(*_INTERNAL)


def common_field_lists(messages: DataFrame) -> list[tuple[str, ...]]:
    """Return lists of field names that JSON bodies of these messages have, for `parse`.

    Most producers write all bodies with the same fields in the same order. To compare a body's
    names with a known list costs a tenth of looking for names that occur twice or that no column
    has. The result is a sample: a body with other names is parsed alike, at a higher cost.
    """
    sample = messages.limit(SAMPLE).selectExpr("string(body) AS _text")
    sampled_lists = [tuple(names) for (names,) in sample.select(f.expr(_FIELDS)).collect() if names]
    field_lists = [
        names
        for names in dict.fromkeys(sampled_lists)
        if len(set(names)) == len(names) and sum(map(len, names)) <= MAX_CHARACTERS
    ]
    return field_lists[:MAX_LISTS]


# --- formats -------------------------------------------------------------------------------------


def _parse_json(
    frame: DataFrame, columns: t.StructType, field_lists: Sequence[tuple[str, ...]]
) -> DataFrame:
    """Parse JSON objects.

    Spark's parsers ignore text after the first value. So the names of the fields are
    read from a text whose last byte, the closing brace, is replaced by one more field, NONCE: it
    is the last name, unless the object ends before the text does.
    """
    known_names = (*columns.names, _NONCE)
    listed = f.lit(None)
    for names in reversed(field_lists):
        unknown = len(set(names) - set(known_names))
        listed = f.when(f.col("_keys") == _literals(names), f.lit(unknown)).otherwise(listed)
    others = f.array_size(f.array_except("_keys", _literals(known_names)))
    bounded = _without_costly_numbers(
        columns,
        f.to_json(f.try_parse_json("_text")),  # its numbers are at most DOUBLE
        lambda text, schema: f.from_json(text, schema, _TOKENS),
    )
    keys = f.coalesce(f.expr(_FIELDS), f.expr(_NO_FIELDS))
    frame = _with_object(frame.withColumn("_keys", keys), columns, bounded)
    # Each alias may refer to those before it.
    frame = frame.select(
        "*",
        "_object.*",
        listed.cast("INT").alias("_listed"),
        f.coalesce("_listed", others, f.lit(0)).alias("_unknown"),
        f.expr("_listed IS NULL AND size(_keys) > size(array_distinct(_keys))").alias("_twice"),
        f.expr(f"_object IS NOT NULL AND _object.{_CORRUPT} IS NULL").alias("_valid"),
        f.expr(f"coalesce(element_at(_keys, -1) = '{_NONCE}', false)").alias("_ended"),
    )
    valid = f.col("_valid") & f.col("_ended") & f.col("_error").isNull()
    misread = _misread_times(columns, lambda text, schema: f.from_json(text, schema, _TOKENS))
    twice = f.col("_twice") | _repeated_keys(columns)
    unpaired = _contains(columns, _SUBSTITUTE) & f.col("_text").rlike(_UNPAIRED)
    # To validate all bodies would cost a third of their parsing.
    utf8 = ~_contains(columns, _REPLACED) | f.is_valid_utf8("_text")
    good = valid & ~twice & ~_infinite(columns) & utf8 & ~unpaired & ~misread
    raw = f.when(~f.col("_good"), f.from_json("_text", "MAP<STRING, STRING>", _TOKENS))
    reasons = [
        _nested_type_error(field, bounded)
        if isinstance(field.dataType, (t.ArrayType, t.MapType, t.StructType))
        else _type_error(field, f.col("_raw")[field.name])
        for field in columns
    ]
    no_object = f.json_object_keys("_text").isNull() & f.try_parse_json("_text").isNotNull()
    reason = _reason(
        {
            "the body is JSON, but no object": no_object,
            _NOT_JSON: f.col("_raw").isNull(),
            "a field occurs more than once": twice,
            "there is text after the JSON object": f.col("_valid") & ~f.col("_ended"),
            _COSTLY_REASON: bounded.isNull(),
            _MISREAD_REASON: misread,
            _UNPAIRED_REASON: unpaired,
        },
        f.coalesce(_join_reasons(reasons), f.lit(_NOT_JSON)),
    )
    return frame.select(
        "*",
        f.coalesce(good, f.lit(False)).alias("_good"),
        raw.alias("_raw"),
        reason.alias("_reason"),
    )


def _with_object(frame: DataFrame, columns: t.StructType, text: Column) -> DataFrame:
    """Add `_object`, the values of a JSON object as a structure of the columns.

    The values for DECIMAL are those of `text`; see `_variants`."""
    record_type = t.StructType([*columns.fields, t.StructField(_CORRUPT, t.StringType())])
    exact = f.from_json(text, record_type, _STRICT)
    variants = _variants(record_type)
    if variants is None:
        return frame.withColumn("_object", exact)
    frame = frame.withColumn("_object", f.from_json("_text", variants, _STRICT))
    frame = frame.withColumn("_plain", f.struct(*map(_plain_value, record_type)))
    plain = f.when(_all_plain(record_type), f.col("_plain"))
    return frame.withColumn("_object", plain.otherwise(exact))


def _parse_csv(frame: DataFrame, columns: t.StructType) -> DataFrame:
    """Parse bodies of one CSV record each."""
    wrong_count = f"the body does not have {len(columns)} fields"
    # before the text is changed, which decodes it
    utf8 = f.when(~f.is_valid_utf8("_text"), f.lit(_NOT_UTF8))
    many = f.when(f.expr(TOO_MANY_FIELDS), f.lit(wrong_count))
    frame = frame.withColumn("_error", f.coalesce("_error", utf8, many))
    text = f.when(f.col("_error").isNull(), f.rtrim("_text", f.lit("\r\n")))
    frame = frame.withColumn("_text", text)
    lines = f.expr("instr(_text, '\"') = 0 AND _text RLIKE '[\\r\\n]'")
    quotes = f.expr("(length(_text) - length(replace(_text, '\"', ''))) % 2 = 1")
    return _parse_strings(
        frame,
        columns,
        lambda text, schema: f.from_csv(text, schema.toDDL(), _CSV),
        {"the body has more than one line": lines, "a quote is not closed": quotes},
        wrong_count,
    )


def _parse_xml(frame: DataFrame, columns: t.StructType) -> DataFrame:
    """Parse bodies of one XML document each."""
    return _parse_strings(
        frame,
        columns,
        lambda text, schema: f.from_xml(text, schema.toDDL(), _XML),
        {"the body is not one XML document": f.expr(f"NOT _text RLIKE '{_XML_END}'")},
        "the body is not XML",
    )


def _parse_text(frame: DataFrame, columns: t.StructType) -> DataFrame:
    (column,) = columns
    return frame.select(
        "*",
        f.expr("if(_error IS NULL, try_validate_utf8(_text), NULL)").alias(
            column.name, metadata=column.metadata
        ),
        f.lit(0).alias("_unknown"),
        f.expr("_error IS NULL AND coalesce(is_valid_utf8(_text), false)").alias("_good"),
        _reason({}, f.lit(None)).alias("_reason"),
    )


def _parse_strings(
    frame: DataFrame,
    columns: t.StructType,
    parser: Callable[[Column, t.StructType], Column],
    invalid: Mapping[str, Column],
    otherwise: str,
) -> DataFrame:
    """Parse a format whose values are all written as text.

    parser     returns the columns of a text
    invalid    conditions that make a text invalid, by the reason
    otherwise  reason for a text that the parser rejects although each value has its type
    """
    record_type = t.StructType([*columns.fields, t.StructField(_CORRUPT, t.StringType())])
    text_type = t.StructType([t.StructField(field.name, t.StringType()) for field in columns])
    bounded = _without_costly_numbers(columns, f.col("_text"), parser)
    frame = frame.withColumn("_parsed", parser(bounded, record_type))
    parsed = f.col("_parsed").isNotNull() & f.col("_parsed")[_CORRUPT].isNull()
    good = parsed & f.col("_error").isNull() & ~reduce(or_, invalid.values())
    frame = frame.select(
        "*",
        "_parsed.*",
        f.coalesce(good & f.is_valid_utf8("_text"), f.lit(False)).alias("_good"),
        f.lit(0).alias("_unknown"),
    )
    misread = _misread_times(columns, parser)
    frame = frame.withColumn("_good", f.col("_good") & ~_infinite(columns) & ~misread)
    frame = frame.withColumn("_raw", f.when(~f.col("_good"), parser(f.col("_text"), text_type)))
    wrong = _join_reasons([_type_error(field, f.col("_raw")[field.name]) for field in columns])
    conditions = {**invalid, _COSTLY_REASON: bounded.isNull(), _MISREAD_REASON: misread}
    return frame.withColumn("_reason", _reason(conditions, f.coalesce(wrong, f.lit(otherwise))))


# --- helpers of the formats ----------------------------------------------------------------------


def _reason(conditions: Mapping[str, Column], otherwise: Column) -> Column:
    """Return the reason why a text is not good: the first whose condition is true."""
    reason = (
        f.when(f.col("_good"), None)
        .when(f.col("_error").isNotNull(), f.col("_error"))
        .when(~f.is_valid_utf8("_text"), f.lit(_NOT_UTF8))
    )
    for text, condition in conditions.items():
        reason = reason.when(condition, f.lit(text))
    return reason.otherwise(otherwise)


def _literals(names: Sequence[str]) -> Column:
    return f.array(*(f.lit(name) for name in names))


def _variants(columns: t.StructType) -> t.StructType | None:
    """Return the columns with VARIANT for DECIMAL; None if no column, or not only columns
    themselves are DECIMAL.

    To search all texts for costly numbers would take longer than to parse them. So values for
    DECIMAL are read as variants first, of which Spark does not write out the digits. Only if one is
    not written in plain digits, the text is searched, and parsed once more.
    """
    variants = t.StructType(
        [
            t.StructField(item.name, t.VariantType())
            if isinstance(item.dataType, t.DecimalType)
            else item
            for item in columns
        ]
    )
    return None if variants == columns or DECIMAL.search(variants.json()) else variants


def _all_plain(columns: t.StructType) -> Column:
    """Return the condition that `_plain` has all values of `_object`, whose DECIMAL are
    variants."""
    names = [quoted(item.name) for item in columns if isinstance(item.dataType, t.DecimalType)]
    plain = (
        f"(_object.{name} IS NULL OR is_variant_null(_object.{name}) OR _plain.{name} IS NOT NULL)"
        for name in names
    )
    return f.expr(" AND ".join(["_object IS NOT NULL", *plain]))


def _plain_value(field: t.StructField) -> Column:
    """Return a value of `_object` as its column; null for a DECIMAL that is not written in plain
    digits, or out of range."""
    name = f"_object.{quoted(field.name)}"
    if not isinstance(field.dataType, t.DecimalType):
        return f.col(name)
    kind = f"schema_of_variant({name})"
    return f.expr(
        f"CASE WHEN left({kind}, 7) IN ('DECIMAL', 'BIGINT') "
        f"OR ({kind} = 'STRING' AND string({name}) RLIKE r'{_DIGITS}') "
        f"THEN try_variant_get({name}, '$', '{field.dataType.simpleString()}') END"
    ).alias(field.name, metadata=field.metadata)


def _without_costly_numbers(
    columns: t.StructType, equivalent: Column, parser: Callable[[Column, t.StructType], Column]
) -> Column:
    """Return the text to be parsed; null if a value for DECIMAL is costly.

    equivalent  text to be parsed instead if there is a costly number anywhere
    parser      returns the columns of a text
    """
    text = f.col("_text")
    if not DECIMAL.search(columns.json()):
        return text
    values = parser(equivalent, _as_written(columns))
    costly = _any_value(values, columns, "decimal", lambda value: value.rlike(_COSTLY))
    return f.when(text.rlike(_COSTLY), f.when(~costly, equivalent)).otherwise(text)


def _misread_times(
    columns: t.StructType, parser: Callable[[Column, t.StructType], Column]
) -> Column:
    """Return the condition that Spark takes a value for another TIMESTAMP than was meant.

    parser  returns the columns of a text
    """
    if "timestamp" not in _TYPES.findall(columns.json()):
        return f.lit(False)
    text = f.col("_text")
    misread = _any_value(
        parser(text, _as_written(columns)),
        columns,
        "timestamp",
        lambda value: (
            value.rlike(_MISREAD_TIME)
            | f.coalesce(f.abs(value.try_cast("BIGINT")) > _MAX_SECONDS, f.lit(False))
        ),
    )
    return f.when(text.rlike(_MISREAD_SUSPECT), misread).otherwise(f.lit(False))


def _as_written(columns: t.StructType) -> t.StructType:
    """Return the columns with STRING for DECIMAL and TIMESTAMP, also in nested types."""
    return t.StructType.fromJson(json.loads(_TYPES.sub("string", columns.json())))


def _infinite(fields: Iterable[t.StructField]) -> Column:
    """Return the condition that a number is beyond the range of its type, or NaN, which is greater
    than any number."""
    columns = t.StructType([*fields])
    values = f.struct(*map(quoted, columns.names))
    infinity = f.lit(float("inf"))
    return _any_value(values, columns, "double|float", lambda value: f.abs(value) >= infinity)


def _repeated_keys(columns: t.StructType) -> Column:
    """Return the condition that a map has a key twice, as Spark's parser leaves it: functions of
    maps raise an error for it."""
    values = f.struct(*map(quoted, columns.names))

    def repeated(value: Column) -> Column:
        keys = f.map_keys(value)
        return f.size(keys) > f.size(f.array_distinct(keys))

    return _any_value(values, columns, "map", repeated)


def _any_value(
    value: Column, kind: t.DataType, types: str, condition: Callable[[Column], Column]
) -> Column:
    """Return the condition that a value, or any value within it, is of one of the types and fulfils
    a condition.

    types      regular expression that matches the names of the types; of those with parts, only of
               maps
    condition  returns the condition for a value; null counts as false
    """
    if not re.search(types, kind.simpleString()):
        return f.lit(False)
    if isinstance(kind, t.StructType):
        parts = [
            _any_value(value.getField(part.name), part.dataType, types, condition) for part in kind
        ]
        return reduce(or_, parts)
    if isinstance(kind, t.MapType):
        entry = t.StructType().add("key", kind.keyType).add("value", kind.valueType)
        within = _any_value(f.map_entries(value), t.ArrayType(entry), types, condition)
        is_meant = re.match(types, "map")
        return within | f.coalesce(condition(value), f.lit(False)) if is_meant else within
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        value = f.exists(value, lambda item: _any_value(item, element, types, condition))
    else:
        value = condition(value)
    return f.coalesce(value, f.lit(False))


def _contains(columns: t.StructType, character: str) -> Column:
    """Return the condition that a text, or one within a value, contains a character."""
    values = f.struct(*map(quoted, columns.names))
    return _any_value(values, columns, "string", lambda value: f.contains(value, f.lit(character)))


def _type_error(field: t.StructField, raw: Column) -> Column:
    """Return the reason why a value is not of its column's type; null if it is."""
    wrong = (raw.isNotNull() & f.col(quoted(field.name)).isNull()) | _infinite([field])
    if isinstance(field.dataType, t.StringType):
        wrong = f.lit(False)
    kind = field.dataType.simpleString().upper()
    value = f.substring(raw, 1, MAX_REASON_VALUE)
    return f.when(
        wrong, f.concat(f.lit(f"{field.name}: "), value, f.lit(f" is not of type {kind}"))
    )


def _nested_type_error(field: t.StructField, text: Column) -> Column:
    """Return the reason why a nested JSON value is not of its column's type; null if it is."""
    record_type = t.StructType([field, t.StructField(_CORRUPT, t.StringType())])
    kind = field.dataType.simpleString()[:MAX_REASON_VALUE]
    return f.when(
        f.from_json(text, record_type, _STRICT)[_CORRUPT].isNotNull() | _infinite([field]),
        f.lit(f"{field.name}: the value is not of type {kind}"),
    )


def _join_reasons(reasons: list[Column]) -> Column:
    """Return the reasons that are not null as one text; null if there are none."""
    return f.nullif(f.concat_ws("; ", *reasons), f.lit(""))

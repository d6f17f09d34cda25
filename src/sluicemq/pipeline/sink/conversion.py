"""Conversion of Arrow batches to the broker's rows, one column at a time.

Values that cannot be converted are recorded as errors: they map the index of a row in the batch to
a text, and only the first error of a row is kept. The broker rejects rows with an error, as it
rejects those that are invalid for other reasons, such as a body that is no JSON.

The column `body` becomes body bytes and body kinds:

    column               allowed body_kind   default
    string               text, json          text
    binary               any                 bytes
    map<string,string>   map (MapMessage)    map

The columns `properties` and `property_types` become typed properties (_READERS); those without a
type are text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise, repeat
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from sluicemq.model.destination import Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import (
    COMPRESSED_SIZE,
    DEFAULT_PRIORITY,
    UNCOMPRESSED_SIZE,
    BodyKind,
    Durability,
    Property,
)
from sluicemq.model.rows import MAX_NAME_BYTES, MAX_PROPERTIES_BYTES, MAX_TIME, Row
from sluicemq.model.rows import row as row_of
from sluicemq.pipeline.sink.options import SinkOptions
from sluicemq.protocols.java import MAX_SIZE, SerialError, dumps_map, inflate
from sluicemq.protocols.transcoding import COMPRESSION

T = TypeVar("T")
RowErrors = dict[int, str]
Properties = dict[str, Property]
Values = tuple[Any, ...]
"""Fields of model.rows.Row in order; trailing fields may be missing."""


# --- values ------------------------------------------------------------------------------------


class InvalidValue(ValueError):
    """Raised for a value that a message cannot have; the text has the reason."""


def convert_distinct(
    column: pa.Array, errors: RowErrors, read: Callable[[Any], T], missing: T
) -> Iterable[T]:
    """Convert each value with `read`, which may raise InvalidValue; null becomes `missing`.

    Each distinct value is converted once, so this suits columns with few of them.
    """
    encoded = column.dictionary_encode()
    values: list[T] = []
    reasons: dict[int, str] = {}
    for value in encoded.dictionary.to_pylist():
        try:
            values.append(read(value))
        except InvalidValue as error:
            reasons[len(values)] = str(error)
            values.append(missing)
    indices = encoded.indices.fill_null(len(values)).to_pylist()
    values.append(missing)
    if reasons:
        for row, index in enumerate(indices):
            if index in reasons:
                errors.setdefault(row, reasons[index])
    return [values[index] for index in indices]


def _choice(choices: Mapping[str, T], problem: str) -> Callable[[str], T]:
    """Return a function for `convert_distinct` that accepts the names of `choices`."""

    def read(name: str) -> T:
        if name not in choices:
            raise InvalidValue(f"{problem} {name!r:.60}")
        return choices[name]

    return read


def _priority(priority: int) -> int:
    if not 0 <= priority <= 9:
        raise InvalidValue(f"the priority must be 0 to 9, not {priority}")
    return priority


def _name(text: str) -> str | bytes:
    """Return a destination's name, as bytes if it is not UTF-8."""
    if not text:
        raise InvalidValue("the row has no destination")
    raw = text.encode()
    if len(raw) > MAX_NAME_BYTES:
        raise InvalidValue(f"the destination's name has {len(raw)} bytes")
    decoded = _ESCAPED_BYTE.sub(lambda escape: bytes.fromhex(escape[1].decode()), raw)
    return text if decoded == raw else decoded


_ESCAPED_BYTE: Final = re.compile(rb"\\x([89a-f][0-9a-f])")
"""Escape of a byte that is not UTF-8 in a name, as the source writes it."""


def _texts(column: pa.Array, errors: RowErrors) -> list[str]:
    return [text or "" for text in column.to_pylist()]


def _milliseconds(column: pa.Array, errors: RowErrors, reason: str) -> list[int]:
    """Return timestamps in ms since 1970, or durations in ms; 0 for null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz="UTC"), safe=False)
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    for row in np.flatnonzero((numbers < 0) | (numbers > MAX_TIME)).tolist():
        errors.setdefault(row, reason)
    times: list[int] = numbers.clip(0, MAX_TIME).tolist()
    return times


_topic: Final = _choice({"queue": False, "topic": True}, "destination_kind is queue or topic, not")
_body_kind: Final = _choice(
    {kind.name.lower(): int(kind) for kind in BodyKind}, "there is no body_kind"
)
_durability: Final = _choice(
    {
        **{durability.name.lower(): int(durability) for durability in Durability},
        # its name in rows that were read from a journal
        "transient": int(Durability.NONE),
    },
    "durability is none, lazy or sync, not",
)


# --- bodies ------------------------------------------------------------------------------------

_UNKNOWN: Final = -1
"""Code of a row without a body_kind."""


def read_bodies(
    column: pa.Array, kinds: pa.Array | None, errors: RowErrors
) -> tuple[list[bytes], list[int]]:
    """Return the bytes of each body (b"" for null) and its kind."""
    values, default_kind, allowed_kinds = _bytes(column, errors)
    bodies = [body or b"" for body in values]
    if kinds is None and not column.null_count:
        codes = [int(default_kind)] * len(bodies)
    else:
        codes = []
        row_kinds = (
            repeat(_UNKNOWN)
            if kinds is None
            else convert_distinct(kinds, errors, _body_kind, _UNKNOWN)
        )
        for row, (body, kind) in enumerate(zip(values, row_kinds, strict=False)):
            if kind > BodyKind.NONE and (body is None or kind not in allowed_kinds):
                name = BodyKind(kind).name.lower()
                problem = (
                    f"there is no body of body_kind {name}"
                    if body is None
                    else f"a body of type {column.type} cannot be of body_kind {name}"
                )
                errors.setdefault(row, problem)
            actual_kind = default_kind if kind == _UNKNOWN else kind
            codes.append(int(BodyKind.NONE if body is None else actual_kind))
    return bodies, codes


def _bytes(
    column: pa.Array, errors: RowErrors
) -> tuple[list[bytes | None], BodyKind, Set[BodyKind]]:
    """Return the bytes of each body, None for null, with their default and their allowed kinds.

    A map is encoded as a MapMessage."""
    if pa.types.is_map(column.type):
        maps = [_map(entries, row, errors) for row, entries in enumerate(column.to_pylist())]
        return maps, BodyKind.MAP, {BodyKind.MAP}
    raw = column.cast(pa.large_binary()).to_pylist()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return raw, BodyKind.TEXT, {BodyKind.TEXT, BodyKind.JSON}
    return raw, BodyKind.BYTES, set(BodyKind)


def _map(entries: list[tuple[str, str]] | None, row: int, errors: RowErrors) -> bytes | None:
    if entries is None:
        return None
    try:
        return dumps_map(dict(entries))
    except SerialError as error:
        errors.setdefault(row, f"the body is not a MapMessage: {error}")
        return b""


# --- properties --------------------------------------------------------------------------------

_INTEGER: Final = re.compile(r"[+-]?\d{1,20}\Z", re.ASCII)


def _integer(text: str) -> int:
    if not _INTEGER.match(text) or not -(1 << 63) <= (value := int(text)) < 1 << 64:
        raise ValueError
    return value


_READERS: Final[dict[str, Callable[[str], Property]]] = {
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "integer": _integer,
    "real": float,
    "text": str,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "null": lambda _: None,
}
"""Conversion of the text of a property, by its type; integers are of 64 bits, signed or not."""


def read_properties(
    column: pa.Array, types: pa.Array | None, errors: RowErrors
) -> list[Properties | None]:
    """Return the properties of each row; None if it has none."""
    result: list[Properties | None] = []
    typed = repeat({}) if types is None else _maps(types)
    for row, (properties, kinds) in enumerate(zip(_maps(column), typed, strict=False)):
        for name, kind in kinds.items():
            if name in properties:
                try:
                    properties[name] = _value(name, properties[name], kind)
                except InvalidValue as error:
                    errors.setdefault(row, str(error))
        result.append(properties or None)
    return result


def _maps(column: pa.Array) -> Iterator[dict[str, Any]]:
    """Yield the map of each row; the column may be a slice of another."""
    ends = column.offsets.to_pylist()
    span = slice(ends[0], ends[-1])
    entries = zip(column.keys[span].to_pylist(), column.items[span].to_pylist(), strict=True)
    return (dict(islice(entries, end - start)) for start, end in pairwise(ends))


def _value(name: str, text: str | None, kind: str | None) -> Property:
    if text is None or kind is None:
        return text
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidValue(f"the property {name!r:.60} has an unknown type: {kind!r:.60}")
    try:
        return reader(text)
    except (ValueError, LookupError):
        raise InvalidValue(
            f"the property {name!r:.60} is not of type {kind}: {text!r:.60}"
        ) from None


# --- rows --------------------------------------------------------------------------------------

_FIELDS: Final = Row.__struct_fields__
_DEFAULTS: Final = dict(zip(_FIELDS, row_of(""), strict=True))
_MAX_REJECTED_BODY: Final = 65_536

_READERS_BY_COLUMN: Final[dict[str, Callable[[pa.Array, RowErrors], Iterable[object]]]] = {
    "priority": partial(convert_distinct, read=_priority, missing=DEFAULT_PRIORITY),
    "ttl": partial(_milliseconds, reason="ttl is negative or far too long"),
    "expiration": partial(_milliseconds, reason="expiration is before 1970 or after 9999"),
    "deliver_at": partial(_milliseconds, reason="deliver_at is before 1970 or after 9999"),
    "message_id": _texts,
    "correlation_id": _texts,
    "type": _texts,
    "durability": partial(convert_distinct, read=_durability, missing=int(Durability.SYNC)),
}
"""Conversion of each column that becomes the field of the same name."""


class Converter:
    """Converts the batches of one schema to rows."""

    def __init__(self, column_indexes: Mapping[str, int], options: SinkOptions) -> None:
        """Prepare a conversion; `column_indexes` is the result of `options.column_indexes`."""
        self._column_indexes = column_indexes
        self._options = options
        present = {"destination", "topic", "body", "body_kind"} | set(column_indexes)
        if "reply_to" in column_indexes:
            present.add("reply_topic")
        self._fields = _FIELDS[: 1 + max(map(_FIELDS.index, present & set(_FIELDS)))]

    def convert(self, batch: pa.RecordBatch) -> list[Values]:
        """Return the rows in the batch's order.

        A row with an error has the fields that could be converted, and its error (`name_of`)."""
        columns = {name: batch.column(index) for name, index in self._column_indexes.items()}
        count = batch.num_rows
        errors: RowErrors = {}
        values: dict[str, Iterable[object]] = {}
        values["destination"], values["topic"] = self._destinations(columns, count, errors)
        body = columns.get("body", pa.nulls(count, pa.binary()))
        bodies, kinds = read_bodies(body, columns.get("body_kind"), errors)
        properties = columns.get("properties")
        if properties is not None:
            typed = read_properties(properties, columns.get("property_types"), errors)
            _check_size(properties, typed, errors)
            _inflate(bodies, typed)
            values["properties"] = typed
        values["body"], values["body_kind"] = bodies, kinds
        for name, reader in _READERS_BY_COLUMN.items():
            if name in columns:
                values[name] = reader(columns[name], errors)
        if "reply_to" in columns:
            replies = columns["reply_to"].to_pylist()
            values["reply_to"] = [name and name.removeprefix("topic:") for name in replies]
            values["reply_topic"] = [bool(name) and name.startswith("topic:") for name in replies]
        if count and max(map(len, bodies)) > MAX_SIZE:
            _check_bodies(bodies, errors)
        fields = (values.get(name) or repeat(_DEFAULTS[name], count) for name in self._fields)
        rows = list(zip(*fields, strict=False))
        for row, reason in errors.items():
            rows[row] = ([rows[row][0], reason], *rows[row][1:])
        return rows

    def _destinations(
        self, columns: Mapping[str, pa.Array], count: int, errors: RowErrors
    ) -> tuple[Iterable[object], Iterable[object]]:
        column = columns.get("destination", pa.nulls(count, pa.string()))
        texts = column.fill_null(self._options.destination.name)
        names: Iterable[str | bytes] = convert_distinct(texts, errors, _name, "")
        # the option's topic applies only to rows without a destination
        is_topic = self._options.destination.kind is Kind.TOPIC
        defaults = [is_topic and is_null for is_null in column.is_null().to_pylist()]
        kinds = columns.get("destination_kind")
        topics = repeat(None) if kinds is None else convert_distinct(kinds, errors, _topic, None)
        return names, [
            default if topic is None else topic
            for topic, default in zip(topics, defaults, strict=False)
        ]


def _check_bodies(bodies: list[bytes], errors: RowErrors) -> None:
    """Record an error for each body over the limit and truncate it for the dead letter.

    Clients of JMQ have the lowest limit of all protocols, MAX_SIZE."""
    for row, size in enumerate(map(len, bodies)):
        if size > MAX_SIZE:
            errors.setdefault(row, f"the body has {size} bytes, {MAX_SIZE} are the most")
            bodies[row] = bodies[row][:_MAX_REJECTED_BODY]


def _check_size(column: pa.Array, properties: list[Properties | None], errors: RowErrors) -> None:
    """Record an error for properties over the limit and omit them: a part has a limit, too."""
    if column.nbytes <= MAX_PROPERTIES_BYTES:
        return
    for row, values in enumerate(properties):
        if values and (size := len(msgspec.msgpack.encode(values))) > MAX_PROPERTIES_BYTES:
            errors.setdefault(row, f"the properties have {size} bytes")
            properties[row] = None


def _inflate(bodies: list[bytes], properties: list[Properties | None]) -> None:
    """Decompress bodies that a JMQ client compressed.

    The sink does not write the flag in the frame by which other clients recognise compression."""
    for row, values in enumerate(properties):
        if values and values.get(COMPRESSED_SIZE) == len(bodies[row]):
            size = values.get(UNCOMPRESSED_SIZE)
            plain_size = size if isinstance(size, int) else None
            with suppress(ProtocolError):
                bodies[row] = inflate(bodies[row], plain_size, MAX_SIZE)
                properties[row] = {
                    name: value for name, value in values.items() if name not in COMPRESSION
                }

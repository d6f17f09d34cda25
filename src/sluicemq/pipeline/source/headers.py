"""Columns of the rarely set fields of messages (journal/format.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sluicemq.journal.format import unescape
from sluicemq.model.destination import Kind
from sluicemq.pipeline.options import MAX_NUMBER
from sluicemq.pipeline.schema import KAFKA_HEADERS, escape_invalid, property_text
from sluicemq.pipeline.source.journal_storage import Integers


class Fields(NamedTuple):
    """Rarely set fields of a message, in the order of journal.format.encode_meta."""

    message_id: str
    correlation_id: str
    reply_to: tuple[int, str] | None
    type: str
    properties: dict[str, Any] | list[Any] | None
    native: bytes
    routes: list[int]
    deliver_at: int
    client_timestamp: int | None


_EMPTY: Final = Fields("", "", None, "", None, b"", [], 0, None)
"""Fields of a message that sets none of them."""

_NAMES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "real",
    str: "text",
    bytes: "bytes",
    type(None): "null",
}

_all: Final = msgspec.msgpack.Decoder(list[Fields], ext_hook=unescape)
_one: Final = msgspec.msgpack.Decoder(ext_hook=unescape)
"""Fallback decoder for metas in which `_all` finds text that is not UTF-8."""
_ARRAY: Final = b"\xdd"
"""Type byte of a MessagePack array with a 32-bit length."""
_FAILURES: Final = (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError)


def array_of(count: int, values: bytes | memoryview) -> bytes:
    """Return concatenated MessagePack values as one MessagePack array."""
    return b"".join((_ARRAY, count.to_bytes(4, "big"), values))


def decode_fields(metas: pa.Array, failed: Callable[[int, Exception], None]) -> Sequence[Fields]:
    """Decode all metas in one call.

    For a meta that cannot be decoded, call `failed(row, error)`, which may raise; otherwise that
    message has no rarely set fields.
    """
    data = metas.buffers()[2]
    try:
        return _all.decode(array_of(len(metas), memoryview(data) if data else b""))
    except _FAILURES:
        pass
    all_fields: list[Fields] = []
    for row, meta in enumerate(metas.to_pylist()):
        try:
            fields = msgspec.convert(_one.decode(meta), Fields)
        except _FAILURES as error:
            failed(row, error)
            fields = _EMPTY
        all_fields.append(fields)
    return all_fields


class Headers:
    """Rarely set fields of messages, by column; row n of a column is `fields[n]`."""

    def __init__(self, fields: Sequence[Fields]) -> None:
        columns = list(zip(*fields, strict=True)) or [()] * len(Fields._fields)
        self._columns: dict[str, tuple[Any, ...]] = dict(zip(Fields._fields, columns, strict=True))

    def text(self, name: str) -> pa.Array:
        """Return the column message_id, correlation_id or type; null if the message has none."""
        return _texts([text or None for text in self._columns[name]])

    def reply_to(self) -> pa.Array:
        """Return the reply destinations; a topic is written `topic:NAME`, a queue `NAME`."""
        return _texts(
            [
                None if to is None else to[1] if to[0] == Kind.QUEUE else f"topic:{to[1]}"
                for to in self._columns["reply_to"]
            ]
        )

    def moments(self, name: str) -> Integers:
        """Return the column deliver_at or client_timestamp in ms; 0 where the message has none."""
        # MessagePack has integers up to 2**64 - 1
        return np.array([min(ms or 0, MAX_NUMBER) for ms in self._columns[name]], np.int64)

    def properties(self) -> tuple[pa.Array, pa.Array]:
        """Return the columns `properties` and `property_types`."""
        offsets, names, values = self._pairs()
        if set(map(type, values)) == {str}:
            # usual, and saves a call for each property
            texts, kinds = _texts(values), pa.repeat("text", len(values))
        else:
            texts = _texts([property_text(value) for value in values])
            kinds = pa.array([_NAMES.get(type(value), "text") for value in values], pa.string())
        keys = _texts(names)
        starts = pa.array(offsets, pa.int32())
        return (
            pa.MapArray.from_arrays(starts, keys, texts),
            pa.MapArray.from_arrays(starts, keys, kinds),
        )

    def kafka(self) -> pa.Array:
        """Return the column `headers` of schema.KAFKA."""
        offsets, names, values = self._pairs()
        pairs = pa.StructArray.from_arrays(
            [_texts(names), pa.array(map(_header_bytes, values), pa.binary())],
            fields=list(KAFKA_HEADERS.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs, type=KAFKA_HEADERS)

    def _pairs(self) -> tuple[list[int | None], list[str], list[Any]]:
        """Return the start of each message's properties, None = none; their names and values."""
        offsets: list[int | None] = []
        names: list[str] = []
        values: list[Any] = []
        for properties in self._columns["properties"]:
            if not properties:
                offsets.append(None)
                continue
            offsets.append(len(names))
            if type(properties) is list:  # some name or value is not UTF-8
                properties = {escape_invalid(str(name)): value for name, value in properties}
            names += properties
            values += properties.values()
        offsets.append(len(names))
        return offsets, names, values


def _header_bytes(value: object) -> bytes | None:
    """Return a property's value as the bytes of a Kafka header: text as UTF-8."""
    if type(value) is bytes:
        return value
    text = property_text(value)
    return None if text is None else escape_invalid(text).encode()


def _texts(values: Iterable[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array(
            [None if value is None else escape_invalid(value) for value in values], pa.string()
        )

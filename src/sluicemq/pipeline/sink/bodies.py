"""Conversion of the column `body` to body bytes and body kinds.

    column               allowed body_kind   default
    string               text, json          text
    binary               any                 bytes
    map<string,string>   map (MapMessage)    map

The sink verifies that text and JSON are UTF-8 and that JSON is valid, because the broker delivers
them unchanged to clients of other protocols. The broker does not decode maps, streams and objects.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

import msgspec
import pyarrow as pa

from sluicemq.model.message import BodyKind
from sluicemq.pipeline.sink.values import Faults, InvalidValue, abbreviated, by_value
from sluicemq.protocols.java import SerialError, dumps_map

_KINDS: Final = {kind.name.lower(): kind for kind in BodyKind}
_UNKNOWN: Final = -1
"""Code of a row without a body_kind."""
_OF_TEXT: Final = frozenset({BodyKind.TEXT, BodyKind.JSON})
_OF_MAP: Final = frozenset({BodyKind.MAP})
_OF_BINARY: Final = frozenset(BodyKind)

_json: Final = msgspec.json.Decoder(msgspec.Raw)


def read_bodies(
    column: pa.Array, kinds: pa.Array | None, faults: Faults
) -> tuple[list[bytes], list[int]]:
    """Return the bytes of each body (b"" for null) and its kind."""
    usual, allowed = _fitting(column.type)
    read = _bytes(column, faults)
    bodies = [body or b"" for body in read]
    if kinds is None and not column.null_count:
        found = [int(usual)] * len(bodies)
    else:
        found = []
        named = repeat(_UNKNOWN) if kinds is None else by_value(kinds, _kind, _UNKNOWN, faults)
        for row, (body, kind) in enumerate(zip(read, named, strict=False)):
            if body is None:
                if kind > BodyKind.NONE:
                    faults.setdefault(row, f"there is no body of body_kind {_name(kind)}")
                kind = BodyKind.NONE
            elif kind == _UNKNOWN:
                kind = usual
            elif kind == BodyKind.NONE:
                if body:
                    faults.setdefault(row, "there is a body, but body_kind is none")
            elif kind not in allowed:
                fault = f"a body of type {column.type} cannot be of body_kind {_name(kind)}"
                faults.setdefault(row, fault)
            found.append(int(kind))
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        _check_text(column, bodies, found, faults)
    _check_json(bodies, found, faults)
    return bodies, found


def _fitting(kind: pa.DataType) -> tuple[BodyKind, frozenset[BodyKind]]:
    if pa.types.is_map(kind):
        return BodyKind.MAP, _OF_MAP
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return BodyKind.BYTES, _OF_BINARY
    return BodyKind.TEXT, _OF_TEXT


def _kind(name: str) -> int:
    kind = _KINDS.get(name)
    if kind is None:
        raise InvalidValue(f"there is no body_kind {abbreviated(name)}")
    return kind


def _name(kind: int) -> str:
    return BodyKind(kind).name.lower()


def _bytes(column: pa.Array, faults: Faults) -> list[bytes | None]:
    """Return the bytes of each body, None for null; a map is encoded as a MapMessage."""
    if pa.types.is_map(column.type):
        return [_map(entries, row, faults) for row, entries in enumerate(column.to_pylist())]
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _map(entries: list[tuple[str, str]] | None, row: int, faults: Faults) -> bytes | None:
    if entries is None:
        return None
    try:
        return dumps_map(dict(entries))
    except SerialError as error:
        faults.setdefault(row, f"the body is no MapMessage: {error}")
        return b""


def _check_text(column: pa.Array, bodies: list[bytes], kinds: list[int], faults: Faults) -> None:
    """Record a fault for each text or JSON body that is not UTF-8."""
    try:
        column.cast(pa.large_string() if pa.types.is_large_binary(column.type) else pa.string())
        return
    except pa.ArrowInvalid:
        pass
    for row, kind in enumerate(kinds):
        if kind in _OF_TEXT:
            try:
                bodies[row].decode()
            except UnicodeDecodeError as error:
                faults.setdefault(row, f"the body is not UTF-8 from byte {error.start} on")


def _check_json(bodies: list[bytes], kinds: list[int], faults: Faults) -> None:
    for row, kind in enumerate(kinds):
        if kind == BodyKind.JSON and row not in faults:
            try:
                _json.decode(bodies[row])
            except msgspec.DecodeError as error:
                faults[row] = f"the body is no JSON: {error}"

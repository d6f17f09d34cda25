"""Conversion of Arrow batches to the broker's rows, one column at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import DEFAULT_PRIORITY, BodyKind, Durability, Property
from sluicemq.model.rows import MOST_NAME_BYTES, MOST_PROPERTIES_BYTES, Row, row
from sluicemq.pipeline.sink.bodies import read_bodies
from sluicemq.pipeline.sink.options import SinkOptions
from sluicemq.pipeline.sink.properties import read_properties
from sluicemq.pipeline.sink.values import (
    Faults,
    InvalidValue,
    abbreviated,
    by_value,
    spans,
    texts,
    times,
)
from sluicemq.protocols.java import inflate
from sluicemq.protocols.transcoding import COMPRESSION

REASON: Final = "deadLetterReason"
ORIGIN: Final = "originalQueue"
"""Property of dead letters, with the same name as in the broker's own dead letters."""

Values = tuple[Any, ...]
"""Fields of model.rows.Row in order; trailing fields may be missing."""

_FIELDS: Final = Row.__struct_fields__
_USUAL: Final = dict(zip(_FIELDS, row(""), strict=True))
_SIMPLE: Final = ("message_id", "correlation_id", "type")
_KINDS: Final = {"queue": False, "topic": True}
_DURABILITIES: Final = {
    each.name.lower(): int(each if each is not Durability.TRANSIENT else Durability.NONE)
    for each in Durability
}
"""Durability by name. Rows read from a journal may have `transient`, the name of `none` there."""
_NO_REPLY: Final[tuple[str | None, bool]] = (None, False)
_RAW: Final = re.compile(r"\\x([89a-f][0-9a-f])")
"""Escape of a byte that is not UTF-8 in a name, as the source writes it."""
MOST_BODY_BYTES: Final = 73_400_320
"""Largest body that clients of all protocols can receive (the limit of JMQ)."""
_BEGINNING: Final = 65_536
_COMPRESSED_SIZE: Final = "JMS_SUN_COMPRESSED_SIZE"
_UNCOMPRESSED_SIZE: Final = "JMS_SUN_UNCOMPRESSED_SIZE"

_encoder: Final = msgspec.msgpack.Encoder()


class Converted(NamedTuple):
    """Rows of a batch. Rows with a fault are included, with the fields that could be converted.

    sizes  bytes of each row's body
    """

    rows: list[Values]
    sizes: list[int]
    faults: Faults


class Converter:
    """Converts the batches of one schema to rows."""

    def __init__(self, places: Mapping[str, int], options: SinkOptions) -> None:
        """Prepare a conversion; `places` is the result of `columns.places`."""
        self._places = places
        self._options = options
        present = {"destination", "topic", "body", "body_kind"} | set(places)
        if "reply_to" in places:
            present.add("reply_topic")
        self._fields = _FIELDS[: 1 + max(map(_FIELDS.index, present & set(_FIELDS)))]

    def convert(self, batch: pa.RecordBatch) -> Converted:
        """Return the rows in the batch's order."""
        columns = {name: batch.column(place) for name, place in self._places.items()}
        count = batch.num_rows
        faults: Faults = {}
        found: dict[str, Iterable[object]] = {}
        found["destination"], found["topic"] = self._destinations(columns, faults)
        body = columns.get("body", pa.nulls(count, pa.binary()))
        bodies, kinds = read_bodies(body, columns.get("body_kind"), faults)
        properties = columns.get("properties")
        if properties is not None:
            typed = read_properties(properties, columns.get("property_types"), faults)
            _check_size(properties, typed, faults)
            _inflate(bodies, typed)
            found["properties"] = typed
        found["body"], found["body_kind"] = bodies, kinds
        if "priority" in columns:
            found["priority"] = by_value(columns["priority"], _priority, DEFAULT_PRIORITY, faults)
        if "ttl" in columns:
            found["ttl"] = spans(columns["ttl"], "ttl", faults)
        for name in ("expiration", "deliver_at"):
            if name in columns:
                found[name] = times(columns[name], name, faults)
        for name in _SIMPLE:
            if name in columns:
                found[name] = texts(columns[name])
        if "durability" in columns:
            usual = int(Durability.SYNC)
            found["durability"] = by_value(columns["durability"], _durability, usual, faults)
        if "reply_to" in columns:
            replies = list(by_value(columns["reply_to"], _reply, _NO_REPLY, faults))
            found["reply_to"] = [name for name, _ in replies]
            found["reply_topic"] = [topic for _, topic in replies]
        sizes = list(map(len, bodies))
        if count and max(sizes) > MOST_BODY_BYTES:
            _check_bodies(bodies, sizes, faults)
        fields = (found.get(name) or repeat(_USUAL[name], count) for name in self._fields)
        rows = list(zip(*fields, strict=False))
        return Converted(rows, sizes, faults)

    def _destinations(
        self, columns: Mapping[str, pa.Array], faults: Faults
    ) -> tuple[Iterable[object], Iterable[object]]:
        options = self._options
        usual: str | bytes = _name(options.destination) if options.destination else ""
        named = columns.get("destination")
        if named is None:
            names: Iterable[object] = repeat(usual)
        else:
            if named.null_count and not usual:
                for place, valid in enumerate(named.is_valid().to_pylist()):
                    if not valid:
                        faults[place] = "the row names no destination"
            names = by_value(named, _name, usual, faults)
        kinds = columns.get("destination_kind")
        if kinds is not None:
            return names, by_value(kinds, _topic, False, faults)
        if named is None or not options.topic:
            return names, repeat(options.topic)
        # the option's topic applies only to rows without a destination
        return names, [not valid for valid in named.is_valid().to_pylist()]


def dead_letter(values: Values, reason: str, options: SinkOptions) -> Values:
    """Return the dead letter of a row with a fault.

    It has the reason and the body, as far as it could be converted."""
    given = dict(zip(_FIELDS, values, strict=False))
    properties: dict[str, Property] = dict(given.get("properties") or {})
    name = given["destination"]
    if isinstance(name, bytes):
        name = name.decode(errors="backslashreplace")
    properties[ORIGIN] = f"topic:{name}" if given["topic"] else name
    properties[REASON] = reason
    kind = given["body_kind"]
    if kind in (BodyKind.TEXT, BodyKind.JSON):
        kind = BodyKind.TEXT if _is_text(given["body"]) else BodyKind.BYTES
    elif kind == BodyKind.NONE and given["body"]:
        kind = BodyKind.BYTES
    return row(
        _name(options.dead_letters),
        given["body"],
        body_kind=int(kind),
        message_id=given.get("message_id", ""),
        correlation_id=given.get("correlation_id", ""),
        type=given.get("type", ""),
        properties=properties,
    )


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _name(spelled: str) -> str | bytes:
    """Return a destination's name, as bytes if it is not UTF-8."""
    if not spelled:
        raise InvalidValue("the row names no destination")
    raw = spelled.encode()
    if len(raw) > MOST_NAME_BYTES:
        raise InvalidValue(f"the destination's name has {len(raw)} bytes")
    if "\\x" not in spelled or not _RAW.search(spelled):
        return spelled
    parts = _RAW.split(spelled)
    return b"".join(
        bytes.fromhex(piece) if place % 2 else piece.encode() for place, piece in enumerate(parts)
    )


def _topic(kind: str) -> bool:
    topic = _KINDS.get(kind)
    if topic is None:
        raise InvalidValue(f"destination_kind is queue or topic, not {abbreviated(kind)}")
    return topic


def _priority(priority: int) -> int:
    if not 0 <= priority <= 9:
        raise InvalidValue(f"the priority is {priority}, not 0 to 9")
    return priority


def _durability(name: str) -> int:
    durability = _DURABILITIES.get(name)
    if durability is None:
        raise InvalidValue(f"durability is none, lazy or sync, not {abbreviated(name)}")
    return durability


def _reply(name: str) -> tuple[str | None, bool]:
    return name.removeprefix("topic:"), name.startswith("topic:")


def _check_bodies(bodies: list[bytes], sizes: list[int], faults: Faults) -> None:
    """Record a fault for each body over the limit and truncate it for the dead letter."""
    for place, size in enumerate(sizes):
        if size > MOST_BODY_BYTES:
            faults.setdefault(place, f"the body has {size} bytes, {MOST_BODY_BYTES} are the most")
            bodies[place] = bodies[place][:_BEGINNING]
            sizes[place] = _BEGINNING


def _check_size(
    column: pa.Array, properties: list[dict[str, Property] | None], faults: Faults
) -> None:
    if column.nbytes <= MOST_PROPERTIES_BYTES:
        return
    for place, each in enumerate(properties):
        if each and (size := len(_encoder.encode(each))) > MOST_PROPERTIES_BYTES:
            faults.setdefault(place, f"the properties have {size} bytes")


def _inflate(bodies: list[bytes], properties: list[dict[str, Property] | None]) -> None:
    """Decompress bodies that a JMQ client compressed.

    The sink does not write the flag in the frame by which other clients recognise compression."""
    for place, each in enumerate(properties):
        if each and each.get(_COMPRESSED_SIZE) == len(bodies[place]):
            size = each.get(_UNCOMPRESSED_SIZE)
            try:
                bodies[place] = inflate(
                    bodies[place], size if isinstance(size, int) else None, MOST_BODY_BYTES
                )
            except ProtocolError:
                continue
            properties[place] = {
                name: value for name, value in each.items() if name not in COMPRESSION
            }

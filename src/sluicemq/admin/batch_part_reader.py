"""Decodes the rows of a batch part into messages and finds those that cannot be published."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind, encode_name
from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import BodyKind, Durability, Message, Origin, Property
from sluicemq.model.rows import MAX_TIME, Row, decode, name_of, properties_of
from sluicemq.protocols.jmq.destinations import is_wildcard

MOST_PROPERTIES: Final = 500_000
"""Maximum number of properties of all rows of a part."""

Addressed = tuple[Address, Message]
"""A message and its destination."""

_KINDS: Final = tuple(BodyKind)
_NIL: Final = b"\xc0"


class PartReader:
    """Reader of consecutive frames; row numbers start at 0 and continue over the frames.

    messages   messages of the valid rows, with their destinations
    rows       row number of each of these messages
    refused    numbers of the other rows, with the reasons
    forbidden  names of destinations to which the sender may not publish
    """

    def __init__(self, identity: Identity, wall: int, max_name: int, max_targets: int = 0) -> None:
        """Create a reader.

        `wall` is the time from which times to live count, `max_name` the maximum length of names in
        bytes, `max_targets` the maximum number of destinations, 0 = unlimited.
        """
        self.messages: list[Addressed] = []
        self.rows: list[int] = []
        self.refused: dict[int, str] = {}
        self.forbidden: set[str] = set()
        self._identity = identity
        self._wall = wall
        self._max_name = max_name
        self._max_targets = max_targets
        self._rows = 0
        self._properties = 0
        self._addresses: dict[tuple[bytes, bool], Address] = {}
        self._unusable: dict[tuple[bytes, bool], str] = {}
        self._replies: dict[tuple[str, bool], Address] = {}
        self._rejected: dict[int, Row] = {}

    def take(self, frame: memoryview) -> None:
        """Decode a frame. Raises ProtocolError (FrameTooLarge) for an invalid frame."""
        number = self._rows
        addresses = self._addresses
        messages = self.messages
        rows = self.rows
        for row in decode(frame):
            key = (bytes(row.destination), row.topic)
            address = addresses.get(key) or self._find(key)
            properties: dict[str, Property] | None = None
            problem = ""
            if address is None:
                problem = self._unusable[key]
            elif bytes(row.properties) != _NIL:
                try:
                    properties = properties_of(row.properties)
                except ProtocolError as error:
                    problem = str(error)
                else:
                    self._properties += len(properties or ())
            if not problem and row.body_kind != BodyKind.BYTES:
                problem = body_problem(row.body_kind, row.body)
            if problem or address is None:
                self.refused[number] = problem
                self._rejected[number] = row
            else:
                rows.append(number)
                messages.append((address, self._message(row, address, properties)))
            number += 1
        self._rows = number
        if self._properties > MOST_PROPERTIES:
            raise FrameTooLarge(
                f"the rows of the part have more than {MOST_PROPERTIES} properties; send several "
                "parts"
            )

    def message(self, number: int) -> tuple[str, Message]:
        """Return a row, even an invalid one, as a message, and the name of its destination."""
        row = self._rejected.get(number)
        if row is None:
            address, message = self.messages[bisect_left(self.rows, number)]
            return address.name, message
        try:
            origin = name_of(row.destination)
        except ProtocolError:
            origin = ""
        address = Address(Kind.TOPIC if row.topic else Kind.QUEUE, origin)
        if body_problem(row.body_kind, row.body):
            row.body_kind = BodyKind.BYTES
        try:
            properties = properties_of(row.properties)
        except ProtocolError:
            properties = None
        return origin, self._message(row, address, properties)

    def _message(
        self, row: Row, address: Address, properties: dict[str, Property] | None
    ) -> Message:
        wall = self._wall
        expiration = row.expiration
        if row.ttl:
            end = wall + row.ttl
            expiration = min(expiration or MAX_TIME, end)
        reply_to = None
        if row.reply_to:
            reply_to = self._reply(row.reply_to, row.reply_topic)
        return Message(
            address,
            row.body,
            _KINDS[row.body_kind],
            Origin.INTERNAL,
            Durability.SYNC,
            row.timestamp or wall,
            expiration,
            row.priority,
            row.deliver_at,
            row.message_id,
            row.correlation_id,
            reply_to,
            row.type,
            properties or None,
        )

    def _reply(self, name: str, topic: bool) -> Address:
        key = (name, topic)
        address = self._replies.get(key)
        if address is None:
            address = Address(Kind.TOPIC if topic else Kind.QUEUE, name)
            self._replies[key] = address
        return address

    def _find(self, key: tuple[bytes, bool]) -> Address | None:
        """Return the destination; None if it accepts no messages, with the reason in `_unusable`.
        Raises FrameTooLarge for more destinations than the limit."""
        if key in self._unusable:
            return None
        most = self._max_targets
        if most and len(self._addresses) >= most:
            raise FrameTooLarge(
                f"the rows of the part have more than {most} destinations, the limit "
                "(http.max_batch_destinations); send several parts"
            )
        raw, topic = key
        try:
            name = name_of(raw)
        except ProtocolError as error:
            self._unusable[key] = str(error)
            return None
        problem = ""
        size = len(encode_name(name))
        if not 0 < size <= self._max_name:
            problem = f"a destination's name has 1 to {self._max_name} bytes, this one {size}"
        elif topic and is_wildcard(name):
            problem = f"{name!r} stands for several topics, and messages are sent to one"
        elif not self._identity.may(Operation.PRODUCE, name):
            self.forbidden.add(name)
            who = self._identity.name or "an anonymous client"
            problem = f"{who} may not {Operation.PRODUCE} {name!r}"
        if problem:
            self._unusable[key] = problem
            return None
        address = self._addresses[key] = Address(Kind.TOPIC if topic else Kind.QUEUE, name)
        return address


def body_problem(kind: int, body: bytes) -> str:
    """Return why the bytes are not a body of that kind, "" if they are. Java serialisation
    streams are not decoded."""
    if kind == BodyKind.NONE:
        return "a body of kind none has no bytes" if body else ""
    if kind == BodyKind.TEXT:
        if not body.isascii():
            try:
                body.decode()
            except UnicodeDecodeError as error:
                return f"the body is no UTF-8: {error.reason} at byte {error.start}"
    elif kind == BodyKind.JSON:
        try:
            _json.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            return f"the body is no JSON: {error}"
    return ""


_json: Final = msgspec.json.Decoder(msgspec.Raw)

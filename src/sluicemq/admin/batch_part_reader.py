"""The rows of a part as messages, and which of them cannot be sent."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind, encode_name
from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import BodyKind, Durability, Message, Origin, Property
from sluicemq.model.rows import MAX_TIME, Row, decode, name_of, properties_of
from sluicemq.protocols.jmq.wildcards import is_wildcard

MOST_PROPERTIES: Final = 500_000
"""Properties of all rows of a part."""

Addressed = tuple[Address, Message]
"""A message, and where it goes."""

_KINDS: Final = tuple(BodyKind)
_NIL: Final = b"\xc0"


class PartReader:
    """Reads frames one after another; rows are counted from 0 throughout.

    messages   what can be sent, as far as rows tell by themselves
    rows       the number of the row that each of them is
    refused    the other rows, and why
    forbidden  names of destinations that the sender may not send to
    """

    def __init__(self, identity: Identity, wall: int, max_name: int, max_targets: int = 0) -> None:
        """`wall` is the time by which lives are counted, `max_name` in bytes; `max_targets`
        destinations may be named, 0 = any number."""
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
        """Raises ProtocolError (FrameTooLarge) for what is no frame of rows."""
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
        """A row as a message, whatever is wrong with it, and the name of where it should go."""
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
        """The destination; None if nothing can be sent there, and `_unusable` says why. Raises
        FrameTooLarge for one destination too many."""
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
            who = self._identity.name or "nobody in particular"
            problem = f"{who} may not {Operation.PRODUCE} {name!r}"
        if problem:
            self._unusable[key] = problem
            return None
        address = self._addresses[key] = Address(Kind.TOPIC if topic else Kind.QUEUE, name)
        return address


def body_problem(kind: int, body: bytes) -> str:
    """Why those bytes are no body of that kind, or "". What Java writes is never read here."""
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

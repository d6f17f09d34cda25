"""The variable header of a packet.

    header  = record *  0:i16  0-4 bytes of zeros      empty, or at least the end
    record  = id:i16  length:i16  bytes

     1 destination name      5 JMSType                    9 producer id    i64
     2 message id            6 class of the destination  10 delivery time  i64, ms
     3 correlation id        7 class of the reply-to     11 delivery count i32
     4 reply-to name         8 transaction id  i64

Records of other ids are skipped, what follows the end is ignored. In the header of a stored message
(`VariableHeader.stored`) record 11 is the first and record 8 is missing: the count of a delivery
can be written over it at a fixed place. (Protocol specification, "Variable Header".)
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.java import decode_utf
from sluicemq.protocols.jmq.names import read_name

DESTINATION: Final = 1
MESSAGE_ID: Final = 2
CORRELATION_ID: Final = 3
REPLY_TO: Final = 4
TYPE: Final = 5
DESTINATION_CLASS: Final = 6
REPLY_TO_CLASS: Final = 7
TRANSACTION_ID: Final = 8
PRODUCER_ID: Final = 9
DELIVERY_TIME: Final = 10
DELIVERY_COUNT: Final = 11

QUEUE_CLASS: Final = "com.sun.messaging.BasicQueue"
TOPIC_CLASS: Final = "com.sun.messaging.BasicTopic"
TEMPORARY_QUEUE_CLASS: Final = "com.sun.messaging.jmq.jmsclient.TemporaryQueueImpl"
TEMPORARY_TOPIC_CLASS: Final = "com.sun.messaging.jmq.jmsclient.TemporaryTopicImpl"
TEMPORARY_QUEUE: Final = "temporary_destination://queue/"
TEMPORARY_TOPIC: Final = "temporary_destination://topic/"
"""Prefixes of the names of temporary destinations."""

MAX_STRING: Final = 32_767
"""Bytes of a string: the length is a signed number of 16 bits."""

_record: Final = Struct(">hh")
_long: Final = Struct(">hhq")
_int: Final = Struct(">hhi")
_i64: Final = Struct(">q")
_i32: Final = Struct(">i")
_COUNT: Final = _int.pack(DELIVERY_COUNT, _i32.size, 0)
_REMEMBERED: Final = 512
"""Bytes of a header that is worth remembering: the headers of one producer's messages repeat."""


class VariableHeader:
    """Fields of a variable header. Do not change it: packets share it.

    Strings are None and numbers 0 when they are absent.

    queue   address of the destination if it is a queue; the packet's Q flag tells
    topic   the same if it is a topic
    stored  the same header as messages are kept with it, see above
    """

    __slots__ = (
        "correlation_id",
        "delivery_count",
        "delivery_time",
        "destination",
        "destination_class",
        "message_id",
        "producer_id",
        "queue",
        "reply_to",
        "reply_to_class",
        "stored",
        "topic",
        "transaction_id",
        "type",
    )

    def __init__(self, texts: list[str | None], numbers: list[int], stored: bytes) -> None:
        """Strings and numbers stand at the places of their ids."""
        self.destination = texts[DESTINATION]
        self.message_id = texts[MESSAGE_ID]
        self.correlation_id = texts[CORRELATION_ID]
        self.reply_to = texts[REPLY_TO]
        self.type = texts[TYPE]
        self.destination_class = texts[DESTINATION_CLASS]
        self.reply_to_class = texts[REPLY_TO_CLASS]
        self.transaction_id = numbers[TRANSACTION_ID]
        self.producer_id = numbers[PRODUCER_ID]
        self.delivery_time = numbers[DELIVERY_TIME]
        self.delivery_count = numbers[DELIVERY_COUNT]
        self.stored = stored
        name = read_name(self.destination or "")
        self.queue = Address(Kind.QUEUE, name)
        self.topic = Address(Kind.TOPIC, name)

    def reply_address(self, is_queue: bool) -> Address | None:
        """Return the address for replies. `is_queue`: the message's Q flag, used if the kind is not
        given otherwise."""
        name = self.reply_to
        if not name:
            return None
        hint = self.reply_to_class or ""
        if "Topic" in hint or "Queue" in hint:
            topic = "Topic" in hint.rpartition(".")[2]
        elif name.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC)):
            topic = name.startswith(TEMPORARY_TOPIC)
        else:
            topic = not is_queue
        return Address(Kind.TOPIC if topic else Kind.QUEUE, read_name(name))


def class_of(address: Address) -> str:
    """Return the Java client's class of a destination: it has other classes for temporary ones, and
    accepts their names only with those."""
    temporary = address.name.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC))
    if address.kind is Kind.QUEUE:
        return TEMPORARY_QUEUE_CLASS if temporary else QUEUE_CLASS
    return TEMPORARY_TOPIC_CLASS if temporary else TOPIC_CLASS


def decode_header(raw: bytes) -> VariableHeader:
    """Raises ProtocolError for a record that runs past the end or has the wrong length, and for
    strings that are not UTF-8."""
    return _remembered(raw) if len(raw) <= _REMEMBERED else _decode(raw)


def _decode(raw: bytes) -> VariableHeader:
    texts: list[str | None] = [None] * TRANSACTION_ID
    numbers = [0] * (DELIVERY_COUNT + 1)
    kept: list[bytes] = [_COUNT]
    size = len(raw)
    position = 0
    while position + 2 <= size:
        if raw[position] == 0 and raw[position + 1] == 0:
            break
        if position + _record.size > size:
            raise ProtocolError("a variable header ends within a record")
        number, length = _record.unpack_from(raw, position)
        start = position
        position += _record.size
        end = position + length
        if length < 0 or end > size:
            raise ProtocolError(f"record {number} of a variable header has a length of {length}")
        if DESTINATION <= number < TRANSACTION_ID:
            texts[number] = decode_utf(raw[position:end])
        elif TRANSACTION_ID <= number <= DELIVERY_COUNT:
            code = _i32 if number == DELIVERY_COUNT else _i64
            if length != code.size:
                raise ProtocolError(
                    f"record {number} of a variable header has {length} bytes, not {code.size}"
                )
            numbers[number] = code.unpack_from(raw, position)[0]
        if number not in (TRANSACTION_ID, DELIVERY_COUNT):
            kept.append(raw[start:end])
        position = end
    kept.append(_ending(sum(map(len, kept))))
    return VariableHeader(texts, numbers, b"".join(kept))


_remembered = lru_cache(maxsize=2048)(_decode)


def _ending(size: int) -> bytes:
    """End and padding after `size` bytes of records: the length becomes a multiple of 4."""
    return bytes(2 + 4 - (size + 2) % 4)


def encode_header(
    destination: str | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    type: str | None = None,
    destination_class: str | None = None,
    reply_to_class: str | None = None,
    transaction_id: int = 0,
    producer_id: int = 0,
    delivery_time: int = 0,
    delivery_count: int | None = None,
    message_id: str | None = None,
) -> bytes:
    """A variable header with its end and padding; b"" when there is nothing to say.

    Strings that are None and numbers that are 0 are left out; `delivery_count` is written whenever
    it is given, and as the first record. Raises ProtocolError for strings of more than 32,767
    bytes.
    """
    parts: list[bytes] = []
    if delivery_count is not None:
        parts.append(_int.pack(DELIVERY_COUNT, _i32.size, delivery_count))
    for number, value in (
        (TRANSACTION_ID, transaction_id),
        (PRODUCER_ID, producer_id),
        (DELIVERY_TIME, delivery_time),
    ):
        if value:
            parts.append(_long.pack(number, _i64.size, value))
    for number, text in (
        (DESTINATION, destination),
        (MESSAGE_ID, message_id),
        (CORRELATION_ID, correlation_id),
        (REPLY_TO, reply_to),
        (TYPE, type),
        (DESTINATION_CLASS, destination_class),
        (REPLY_TO_CLASS, reply_to_class),
    ):
        if text is not None:
            raw = _raw(text)
            if len(raw) > MAX_STRING:
                raise ProtocolError(
                    f"{len(raw)} bytes in a variable header, the limit is {MAX_STRING}"
                )
            parts.append(_record.pack(number, len(raw)))
            parts.append(raw)
    if not parts:
        return b""
    parts.append(_ending(sum(map(len, parts))))
    return b"".join(parts)


def _raw(text: str) -> bytes:
    """Proper UTF-8, which all clients read here, though Java's write the modified one."""
    try:
        return text.encode("utf-8", "surrogateescape")  # names of other protocols: decode_name
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")

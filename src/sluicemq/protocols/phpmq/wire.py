"""Codec of PHPMQ version 1 frames. Sans-I/O, for client and server.

    message = header packet*
    header  = "H" version:2 type:3 packets:2                8 bytes, "H0100103"
    packet  = "P" type:2 length:29 content                  32 + length bytes

All numbers are zero-filled decimal digits; lengths count bytes; nothing separates the parts
(PHPMQ protocol document, sections "Message headers" and "Packet headers").

    type  direction          packets                       meaning
    001   client to server   01 queue, 02 content, [05]    send
    002   client to server   01 queue, 04 count            consume request
    003   server to client   01 queue, 02 content, 03 id,  dispatch
                             [05 time to live]
    004   client to server   01 queue, 03 id               acknowledge
    005   client to server   01 queue, 03 id, 05           requeue
    006   client to server   01 queue, 03 id               dead letter

The packet in brackets belongs to dispatch version 2, the protocol as documented; the released PHP
programs use dispatch version 1 without it and without types 005 and 006. The decoder accepts both.
Packets may arrive in any order; they are written in the order above.

The document prints a line break after each header and after each content. A peer that sends them
is accepted too (the "line form"): the byte after the header of its first message decides, and
`Decoder.newline` has the form in which to respond.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import LAST_TIME
from sluicemq.protocols.framing import FrameDecoder

SEND: Final = 1
CONSUME: Final = 2
DISPATCH: Final = 3
ACKNOWLEDGE: Final = 4
REQUEUE: Final = 5
DEAD_LETTER: Final = 6

DispatchVersion = Literal["auto", 1, 2]
"""Form of written messages: 1 without, 2 with a TTL packet. `auto`: see docs/protocols/phpmq.md."""

DISPATCH_VERSIONS: Final[dict[str, DispatchVersion]] = {"auto": "auto", "1": 1, "2": 2}
"""Dispatch versions by their names in a URL."""

FROM_CLIENT: Final = frozenset({SEND, CONSUME, ACKNOWLEDGE, REQUEUE, DEAD_LETTER})
FROM_SERVER: Final = frozenset({DISPATCH})

QUEUE_NAME: Final = 1
CONTENT: Final = 2
MESSAGE_ID: Final = 3
COUNT: Final = 4
TIME_TO_LIVE: Final = 5

Frame = tuple[int, bytes, bytes, bytes, int]
"""Type, queue name, content, message id, number.

The number is the count of a consume request (messages) or the TTL of a send, dispatch or requeue
(seconds, 0 = no expiry). Missing fields are b"" or -1, so a send of version 1 has the TTL -1; a
dispatch of version 1 has no TTL and is read as 0.
"""


REPLY_PREFIX: Final = b"reply:"
"""Prefix of a message id in the name of the queue for the answer to that message."""

PROBE: Final = b"sluicemq.probe."
"""Prefix of the queue names of probes, which confirm that sent messages are accepted."""

_SECOND: Final = 1000
_HEX_DIGITS: Final = b"0123456789abcdef"


class Limits(NamedTuple):
    """Maximum lengths of contents in bytes, checked in the header before the content arrives."""

    queue: int = 1024
    body: int = 64 * 1024 * 1024
    message_id: int = 64
    number: int = 20


def _header(kind: int, packets: int) -> bytes:
    return b"H01%03d%02d" % (kind, packets)


_SHAPES: Final[dict[bytes, tuple[int, frozenset[int]]]] = {
    _header(kind, len(packets)): (kind, frozenset(packets))
    for kind, packets in (
        (SEND, (QUEUE_NAME, CONTENT)),
        (SEND, (QUEUE_NAME, CONTENT, TIME_TO_LIVE)),
        (CONSUME, (QUEUE_NAME, COUNT)),
        (DISPATCH, (QUEUE_NAME, CONTENT, MESSAGE_ID)),
        (DISPATCH, (QUEUE_NAME, CONTENT, MESSAGE_ID, TIME_TO_LIVE)),
        (ACKNOWLEDGE, (QUEUE_NAME, MESSAGE_ID)),
        (REQUEUE, (QUEUE_NAME, MESSAGE_ID, TIME_TO_LIVE)),
        (DEAD_LETTER, (QUEUE_NAME, MESSAGE_ID)),
    )
}
"""Valid headers, each with the packets that must follow it exactly once."""

WITHOUT_TTL: Final = _header(SEND, 2)
"""`Message.native` of a message that was sent without a TTL packet: its header. Messages with a TTL
packet, the form used at high rates, have none, so that nothing more is stored for them."""

_DEFAULT_LIMITS: Final = Limits()
_HEADER_SIZE: Final = 8
_PACKET_HEADER_SIZE: Final = 32
_NO_EXPIRY: Final = b"P05%029d0" % 1
_FULL_ID: Final = b"P03%029d" % 32
_PREFIX_SIZE: Final = _HEADER_SIZE + _PACKET_HEADER_SIZE
_MAX_MESSAGE_PREFIXES: Final = 256

_CACHED_HEADERS: Final = 4096
_packet_headers: dict[bytes, tuple[int, int]] = {}
"""Cache of valid packet headers with their type and length: lengths repeat."""


class Decoder(FrameDecoder[Frame]):
    """Decodes the bytes of one direction of one connection into frames.

    `newline` follows headers and contents on this connection: b"" normally, b"\\n" or b"\\r\\n" in
    the line form. It is b"" until input has arrived.
    """

    __slots__ = (
        "_content_limits",
        "_kinds",
        "_prefixes",
        "_undecided",
        "newline",
    )

    def __init__(
        self, limits: Limits = _DEFAULT_LIMITS, kinds: frozenset[int] = FROM_CLIENT
    ) -> None:
        """`kinds` are the message types that the peer may send: FROM_CLIENT or FROM_SERVER."""
        super().__init__()
        self.newline = b""
        self._undecided = True
        self._kinds = kinds
        self._content_limits = (
            -1,
            limits.queue,
            limits.body,
            limits.message_id,
            limits.number,
            limits.number,
        )
        self._prefixes: dict[bytes, tuple[int, int, int]] = {}

    def _parse(self, data: bytes, frames: list[Frame]) -> int:
        """Append the complete frames, as `FrameDecoder` requires.

        The prefix of a message is its header and the packet header of its queue name. A prefix that
        `_parse_message` has parsed on this connection is not parsed again: it determines the type,
        the number of packets and the end of the queue name. `_parse_message` parses all messages
        whose remaining bytes are not in the most frequent form.
        """
        position = 0
        size = len(data)
        body_limit = self._content_limits[CONTENT]
        prefixes = self._prefixes
        headers = _packet_headers
        starts = data.startswith
        append = frames.append
        while position < size:
            prefix = prefixes.get(data[position : position + _PREFIX_SIZE])
            if prefix is not None:
                kind, packets, name_end = prefix
                name_end += position
                if kind == ACKNOWLEDGE:
                    end = name_end + _PACKET_HEADER_SIZE + 32
                    if end <= size and starts(_FULL_ID, name_end):
                        queue = data[position + _PREFIX_SIZE : name_end]
                        append((ACKNOWLEDGE, queue, b"", data[end - 32 : end], -1))
                        position = end
                        continue
                else:
                    body = name_end + _PACKET_HEADER_SIZE
                    header = headers.get(data[name_end:body])
                    if header is not None and header[0] == CONTENT and header[1] <= body_limit:
                        identity = end = body + header[1]
                        if kind == DISPATCH:
                            packets -= 1
                            identity += _PACKET_HEADER_SIZE
                            end = identity + 32 if starts(_FULL_ID, end) else size + 1
                        if (end <= size) if packets == 2 else starts(_NO_EXPIRY, end):
                            queue = data[position + _PREFIX_SIZE : name_end]
                            content = data[body : body + header[1]]
                            number = -1 if packets == 2 and kind == SEND else 0
                            append((kind, queue, content, data[identity:end], number))
                            position = end if packets == 2 else end + len(_NO_EXPIRY)
                            continue
            end = self._parse_message(data, position, frames)
            if end < 0:
                break
            position = end
        return position

    def _detect_newline(self, data: bytes, start: int) -> bool:
        """Set `newline` by the bytes after the first header; return False if they are missing.

        Raises ProtocolError for an invalid header, before those bytes have arrived.
        """
        position = start + _HEADER_SIZE
        size = len(data)
        if data[start : start + 1] != b"H" or size >= position:
            self._shape(data[start:position])
        if size < position + 2:
            self._need = _HEADER_SIZE if size < position else _HEADER_SIZE + 2
            return False
        if data[position] == 0x0A:
            self.newline = b"\n"
        elif data[position : position + 2] == b"\r\n":
            self.newline = b"\r\n"
        self._undecided = False
        return True

    def _parse_message(self, data: bytes, start: int, frames: list[Frame]) -> int:
        """Parse one message in any form; return its end, or -1 if it is incomplete."""
        if self._undecided and not self._detect_newline(data, start):
            return -1
        size = len(data)
        position = start + _HEADER_SIZE
        in_line_form = self.newline != b""
        if in_line_form and data[start] in b"\r\n":
            return start + 1  # blank lines between the messages
        if size < position:
            return self._wait(_HEADER_SIZE)
        kind, expected = self._shape(data[start:position])
        limits = self._content_limits
        contents: list[bytes | None] = [None] * 6
        order: list[int] = []
        if in_line_form and (position := _after_newline(data, position)) < 0:
            return self._wait(size - start + 1)
        for _ in expected:
            end = position + _PACKET_HEADER_SIZE
            if end > size:
                return self._wait(end - start)
            packet_header = data[position:end]
            parsed_header = _packet_headers.get(packet_header)
            packet, length = (
                parsed_header if parsed_header is not None else _parse_packet_header(packet_header)
            )
            if packet not in expected:
                raise ProtocolError(
                    f"packet {packet:02d} is not allowed in message type {kind:03d}"
                )
            if contents[packet] is not None:
                raise ProtocolError(f"packet {packet:02d} occurs twice")
            if length > limits[packet]:
                raise FrameTooLarge(
                    f"packet {packet:02d} announces {length} bytes, the limit is {limits[packet]}"
                )
            if in_line_form and (end := _after_newline(data, end)) < 0:
                return self._wait(size - start + 1)
            position = end + length
            if position > size:
                return self._wait(position - start)
            contents[packet] = data[end:position]
            order.append(packet)
            if in_line_form and (position := _after_newline(data, position)) < 0:
                return self._wait(size - start + 1)
        queue = contents[QUEUE_NAME] or b""
        if not queue:
            raise ProtocolError("the queue name is empty")
        if kind == CONSUME:
            number = _parse_number(contents[COUNT], "count")
        elif contents[TIME_TO_LIVE] is None:
            number = 0 if kind == DISPATCH else -1
        else:
            number = _parse_number(contents[TIME_TO_LIVE], "time to live")
        identity = contents[MESSAGE_ID] or b""
        frames.append((kind, queue, contents[CONTENT] or b"", identity, number))
        if not in_line_form and order[0] == QUEUE_NAME and kind in (SEND, DISPATCH, ACKNOWLEDGE):
            if len(self._prefixes) >= _MAX_MESSAGE_PREFIXES:
                self._prefixes.clear()
            prefix = data[start : start + _PREFIX_SIZE]
            self._prefixes[prefix] = kind, len(order), _PREFIX_SIZE + len(queue)
        return position

    def _shape(self, header: bytes) -> tuple[int, frozenset[int]]:
        """Return the message type and the packets of a message header.

        Raises ProtocolError for an invalid header or one that this side may not send.
        """
        shape = _SHAPES.get(header)
        if shape is None:
            raise ProtocolError(_fault_in_header(header))
        if shape[0] not in self._kinds:
            raise ProtocolError(f"message type {shape[0]:03d} does not come from this side")
        return shape

    def _wait(self, need: int) -> int:
        """Record that the unfinished message needs `need` bytes to continue."""
        self._need = need
        return -1


def _fault_in_header(header: bytes) -> str:
    if header[:1] != b"H":
        return "a message does not begin with H"
    if header[1:3] != b"01":
        return "the protocol version is not 01"
    if not header[3:].isdigit():
        return "the message type or the number of packets is not made of digits"
    kind = int(header[3:6])
    if kind not in FROM_CLIENT and kind not in FROM_SERVER:
        return f"there is no message type {kind:03d}"
    return f"message type {kind:03d} does not have {int(header[6:])} packets"


def _parse_packet_header(header: bytes) -> tuple[int, int]:
    """Return type and length in bytes. Raises ProtocolError."""
    # bytes.isdigit() accepts ASCII digits only; int() alone would accept signs, blanks and
    # underscores.
    if header[:1] != b"P" or not header[1:].isdigit():
        raise ProtocolError("a packet header is not P and 31 digits")
    packet = int(header[1:3])
    if not QUEUE_NAME <= packet <= TIME_TO_LIVE:
        raise ProtocolError(f"unknown packet type {packet:02d}")
    parsed_header = packet, int(header[3:])
    if len(_packet_headers) >= _CACHED_HEADERS:
        _packet_headers.clear()
    _packet_headers[header] = parsed_header
    return parsed_header


def _parse_number(digits: bytes | None, name: str) -> int:
    if not digits or not digits.isdigit():
        raise ProtocolError(f"the {name} is not a number")
    return int(digits)


def _after_newline(data: bytes, position: int) -> int:
    """Return the position after the LF or CRLF here; -1 if it has not arrived yet."""
    if position >= len(data):
        return -1
    if data[position] == 0x0A:
        return position + 1
    if data[position] != 0x0D:
        raise ProtocolError("the line form has no line break here")
    if position + 1 >= len(data):
        return -1
    if data[position + 1] != 0x0A:
        raise ProtocolError("a carriage return without a line feed")
    return position + 2


def _packet(kind: int, content: bytes, newline: bytes = b"") -> bytes:
    return b"P%02d%029d%b%b%b" % (kind, len(content), newline, content, newline)


def _encode_message(kind: int, packets: Iterable[tuple[int, bytes]]) -> bytes:
    parts = [_packet(packet, content) for packet, content in packets]
    return b"".join((_header(kind, len(parts)), *parts))


def encode_send(queue: bytes, body: bytes, ttl: int = 0, *, dispatch_version: int = 2) -> bytes:
    """Encode a send (type 001). `ttl` in seconds, 0 = unlimited; omitted in version 1."""
    packets = [(QUEUE_NAME, queue), (CONTENT, body)]
    if dispatch_version != 1:
        packets.append((TIME_TO_LIVE, b"%d" % ttl))
    return _encode_message(SEND, packets)


def encode_consume(queue: bytes, count: int) -> bytes:
    """Encode a consume request (type 002).

    `count` limits the unacked messages; 0 = stop and requeue all.
    """
    return _encode_message(CONSUME, ((QUEUE_NAME, queue), (COUNT, b"%d" % count)))


def encode_acknowledge(queue: bytes, message_id: bytes) -> bytes:
    """Encode an acknowledgement (type 004)."""
    return _encode_message(ACKNOWLEDGE, ((QUEUE_NAME, queue), (MESSAGE_ID, message_id)))


def encode_requeue(queue: bytes, message_id: bytes, ttl: int = 0) -> bytes:
    """Encode a requeue (type 005). `ttl` in seconds from now, 0 = unlimited."""
    packets = ((QUEUE_NAME, queue), (MESSAGE_ID, message_id), (TIME_TO_LIVE, b"%d" % ttl))
    return _encode_message(REQUEUE, packets)


def encode_dead_letter(queue: bytes, message_id: bytes) -> bytes:
    """Encode a dead letter (type 006)."""
    return _encode_message(DEAD_LETTER, ((QUEUE_NAME, queue), (MESSAGE_ID, message_id)))


class DispatchEncoder:
    """Encodes dispatches of one queue.

    The bytes before the content depend only on its length and on the version, so they are cached.
    The content is not copied.
    """

    __slots__ = ("_for_ever", "_identity", "_name", "_newline", "_prefixes")

    _MAX_PREFIXES: Final = 1024

    def __init__(self, queue: bytes, newline: bytes = b"") -> None:
        self._newline = newline
        self._name = newline + _packet(QUEUE_NAME, queue, newline)
        self._prefixes: dict[int, bytes] = {}
        """By length of the content; for dispatches without a TTL packet by its complement, `~`."""
        self._identity = b"%bP03%029d%b" % (newline, 32, newline)
        self._for_ever = newline + _packet(TIME_TO_LIVE, b"0", newline)

    def add(self, chunks: list[bytes], body: bytes, message_id: bytes, ttl: int) -> None:
        """Append one dispatch to `chunks`.

        `message_id` has 32 bytes. `ttl` in seconds: 0 = unlimited, -1 = no TTL packet (version 1).
        """
        newline = self._newline
        length = len(body)
        key = length if ttl >= 0 else ~length
        prefix = self._prefixes.get(key)
        if prefix is None:
            if len(self._prefixes) >= self._MAX_PREFIXES:
                self._prefixes.clear()
            header = _header(DISPATCH, 4 if ttl >= 0 else 3)
            prefix = b"%b%bP02%029d%b" % (header, self._name, length, newline)
            self._prefixes[key] = prefix
        if not ttl:
            ending = self._for_ever
        elif ttl < 0:
            ending = newline
        else:
            ending = newline + _packet(TIME_TO_LIVE, b"%d" % ttl, newline)
        chunks.append(prefix)
        chunks.append(body)
        chunks.append(self._identity + message_id + ending)


# --- message ids and times to live ---------------------------------------------------------------


class MessageIds:
    """Message ids of one broker. `prefix` is their first half."""

    __slots__ = ("prefix",)

    def __init__(self, identity: bytes) -> None:
        """`identity` is `Broker.identity`, 8 bytes."""
        self.prefix = identity.hex().encode()

    def encode(self, sequence: int) -> bytes:
        """Return 32 lower-case hex digits, as the original server's."""
        return b"%b%016x" % (self.prefix, sequence)

    def decode(self, message_id: bytes) -> int:
        """Return the sequence number; 0, which no message has, for an id of another broker.

        Only the exact format of `encode` is accepted, so that a message has one id.
        """
        digits = message_id[16:]
        # int() alone would accept signs, blanks, underscores and capitals
        if (
            len(digits) != 16
            or digits.translate(None, _HEX_DIGITS)
            or message_id[:16] != self.prefix
        ):
            return 0
        return int(digits, 16)


def expiration_after(ttl: int, now: int) -> int:
    """Return the wall ms at which a message with `ttl` seconds from `now` expires; 0 = never.

    A time to live of 0 means no limit (PHPMQ protocol document, example "Send a message").
    """
    return min(now + ttl * _SECOND, LAST_TIME) if ttl else 0


def seconds_left(expiration: int, now: int) -> int:
    """Return the TTL of a dispatch: whole seconds, 0 = unlimited.

    Rounded up and at least 1, because 0 would mean that the message never expires.
    """
    return max(1, -((now - expiration) // _SECOND)) if expiration else 0

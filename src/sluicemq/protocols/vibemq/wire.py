"""VibeMQ 1.1 frames, their encoding and decoding. Sans-I/O, for client and server.

    frame   = length:u32 flag:u8 body                 the length is the body's, as transferred
    flag    = 0 plain, 1 gzip, 2 Brotli
    body    = version:u8 type:u8 id:str queue:str
              payload length:u32, payload             JSON in UTF-8
              count:u16, count * (key:str value:str)  headers
              [error code:str error message:str]
    str     = length:u16, UTF-8

All numbers are big-endian and unsigned. Length 0 means that the field is absent, so no field can be
empty: a header without a key or a value is dropped. (VibeMQ protocol page, "Framing" and "Binary
Protocol Structure".)

The protocol page has the two error strings in every frame, the .NET programs only in errors. The
decoder accepts both; the encoder writes them in every frame, because other peers ignore them. Bytes
after the body's last field are ignored. Bytes that are not UTF-8 become U+FFFD, except in a
payload, which is not decoded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols.framing import FrameDecoder
from sluicemq.protocols.vibemq.compression import THRESHOLD, Compression, Unpacker, compress

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_PLAIN: Final = Compression.NONE.value
_BROTLI: Final = Compression.BROTLI.value
_GZIP: Final = Compression.GZIP.value

MAX_BODY: Final = 1_048_576
"""Maximum size of a transferred body, in bytes, that all peers accept; fixed in the .NET client."""
MAX_UNPACKED: Final = 64 << 20
"""Maximum size of a decompressed body that all peers accept; constant in the .NET client."""
HEADER_SIZE: Final = 5
"""Bytes before the body: its length and the flag."""
NO_LIMIT: Final = 2**31 - 1
"""Largest number a .NET client reads; it means "no limit"."""
BLOCK_TIMEOUT: Final = 8_000
"""Default ms that a publish waits for capacity; .NET clients wait 10 s (`CommandTimeout`)."""

CONNECT: Final = 0
CONNECT_ACK: Final = 1
DISCONNECT: Final = 2
PING: Final = 10
PONG: Final = 11
PUBLISH: Final = 20
PUBLISH_ACK: Final = 21
SUBSCRIBE: Final = 22
SUBSCRIBE_ACK: Final = 23
UNSUBSCRIBE: Final = 24
UNSUBSCRIBE_ACK: Final = 25
DELIVER: Final = 26
ACK: Final = 30
CREATE_QUEUE: Final = 40
DELETE_QUEUE: Final = 41
QUEUE_INFO: Final = 42
LIST_QUEUES: Final = 43
CREATE_USER: Final = 50
DELETE_USER: Final = 51
CHANGE_PASSWORD: Final = 52
GRANT_PERMISSION: Final = 53
REVOKE_PERMISSION: Final = 54
LIST_USERS: Final = 55
GET_USER_PERMISSIONS: Final = 56
ERROR: Final = 99

ADMIN: Final = frozenset(range(CREATE_USER, GET_USER_PERMISSIONS + 1))
"""Commands that need a user directory."""
_SYMMETRIC: Final = ADMIN | {CREATE_QUEUE, DELETE_QUEUE, QUEUE_INFO, LIST_QUEUES}
"""Requests whose responses have the type of the request."""
FROM_CLIENT: Final = _SYMMETRIC | {CONNECT, DISCONNECT, PING, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, ACK}
FROM_SERVER: Final = _SYMMETRIC | {
    CONNECT_ACK,
    DISCONNECT,
    PONG,
    PUBLISH_ACK,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE_ACK,
    DELIVER,
    ERROR,
}

REFUSED: Final = -1
"""Type of the frame that replaces a refused one: one above the limit that a `Decoder` has
skipped, or a large one with an invalid payload. It has that frame's id and an error message."""
MAX_STRING: Final = 65_535
"""Maximum length in bytes of an id, queue name, header key or value, error code or message."""
ATTEMPTS_HEADER: Final = "deliveryAttempts"
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Frame(NamedTuple):
    """Frame of the protocol. Absent fields are "", b"" or an empty mapping.

    type           one of the constants above; unknown types are valid
    id             never absent
    payload        JSON, not validated
    headers        in their order; a repeated key has its last value in its first position
    raw_headers    only of a decoded PUBLISH: its headers in wire form, count included. Equal to
                   `headers`, and can be forwarded unchanged
    """

    type: int
    id: str
    queue: str = ""
    payload: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS
    error_code: str = ""
    error_message: str = ""
    raw_headers: bytes = b""


_prefix: Final = Struct(">IB")
_lead: Final = Struct(">IBBBH")
"""Length, flag, version, type, length of the id."""
_u32: Final = Struct(">I")
_u16: Final = Struct(">H")
_VERSION: Final = 1
_TRAILER: Final = b"\0\0\0\0"
"""Both error strings, absent."""


def encode(frame: Frame, *, trailer: bool = True, limit: int = MAX_BODY) -> bytes:
    """Encode a frame without compression. Ignores `raw_headers`, which equal `headers`.

    trailer  write the error strings of a frame that is no error; omitted if they would exceed
             `limit`
    limit    maximum size of the body, in bytes

    Raises FrameTooLarge beyond `limit` and for more than 65,535 headers, and ProtocolError if the
    id is absent or a string has more than 65,535 bytes.
    """
    identity = _encode_string(frame.id)
    if len(identity) == 2:
        raise ProtocolError("a frame has no id")
    parts = [
        b"",
        b"%c%c" % (_VERSION, frame.type),
        identity,
        _encode_string(frame.queue),
        _u32.pack(len(frame.payload)),
        frame.payload,
        encode_headers(frame.headers),
    ]
    size = sum(map(len, parts))
    end = _encode_string(frame.error_code) + _encode_string(frame.error_message)
    if frame.type == ERROR or (trailer and size + len(end) <= limit):
        parts.append(end)
        size += len(end)
    if size > limit:
        raise FrameTooLarge(f"the frame's body has {size} bytes, the limit is {limit}")
    parts[0] = _prefix.pack(size, _PLAIN)
    return b"".join(parts)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers with their count. Headers without key or value are omitted.

    Raises FrameTooLarge if there are more than 65,535, and ProtocolError if one is too long.
    """
    if not headers:
        return b"\0\0"
    parts = [b""]
    for key, value in headers.items():
        if key and value:
            parts.append(_encode_string(key))
            parts.append(_encode_string(value))
    count = len(parts) // 2
    if count > MAX_STRING:
        raise FrameTooLarge(f"{count} headers are too many for a frame")
    parts[0] = _u16.pack(count)
    return b"".join(parts)


def _encode_string(text: str) -> bytes:
    """Encode length and bytes of a string. A lone surrogate becomes U+FFFD."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raw = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    if len(raw) > MAX_STRING:
        raise ProtocolError(f"a string of {len(raw)} bytes is too long for a frame")
    return _u16.pack(len(raw)) + raw


def _attempts_header(attempts: int) -> bytes:
    return _encode_string(ATTEMPTS_HEADER) + _encode_string(str(attempts))


_FEW_ATTEMPTS: Final = tuple(_attempts_header(attempts) for attempts in range(64))
_FIRST_TAIL: Final = b"\0\1" + _FEW_ATTEMPTS[1] + _TRAILER
"""Headers and error strings of a message's first delivery."""


def encode_deliver(
    identity: bytes,
    queue: bytes,
    payload: bytes,
    raw_headers: bytes = b"",
    attempts: int = 0,
    limit: int = MAX_BODY,
) -> bytes:
    """Encode a DELIVER, in a time that does not depend on its headers.

    raw_headers  in wire form, without `deliveryAttempts` if `attempts` are given
    attempts     added as that header; 0 = none
    limit        size of a body in bytes above which additions are omitted: first the trailer, then
                 the attempts. A DELIVER without them is never longer than its PUBLISH

    `identity` and `queue` have at most 65,535 bytes, and `identity` at least one.
    """
    size = 10 + len(identity) + len(queue) + len(payload)
    if attempts == 1 and not raw_headers and size + len(_FIRST_TAIL) <= limit:
        tail = _FIRST_TAIL  # the most frequent one
    else:
        tail = _deliver_tail(raw_headers or b"\0\0", attempts, limit - size)
    return b"".join(
        (
            _lead.pack(size + len(tail), 0, _VERSION, DELIVER, len(identity)),
            identity,
            _u16.pack(len(queue)),
            queue,
            _u32.pack(len(payload)),
            payload,
            tail,
        )
    )


def _deliver_tail(headers: bytes, attempts: int, limit: int) -> bytes:
    """Return headers and error strings of a DELIVER; additions above `limit` bytes are omitted."""
    if attempts:
        attempts_header = _FEW_ATTEMPTS[attempts] if attempts < 64 else _attempts_header(attempts)
        if len(headers) + len(attempts_header) <= limit and headers[:2] != b"\xff\xff":
            count = (headers[0] << 8) + headers[1] + 1
            headers = b"%b%b%b" % (_u16.pack(count), headers[2:], attempts_header)
    return headers + _TRAILER if len(headers) + len(_TRAILER) <= limit else headers


def body_size(identity: bytes, queue: bytes, payload: bytes, raw_headers: bytes) -> int:
    """Return the size of a frame's body without its trailer, in bytes."""
    return 10 + len(identity) + len(queue) + len(payload) + len(raw_headers)


class AckTemplate:
    """PUBLISH_ACK frames of one queue, with queue and headers: clients read one or the other.

    `queue` is the queue name's bytes, 1 to 65,535.
    """

    __slots__ = ("_between", "_fixed", "_tail")

    def __init__(self, queue: bytes) -> None:
        name = _u16.pack(len(queue)) + queue
        self._between = b"%b\0\0\0\0\0\2\0\x09messageId" % name
        self._tail = b"\0\x09queueName%b%b" % (name, _TRAILER)
        self._fixed = 6 + len(self._between) + len(self._tail)

    def fill(self, identity: bytes) -> bytes:
        """Return the frame for a message's id, which has 1 to 65,535 bytes."""
        id_size = len(identity)
        return b"".join(
            (
                _lead.pack(self._fixed + 2 * id_size, 0, _VERSION, PUBLISH_ACK, id_size),
                identity,
                self._between,
                _u16.pack(id_size),
                identity,
                self._tail,
            )
        )


def compressed(frame: bytes, algorithm: Compression, threshold: int = THRESHOLD) -> bytes:
    """Return an encoded frame with its body compressed; unchanged if that saves nothing.

    Bodies shorter than `threshold` bytes stay plain if they may. Raises FrameTooLarge if the body
    has more than MAX_UNPACKED bytes, or the result more than MAX_BODY.
    """
    size = len(frame) - HEADER_SIZE
    if size > MAX_UNPACKED:
        raise FrameTooLarge(f"the frame's body has {size} bytes, the limit is {MAX_UNPACKED}")
    if algorithm is not Compression.NONE and (size >= threshold or size > MAX_BODY):
        body = compress(frame[HEADER_SIZE:], algorithm, MAX_BODY)
        if body is not None:
            return _prefix.pack(len(body), algorithm) + body
    if size <= MAX_BODY:
        return frame
    if algorithm is Compression.NONE:
        raise FrameTooLarge(
            f"the frame's body has {size} bytes, the limit is {MAX_BODY}, and compression has not "
            "been agreed upon"
        )
    raise FrameTooLarge(f"the frame's body has more than {MAX_BODY} bytes, even compressed")


# --- decoding ------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """Limits of the input.

    frame      bytes of a transferred body; checked in the header, before the body arrives
    unpacked   bytes of a decompressed or plain body
    headers    headers of a frame; far above the server's limit, so that it can report the error
    batch      bytes that the compressed frames of one `feed` may unpack to before the rest waits
               for the next (the last frame may exceed it); 0 = no limit. A kilobyte of compressed
               frames may unpack to a hundred megabytes
    inline     bytes of a decompressed body above which a frame is `Decoder.large`; 0 = no limit
    skip       skip a plain frame above `frame` or `unpacked` bytes and return it as REFUSED;
               otherwise it is an error
    compressed accept compressed frames
    """

    frame: int = MAX_BODY
    unpacked: int = MAX_UNPACKED
    headers: int = 4096
    batch: int = 0
    inline: int = 0
    skip: bool = False
    compressed: bool = True


_DEFAULT_LIMITS: Final = Limits()
_MAX_QUEUES: Final = 256
"""Queue names cached by a decoder."""

_MIN_SIZE: Final = 2
"""Minimum size of a body in bytes; the original server rejects shorter ones as well."""
_MAX_SIZE: Final = 0x7FFFFFFF
"""Maximum size of a body in bytes; the original server rejects longer ones as well."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Decoder(FrameDecoder[Frame]):
    """Decodes the bytes of one direction of one connection into frames.

    `error_id` is the id of the frame that violates the protocol, or "".

    The session checks which types the peer may send and which fields they need, because it answers
    such errors and keeps the connection open.

    backlog   a complete frame is left: packed because of `Limits.batch`, or `large`. Unless it is
              large, call `feed(b"")` after processing the returned ones
    unpacked  bytes that the compressed frames of the last `feed` unpacked to
    large     body of the next frame, above `Limits.inline` bytes: it is not decoded yet, because
              that takes time. The caller must call `read_large` and then `finish_large`; input is
              kept meanwhile
    """

    __slots__ = (
        "_first",
        "_large_bytes",
        "_limits",
        "_plain_limit",
        "_queues",
        "_quick_limit",
        "backlog",
        "error_id",
        "large",
        "unpacked",
    )

    def __init__(self, limits: Limits = _DEFAULT_LIMITS) -> None:
        super().__init__()
        self.error_id = ""
        self.backlog = False
        self.unpacked = 0
        self.large: Unpacker | None = None
        self._large_bytes = 0
        self.allow(limits)
        self._first = True
        self._queues: dict[bytes, str] = {b"": ""}

    def allow(self, limits: Limits) -> None:
        """Set other limits, for frames that have not begun to arrive."""
        self._limits = limits
        self._plain_limit = min(limits.frame, limits.unpacked)
        self._quick_limit = min(self._plain_limit, limits.inline or self._plain_limit)

    @property
    def incomplete(self) -> bool:
        """True if a frame has been received in part."""
        return bool(self._rest or self._skip) and not self.backlog

    @property
    def buffered(self) -> int:
        """Bytes held of frames that are not returned yet; 1 while one is being skipped."""
        rest = len(self._rest) or int(self._skip > 0)
        return rest + (0 if self.large is None else self._large_bytes)

    def discard(self) -> None:
        """Drop the bytes of the frames that are not returned yet."""
        super().discard()
        self.backlog = self.large is not None

    def read_large(self, large: Unpacker, size: int = 0) -> Frame | None:
        """Decode the large frame, once. May be called in another thread. Raises ProtocolError.

        Return None if it unpacks to more than `size` bytes, unless `size` is 0.
        """
        if large.unpack(size or self._limits.unpacked):
            return self._body(large.body())
        return None

    def finish_large(self, error: ProtocolError | None = None) -> None:
        """Report that the large frame was read, or failed. The input after it is a backlog."""
        self.large = None
        self.error = error
        self.backlog = error is None and bool(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """Decode received bytes and return the complete frames. Never raises."""
        self.unpacked = 0
        if self.large is not None:
            self._rest += data
            return []
        self.backlog = False
        return super().feed(data)

    def _parse(self, data: bytes, frames: list[Frame]) -> int:
        """Append the complete frames, as `FrameDecoder` requires."""
        position = 0
        size = len(data)
        limit = self._quick_limit
        unpack = _lead.unpack_from
        queues = self._queues
        append = frames.append
        while position + _lead.size <= size:
            length, flag, _, kind, id_size = unpack(data, position)
            start = position + HEADER_SIZE
            end = start + length
            if flag or end > size or not _MIN_SIZE <= length <= limit:
                break
            # Plain frames without headers are decoded here for speed, all others by _body
            queue_at = start + 4 + id_size
            name_at = queue_at + 2
            if id_size and name_at <= end:
                payload_at = name_at + (data[queue_at] << 8) + data[queue_at + 1] + 4
                if payload_at <= end:
                    headers_at = payload_at + int.from_bytes(data[payload_at - 4 : payload_at])
                    if (
                        headers_at + 2 <= end
                        and kind != ERROR
                        and data[headers_at] == 0
                        and data[headers_at + 1] == 0
                        and (end == headers_at + 2 or data[headers_at + 2 : end] == _TRAILER)
                    ):
                        queue = queues.get(data[name_at : payload_at - 4])
                        if queue is None:
                            queue = self._queue(data[name_at : payload_at - 4])
                        append(
                            _new_frame(
                                Frame,
                                (
                                    kind,
                                    _decode_string(data[start + 4 : queue_at]),
                                    queue,
                                    data[payload_at:headers_at],
                                    NO_HEADERS,
                                    "",
                                    "",
                                    b"",
                                ),
                            )
                        )
                        position = end
                        continue
            append(self._body(data[start:end]))
            position = end
        if position:
            self._first = False
        if position < size:
            position = self._parse_general(data, position, frames)
        return position

    def _parse_general(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Decode frames of any form: compressed, incomplete or invalid."""
        size = len(data)
        limits = self._limits
        while position < size:
            if size - position < 4:
                self._need = 4
                break
            length = _u32.unpack_from(data, position)[0]
            if length < _MIN_SIZE:
                raise ProtocolError(f"a frame announces a body of {length} bytes")
            if length > (_MAX_SIZE if limits.skip else limits.frame):
                raise _too_large_error(length, limits.frame)
            start = position + HEADER_SIZE
            if size < start:
                self._need = HEADER_SIZE
                break
            flag = data[start - 1]
            if flag > _BROTLI:
                raise ProtocolError(f"unknown compression {flag}")
            if flag == _GZIP and not _GZIP_MAGIC.startswith(data[start : start + 2]):
                raise ProtocolError(
                    "the frame is marked gzip and is not; protocol 1.0, without a byte for "
                    "compression, looks like this: the client may be older than 1.5.0"
                    if self._first
                    else "the frame is marked gzip and is not"
                )
            if flag and length > limits.frame:
                raise _too_large_error(length, limits.frame)
            end = start + length
            if not flag and length > self._plain_limit:
                if not limits.skip:
                    raise _too_large_error(length, self._plain_limit)
                refusal = self._refused_frame(data, position, length)
                if refusal is None:
                    break
                frames.append(refusal)
                self._first = False
                position = min(end, size)
                self._skip = end - position
                continue
            if size < end:
                # protocol 1.0 frames are shorter than their length seems: detect them early
                is_checked = flag != _GZIP or size >= start + len(_GZIP_MAGIC)
                self._need = (end if is_checked else start + len(_GZIP_MAGIC)) - position
                break
            if flag and not limits.compressed:
                raise ProtocolError(
                    "a compressed frame before the login: send Connect uncompressed, and wait for "
                    "ConnectAck before sending more"
                )
            if 0 < limits.batch <= self.unpacked and flag:
                self.backlog = True
                self._need = 0
                break
            frame = self._complete(data[start:end], flag)
            self._first = False
            position = end
            if frame is None:
                self._need = 0
                break
            frames.append(frame)
        return position

    def _refused_frame(self, data: bytes, position: int, length: int) -> Frame | None:
        """Return the REFUSED frame for a frame to skip, or None if more input is needed.

        Raises ProtocolError if it has no id.
        """
        start = position + HEADER_SIZE
        id_at = start + 4
        if len(data) < id_at:
            self._need = id_at - position
            return None
        id_end = id_at + (data[id_at - 2] << 8) + data[id_at - 1]
        if id_end == id_at or id_end > start + length:
            raise ProtocolError("a frame has no id")
        if len(data) < id_end:
            self._need = id_end - position
            return None
        reason = f"the frame has {length} bytes, the limit is {self._plain_limit}"
        if self._plain_limit == self._limits.frame < self._limits.unpacked:
            reason += (
                f" (max_frame_bytes); up to {self._limits.unpacked} bytes may be sent compressed"
            )
        return Frame(REFUSED, _decode_string(data[id_at:id_end]), error_message=reason)

    def _complete(self, data: bytes, flag: int) -> Frame | None:
        """Decode the frame with this transferred body; None if it is `large` now.

        Raises ProtocolError.
        """
        limits = self._limits
        unpacker = Unpacker(data, flag, limits.unpacked)
        if not unpacker.unpack(limits.inline or limits.unpacked):
            self.large = unpacker
            self.backlog = True
            self._large_bytes = unpacker.unpacked
            return None
        if flag:
            self.unpacked += unpacker.unpacked
        return self._body(unpacker.body())

    def _body(self, data: bytes) -> Frame:
        """Decode the frame with this body. Raises ProtocolError."""
        end = len(data)
        kind = data[1] if end > 1 else 0
        raw_id, position = _field(data, 2, "the id")
        if not raw_id:
            raise ProtocolError("a frame has no id")
        identity = _decode_string(raw_id)
        self.error_id = identity
        raw_queue, position = _field(data, position, "the queue name")
        queue = self._queue(raw_queue)
        if position + 4 > end:
            raise _truncated_error("the payload")
        payload_at = position + 4
        position = payload_at + int.from_bytes(data[position:payload_at])
        if position + 2 > end:
            raise _truncated_error("the payload" if position > end else "the headers")
        payload = data[payload_at:position]
        headers_at = position
        count = (data[position] << 8) + data[position + 1]
        if count > self._limits.headers:
            raise ProtocolError(f"a frame has {count} headers, the limit is {self._limits.headers}")
        headers, position = _headers(data, position + 2, count)
        raw_headers = b""
        if kind == PUBLISH and headers:
            raw_headers = data[headers_at:position]
            # dropped or replaced headers must not reappear when the headers are forwarded
            if len(headers) != count or not raw_headers.isascii():
                raw_headers = encode_headers(headers)
        code = message = ""
        if kind == ERROR or position < end:
            try:
                raw_code, position = _field(data, position, "the error code")
                raw_message, _ = _field(data, position, "the error message")
                code, message = _decode_string(raw_code), _decode_string(raw_message)
            except ProtocolError:
                if kind == ERROR:
                    raise
        self.error_id = ""
        return Frame(
            kind, identity, queue, payload, headers or NO_HEADERS, code, message, raw_headers
        )

    def _queue(self, raw: bytes) -> str:
        name = self._queues.get(raw)
        if name is None:
            name = _decode_string(raw)
            if len(self._queues) >= _MAX_QUEUES:
                self._queues.clear()
            if len(raw) <= _MAX_QUEUES:
                self._queues[raw] = name
        return name


_new_frame: Final = tuple.__new__
"""Creates a Frame in half the time of its constructor."""


def _decode_string(raw: bytes) -> str:
    """Decode a string. Raises ProtocolError if it would be too long to be sent back."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
    if len(text.encode()) > MAX_STRING:
        raise ProtocolError(
            "a string is not UTF-8, and too long with replacement characters for invalid bytes"
        )
    return text


def _too_large_error(length: int, limit: int) -> FrameTooLarge:
    return FrameTooLarge(f"a frame of {length} bytes is announced, the limit is {limit}")


def _truncated_error(field: str) -> ProtocolError:
    return ProtocolError(f"a frame ends within {field}")


def _field(data: bytes, position: int, field: str) -> tuple[bytes, int]:
    """Return the bytes of a string, and the index of its end."""
    start = position + 2
    if start <= len(data):
        stop = start + (data[position] << 8) + data[position + 1]
        if stop <= len(data):
            return data[start:stop], stop
    raise _truncated_error(field)


def _headers(data: bytes, position: int, count: int) -> tuple[dict[str, str], int]:
    """Return the headers that have key and value, and the index of their end."""
    headers: dict[str, str] = {}
    for _ in range(count):
        key, position = _field(data, position, "the headers")
        value, position = _field(data, position, "the headers")
        if key and value:
            headers[_decode_string(key)] = _decode_string(value)
    return headers, position


def decode_headers(raw_headers: bytes) -> dict[str, str]:
    """Decode headers encoded by `encode_headers`. Raises ProtocolError."""
    if len(raw_headers) < 2:
        return {}
    count = (raw_headers[0] << 8) + raw_headers[1]
    return _headers(raw_headers, 2, count)[0]

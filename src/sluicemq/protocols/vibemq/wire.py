"""VibeMQ 1.1 frames and their encoding; decoder.py decodes them. Sans-I/O, for client and server.

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
from sluicemq.protocols.vibemq.compression import (
    THRESHOLD,
    Compression,
    compress,
    compress_to_fit,
)

NO_LIMIT: Final = 2**31 - 1
"""Largest number a .NET client reads; it stands for "no limit"."""
BLOCK_TIMEOUT: Final = 8_000
"""Default ms that a publish waits for room in its queue. .NET clients wait 10 s for a response
(`CommandTimeout`)."""

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

ADMIN: Final = frozenset(
    {
        CREATE_USER,
        DELETE_USER,
        CHANGE_PASSWORD,
        GRANT_PERMISSION,
        REVOKE_PERMISSION,
        LIST_USERS,
        GET_USER_PERMISSIONS,
    }
)
"""Commands that need a user directory."""
ANSWERED_ALIKE: Final = ADMIN | {CREATE_QUEUE, DELETE_QUEUE, QUEUE_INFO, LIST_QUEUES}
"""Requests whose responses have the type of the request."""
FROM_CLIENT: Final = ANSWERED_ALIKE | {
    CONNECT,
    DISCONNECT,
    PING,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    ACK,
}
FROM_SERVER: Final = ANSWERED_ALIKE | {
    CONNECT_ACK,
    DISCONNECT,
    PONG,
    PUBLISH_ACK,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE_ACK,
    DELIVER,
    ERROR,
}

MAX_BODY: Final = 1_048_576
"""Maximum size of a transferred body, in bytes, that all peers accept; fixed in the .NET client."""
MAX_UNPACKED: Final = 64 << 20
"""Maximum size of a decompressed body that all peers accept; constant in the .NET client."""
TOO_LONG: Final = -1
"""Type of the frame that a `Decoder` returns for a skipped plain frame above the limit. It has the
skipped frame's id and an error message."""
MAX_STRING: Final = 65_535
"""Maximum length in bytes of an id, queue name, header key or value, error code or message."""
HEADER_SIZE: Final = 5
"""Bytes before the body: its length and the flag."""

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

    Raises FrameTooLarge beyond `limit`, and ProtocolError if the id is absent or a string has
    more than 65,535 bytes.
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
    parts[0] = _prefix.pack(size, Compression.NONE)
    return b"".join(parts)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers with their count. Headers without key or value are omitted.

    Raises ProtocolError if there are more than 65,535, or one is too long.
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
        raise ProtocolError(f"{count} headers are too many for a frame")
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
    return _message(DELIVER, identity, queue, payload, raw_headers, attempts, limit)


def encode_publish(
    identity: bytes, queue: bytes, payload: bytes, raw_headers: bytes = b"", limit: int = MAX_BODY
) -> bytes:
    """Encode a PUBLISH, as `encode_deliver` without attempts."""
    return _message(PUBLISH, identity, queue, payload, raw_headers, 0, limit)


def body_size(identity: bytes, queue: bytes, payload: bytes, raw_headers: bytes) -> int:
    """Return the size of a frame's body without its trailer, in bytes."""
    return 10 + len(identity) + len(queue) + len(payload) + len(raw_headers)


def _message(
    kind: int,
    identity: bytes,
    queue: bytes,
    payload: bytes,
    raw_headers: bytes,
    attempts: int,
    limit: int,
) -> bytes:
    id_size = len(identity)
    headers = raw_headers or b"\0\0"
    size = body_size(identity, queue, payload, headers)
    trailer = _TRAILER
    if attempts:
        added = _FEW_ATTEMPTS[attempts] if attempts < 64 else _attempts_header(attempts)
        if size + len(added) <= limit and headers[:2] != b"\xff\xff":
            count = (headers[0] << 8) + headers[1] + 1
            headers = b"%b%b%b" % (_u16.pack(count), headers[2:], added)
            size += len(added)
    if size + 4 <= limit:
        size += 4
    else:
        trailer = b""
    return b"%b%b%b%b%b%b%b%b" % (
        _lead.pack(size, 0, _VERSION, kind, id_size),
        identity,
        _u16.pack(len(queue)),
        queue,
        _u32.pack(len(payload)),
        payload,
        headers,
        trailer,
    )


def encode_publish_ack(identity: bytes, queue: bytes) -> bytes:
    """Encode a PUBLISH_ACK, with queue and headers: clients read one or the other.

    Both have at least one byte and at most 65,535.
    """
    id_size = len(identity)
    id_length = _u16.pack(id_size)
    queue_length = _u16.pack(len(queue))
    return b"%b%b%b%b\0\0\0\0\0\2\0\x09messageId%b%b\0\x09queueName%b%b\0\0\0\0" % (
        _lead.pack(42 + 2 * (id_size + len(queue)), 0, _VERSION, PUBLISH_ACK, id_size),
        identity,
        queue_length,
        queue,
        id_length,
        identity,
        queue_length,
        queue,
    )


def encode_ack(identity: bytes) -> bytes:
    """Encode an ACK as the .NET client does: its id is the message's."""
    id_size = len(identity)
    return b"%b%b\0\0\0\0\0\0\0\0\0\0\0\0" % (
        _lead.pack(16 + id_size, 0, _VERSION, ACK, id_size),
        identity,
    )


def compressed(frame: bytes, how: Compression, threshold: int = THRESHOLD) -> bytes:
    """Return an encoded frame with its body compressed; unchanged if that saves nothing."""
    if how is Compression.NONE or len(frame) - HEADER_SIZE < threshold:
        return frame
    flag, body = compress(frame[HEADER_SIZE:], how, threshold)
    return _prefix.pack(len(body), flag) + body if flag else frame


def fitted(frame: bytes, how: Compression, threshold: int = THRESHOLD) -> bytes:
    """Return an encoded frame whose transferred body has at most MAX_BODY bytes.

    Compresses as `compressed`, and in a higher level if necessary. Raises FrameTooLarge if the
    body does not fit. Takes seconds for 64 MiB.
    """
    size = len(frame) - HEADER_SIZE
    if size > MAX_UNPACKED:
        raise FrameTooLarge(f"the frame's body has {size} bytes, the limit is {MAX_UNPACKED}")
    if how is not Compression.NONE and (size >= threshold or size > MAX_BODY):
        body = compress_to_fit(frame[HEADER_SIZE:], how, min(size - 1, MAX_BODY))
        if body is not None:
            return _prefix.pack(len(body), how) + body
    if size <= MAX_BODY:
        return frame
    if how is Compression.NONE:
        raise FrameTooLarge(
            f"the frame's body has {size} bytes, the limit is {MAX_BODY}, and compression has not "
            "been agreed upon"
        )
    raise FrameTooLarge(f"the frame's body has more than {MAX_BODY} bytes, even compressed")

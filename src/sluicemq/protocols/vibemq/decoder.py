"""Decoder of VibeMQ 1.1 frames (format: wire.py). Sans-I/O, for client and server."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.model.errors import FrameTooLarge, ProtocolError, without_traceback
from sluicemq.protocols.vibemq.compression import Compression, Unpacker
from sluicemq.protocols.vibemq.wire import (
    ERROR,
    HEADER_SIZE,
    MAX_BODY,
    MAX_STRING,
    MAX_UNPACKED,
    NO_HEADERS,
    PUBLISH,
    TOO_LONG,
    Frame,
    encode_headers,
)


class Limits(NamedTuple):
    """Limits of the input.

    frame      bytes of a transferred body; checked in the header, before the body arrives
    unpacked   bytes of a decompressed or plain body
    headers    headers of a frame; far above the server's limit, so that it can report the error
    batch      bytes that the compressed frames of one `feed` may unpack to before the rest waits
               for the next (the last frame may exceed it); 0 = no limit. A kilobyte of compressed
               frames may unpack to a hundred megabytes
    inline     bytes of a decompressed body above which a frame is a `LargeFrame`; 0 = no limit
    skip       skip a plain frame above `frame` or `unpacked` bytes and return it as TOO_LONG;
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
_MOST_QUEUES: Final = 256
"""Queue names cached by a decoder."""

_lead: Final = Struct(">IBBBH")
"""Length, flag, version, type, length of the id."""
_LEAD_SIZE: Final = _lead.size
_u32: Final = Struct(">I")
_SHORTEST: Final = 2
"""Minimum size of a body in bytes; the original server rejects shorter ones as well."""
_LONGEST: Final = 0x7FFFFFFF
"""Maximum size of a body in bytes; the original server rejects longer ones as well."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_TRAILER: Final = b"\0\0\0\0"
"""Both error strings, absent."""


class LargeFrame:
    """Complete frame above `Limits.inline` bytes that is not decoded yet, because that takes time.

    The decoder waits for it: it decodes nothing until `finish_large` is called.

    size  bytes that it holds
    """

    __slots__ = ("_data", "_decoder", "_limit", "_unpacker", "size")

    def __init__(
        self, decoder: Decoder, data: bytes, unpacker: Unpacker | None, limit: int
    ) -> None:
        """`data` is the body of a plain frame; else `unpacker` has it, up to `limit` bytes."""
        self._decoder = decoder
        self._data = data
        self._unpacker = unpacker
        self._limit = limit
        self.size = len(data) if unpacker is None else unpacker.unpacked

    def read(self, size: int = 0) -> Frame | None:
        """Decode the frame, once. May be called in another thread. Raises ProtocolError.

        Return None if it unpacks to more than `size` bytes, unless `size` is 0.
        """
        data = self._data
        if self._unpacker is not None:
            if not self._unpacker.unpack(size or self._limit):
                return None
            data = self._unpacker.body()
            self._unpacker = None
        self._data = b""
        return self._decoder.read_body(data)


class Decoder:
    """Decodes the bytes of one direction of one connection into frames.

    `error` is None until the peer sends an invalid frame; later input is ignored. `error_id` is the
    id of that frame, or "". Frames that were complete before the error are still returned, so
    callers process them first and check `error` afterwards.

    The session checks which types the peer may send and which fields they need, because it answers
    such errors and keeps the connection open.

    backlog   complete frames are left packed because of `Limits.batch`: call `feed(b"")` after
              processing the returned ones
    unpacked  bytes that the compressed frames of the last `feed` unpacked to
    large     the next frame, which the caller must read (`LargeFrame`) and report with
              `finish_large`; input is kept meanwhile
    """

    __slots__ = (
        "_first",
        "_limits",
        "_need",
        "_plain_limit",
        "_queues",
        "_quick_limit",
        "_rest",
        "_skipped",
        "backlog",
        "error",
        "error_id",
        "large",
        "unpacked",
    )

    def __init__(self, limits: Limits = _DEFAULT_LIMITS) -> None:
        self.error: ProtocolError | None = None
        self.error_id = ""
        self.backlog = False
        self.unpacked = 0
        self.large: LargeFrame | None = None
        self._skipped = 0
        """Missing bytes of a skipped frame."""
        self.allow(limits)
        self._first = True
        self._rest = bytearray()
        self._need = 0
        self._queues: dict[bytes, str] = {b"": ""}

    def allow(self, limits: Limits) -> None:
        """Set other limits, for frames that have not begun to arrive."""
        self._limits = limits
        self._plain_limit = min(limits.frame, limits.unpacked)
        self._quick_limit = min(self._plain_limit, limits.inline or self._plain_limit)

    @property
    def incomplete(self) -> bool:
        """True if a frame has been received in part."""
        if self._skipped:
            return True
        return bool(self._rest) and not self.backlog and self.large is None

    @property
    def buffered(self) -> int:
        """Bytes received of frames that are not returned yet."""
        return len(self._rest) + (0 if self.large is None else self.large.size)

    def discard(self) -> None:
        """Drop the bytes of the frames that are not returned yet."""
        self._rest.clear()
        self.backlog = False

    def finish_large(self, error: ProtocolError | None = None) -> None:
        """Report that the large frame was read, or failed. The input behind it is a backlog."""
        self.large = None
        self.error = error
        self.backlog = error is None and bool(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """Decode received bytes and return the complete frames. Never raises."""
        frames: list[Frame] = []
        if self.error is not None:
            return frames
        if self.large is not None:
            self._rest += data
            return frames
        if self._skipped and data:
            skipped = min(self._skipped, len(data))
            self._skipped -= skipped
            data = data[skipped:]
        self.backlog = False
        self.unpacked = 0
        rest = self._rest
        if rest:
            if len(rest) + len(data) < self._need:
                rest += data
                return frames
            data = b"".join((rest, data))
            rest.clear()
        try:
            end = self._parse(data, frames)
        except ProtocolError as error:
            self.error = without_traceback(error)
            return frames
        if end < len(data):
            rest += memoryview(data)[end:]
        return frames

    def _parse(self, data: bytes, frames: list[Frame]) -> int:
        """Append the complete frames, and return the index of the incomplete rest."""
        position = 0
        size = len(data)
        limit = self._quick_limit
        unpack = _lead.unpack_from
        queues = self._queues
        append = frames.append
        while position + _LEAD_SIZE <= size:
            length, flag, _, kind, id_size = unpack(data, position)
            start = position + HEADER_SIZE
            end = start + length
            if flag or end > size or not _SHORTEST <= length <= limit:
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
                                    _string(data[start + 4 : queue_at]),
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
            append(self._body(data, start, end))
            position = end
        if position:
            self._first = False
        if position < size:
            position = self._slowly(data, position, frames)
        return position

    def _slowly(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Decode frames of any form: compressed, incomplete or invalid."""
        size = len(data)
        limits = self._limits
        while position < size:
            if size - position < _u32.size:
                self._need = _u32.size
                break
            length = _u32.unpack_from(data, position)[0]
            if length < _SHORTEST:
                raise ProtocolError(f"a frame announces a body of {length} bytes")
            if length > (_LONGEST if limits.skip else limits.frame):
                raise _announced(length, limits.frame)
            start = position + HEADER_SIZE
            if size < start:
                self._need = HEADER_SIZE
                break
            flag = data[start - 1]
            if flag > Compression.BROTLI:
                raise ProtocolError(f"there is no compression {flag}")
            if flag == Compression.GZIP and not _GZIP_MAGIC.startswith(data[start : start + 2]):
                raise ProtocolError(
                    "the frame is marked gzip and is not; protocol 1.0, without a byte for "
                    "compression, looks like this: the client may be older than 1.5.0"
                    if self._first
                    else "the frame is marked gzip and is not"
                )
            if flag and length > limits.frame:
                raise _announced(length, limits.frame)
            end = start + length
            if not flag and length > self._plain_limit:
                if not limits.skip:
                    raise _announced(length, self._plain_limit)
                skipped = self._too_long(data, position, length)
                if skipped is None:
                    break
                frames.append(skipped)
                self._first = False
                position = min(end, size)
                self._skipped = end - position
                continue
            if size < end:
                # protocol 1.0 frames are shorter than their length seems: detect them early
                looked_into = flag != Compression.GZIP or size >= start + len(_GZIP_MAGIC)
                self._need = (end if looked_into else start + len(_GZIP_MAGIC)) - position
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
            frame = self._complete(data, start, end, flag)
            self._first = False
            position = end
            if frame is None:
                self._need = 0
                break
            frames.append(frame)
        return position

    def _too_long(self, data: bytes, position: int, length: int) -> Frame | None:
        """Return the TOO_LONG frame for a frame to skip, or None if more input is needed.

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
        why = f"the frame has {length} bytes, the limit is {self._plain_limit}"
        if self._plain_limit == self._limits.frame < self._limits.unpacked:
            why += f" (max_frame_bytes); up to {self._limits.unpacked} bytes may be sent compressed"
        return Frame(TOO_LONG, _string(data[id_at:id_end]), error_message=why)

    def _complete(self, data: bytes, start: int, end: int, flag: int) -> Frame | None:
        """Decode the frame with the transferred body `data[start:end]`; None if it is `large` now.

        Raises ProtocolError.
        """
        limits = self._limits
        inline = limits.inline or limits.unpacked
        if flag:
            unpacker = Unpacker(data[start:end], flag, limits.unpacked)
            if not unpacker.unpack(inline):
                self.large = LargeFrame(self, b"", unpacker, limits.unpacked)
                return None
            self.unpacked += unpacker.unpacked
            body = unpacker.body()
            return self._body(body, 0, len(body))
        if end - start > inline:
            self.large = LargeFrame(self, data[start:end], None, 0)
            return None
        return self._body(data, start, end)

    def read_body(self, data: bytes) -> Frame:
        """Decode the frame of a decompressed body. Raises ProtocolError."""
        return self._body(data, 0, len(data))

    def _body(self, data: bytes, start: int, end: int) -> Frame:
        """Decode the frame with the body `data[start:end]`. Raises ProtocolError."""
        position = start + 2
        kind = data[start + 1] if start + 2 <= end else 0
        raw_id, position = _field(data, position, end, "the id")
        if not raw_id:
            raise ProtocolError("a frame has no id")
        identity = _string(raw_id)
        self.error_id = identity
        raw_queue, position = _field(data, position, end, "the queue name")
        queue = self._queue(raw_queue)
        if position + 4 > end:
            raise _short("the payload")
        payload_at = position + 4
        position = payload_at + int.from_bytes(data[position:payload_at])
        if position + 2 > end:
            raise _short("the payload" if position > end else "the headers")
        payload = data[payload_at:position]
        headers_at = position
        count = (data[position] << 8) + data[position + 1]
        if count > self._limits.headers:
            raise ProtocolError(f"a frame has {count} headers, the limit is {self._limits.headers}")
        headers, position = (
            _headers(data, position + 2, end, count) if count else ({}, position + 2)
        )
        raw_headers = b""
        if kind == PUBLISH and headers:
            raw_headers = data[headers_at:position]
            # dropped or replaced headers must not reappear when the headers are forwarded
            if len(headers) != count or not _is_utf8(raw_headers, headers):
                raw_headers = encode_headers(headers)
        code = message = ""
        if kind == ERROR:
            raw_code, position = _field(data, position, end, "the error code")
            raw_message, _ = _field(data, position, end, "the error message")
            code, message = _string(raw_code), _string(raw_message)
        elif position < end:
            code, message = _trailer(data, position, end)
        self.error_id = ""
        return Frame(
            kind, identity, queue, payload, headers or NO_HEADERS, code, message, raw_headers
        )

    def _queue(self, raw: bytes) -> str:
        name = self._queues.get(raw)
        if name is None:
            name = _string(raw)
            if len(self._queues) >= _MOST_QUEUES:
                self._queues.clear()
            if len(raw) <= _MOST_QUEUES:
                self._queues[raw] = name
        return name


_new_frame: Final = tuple.__new__
"""Creates a Frame in half the time of its constructor."""


def _string(raw: bytes) -> str:
    """Decode a string. Raises ProtocolError if it would be too long to be sent back."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
    if len(text.encode()) > MAX_STRING:
        raise ProtocolError(
            "a string is not UTF-8, and too long with what stands for the bad bytes"
        )
    return text


def _announced(length: int, limit: int) -> FrameTooLarge:
    return FrameTooLarge(f"a frame of {length} bytes is announced, the limit is {limit}")


def _short(what: str) -> ProtocolError:
    return ProtocolError(f"a frame ends within {what}")


def _field(data: bytes, position: int, end: int, what: str) -> tuple[bytes, int]:
    """Return the bytes of a string, and the index of its end."""
    start = position + 2
    if start > end:
        raise _short(what)
    stop = start + (data[position] << 8) + data[position + 1]
    if stop > end:
        raise _short(what)
    return data[start:stop], stop


def _headers(data: bytes, position: int, end: int, count: int) -> tuple[dict[str, str], int]:
    """Return the headers that have key and value, and the index of their end."""
    headers: dict[str, str] = {}
    for _ in range(count):
        key, position = _field(data, position, end, "the headers")
        value, position = _field(data, position, end, "the headers")
        if key and value:
            headers[_string(key)] = _string(value)
    return headers, position


def _trailer(data: bytes, position: int, end: int) -> tuple[str, str]:
    """Return the error strings of a frame that is no error; "" if they are absent or invalid."""
    try:
        code, position = _field(data, position, end, "")
        message, _ = _field(data, position, end, "")
        return _string(code), _string(message)
    except ProtocolError:
        return "", ""


def _is_utf8(raw_headers: bytes, headers: Mapping[str, str]) -> bool:
    """Return whether the headers are valid UTF-8."""
    if raw_headers.isascii():
        return True
    size = 2 + sum(4 + len(key.encode()) + len(value.encode()) for key, value in headers.items())
    return size == len(raw_headers) and encode_headers(headers) == raw_headers


def decode_headers(raw_headers: bytes) -> dict[str, str]:
    """Decode headers encoded by `encode_headers`. Raises ProtocolError."""
    if len(raw_headers) < 2:
        return {}
    count = (raw_headers[0] << 8) + raw_headers[1]
    return _headers(raw_headers, 2, len(raw_headers), count)[0]

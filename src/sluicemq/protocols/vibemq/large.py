"""Large frames: worker threads (`Offload`) unpack, check, encode and compress them. Each job may
need twice the largest unpacked frame: 105 bytes of Brotli can unpack to 64 MiB.

Received frames are read by `read_large`. The frames of large messages are encoded and compressed
once for all connections of a broker: all consumers of a destination with the same compression get
the same frame for the same attempt. Further requests for it wait for the same job, and the latest
frames are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import Message
from sluicemq.protocols.offload import LARGE, Offload
from sluicemq.protocols.vibemq.compression import Compression, Unpacker
from sluicemq.protocols.vibemq.mapping import (
    check_payload_in_chunks,
    decoded_body,
    to_deliver,
)
from sluicemq.protocols.vibemq.wire import (
    HEADER_SIZE,
    MAX_BODY,
    MAX_UNPACKED,
    PUBLISH,
    REFUSED,
    Decoder,
    Frame,
    compressed,
)

MAX_CACHE_BYTES: Final = 16 << 20
"""Size of the cache of frames, in bytes."""
_ENTRY_OVERHEAD: Final = 512
"""Bytes that a cached frame takes in addition; also those of a message that cannot be sent."""


# --- received frames -----------------------------------------------------------------------------


class LargeFrame(NamedTuple):
    """Large frame whose payload is checked; `decoded` is its `mapping.decoded_body`."""

    frame: Frame
    decoded: bytes | None = None


def read_large(decoder: Decoder, large: Unpacker, size: int) -> LargeFrame | None:
    """Read the decoder's large frame, and check and decode its payload, in any thread.

    Return None if it unpacks to more than `size` bytes, unless `size` is 0. A frame with an invalid
    payload is returned as REFUSED. Raises ProtocolError.
    """
    frame = decoder.read_large(large, size)
    if frame is None:
        return None
    if frame.type != PUBLISH:
        reason = f"only a Publish may have more than {LARGE} bytes"
        return LargeFrame(Frame(REFUSED, frame.id, error_message=reason))
    try:
        if frame.payload:
            check_payload_in_chunks(frame.payload)
    except ProtocolError as error:
        return LargeFrame(Frame(REFUSED, frame.id, error_message=str(error)))
    return LargeFrame(frame, decoded_body(frame))


# --- sent frames ---------------------------------------------------------------------------------


class LargeKey(NamedTuple):
    """Cache key of a frame. `sequence` is unique in the broker; `detect_json` as in
    `mapping.wire_payload`."""

    sequence: int
    queue: bytes
    attempts: int
    compression: Compression
    detect_json: bool = True


def encode_large(message: Message, identity: bytes, key: LargeKey, threshold: int) -> bytes:
    """Return the frame of a large message, or b"" if no client could read it.

    `identity` and `threshold` as in `to_deliver` and `compressed`. Takes up to seconds; may be
    called in any thread.
    """
    frame = partial(
        to_deliver, message, identity, key.queue, key.attempts, detect_json=key.detect_json
    )
    limit = MAX_BODY if key.compression is Compression.NONE else MAX_UNPACKED
    try:
        plain = frame(limit=limit)
    except FrameTooLarge:  # more properties than a frame can have headers
        return b""
    try:
        return compressed(plain, key.compression, threshold)
    except FrameTooLarge:
        # without the additions that a frame at the limit omits
        plain = frame(limit=MAX_BODY)
        return plain if len(plain) <= MAX_BODY + HEADER_SIZE else b""


EncodedCallback = Callable[[LargeKey, bytes | Exception], None]


class LargeDeliveries:
    """Frames of large messages, with their cache and their pending requests.

    offload  worker threads of all VibeMQ connections
    """

    __slots__ = ("_cache", "_cached_bytes", "_requests", "offload")

    def __init__(self, offload: Offload) -> None:
        self.offload = offload
        self._cache: OrderedDict[LargeKey, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._requests: dict[LargeKey, list[EncodedCallback]] = {}

    def find(self, key: LargeKey) -> bytes | None:
        """Return a cached frame; None if it is not cached.

        The frame is b"" if no client could read it.
        """
        frame = self._cache.get(key)
        if frame is not None:
            self._cache.move_to_end(key)
        return frame

    def cache(self, key: LargeKey, frame: bytes) -> None:
        """Add a frame to the cache, which does not have it."""
        self._cached_bytes += _ENTRY_OVERHEAD + len(frame)
        self._cache[key] = frame
        while self._cached_bytes > MAX_CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= _ENTRY_OVERHEAD + len(oldest)

    def request(
        self, key: LargeKey, encode: Callable[[], bytes], size: int, on_encoded: EncodedCallback
    ) -> None:
        """Call `on_encoded` with the key and the frame, or the exception of `encode`.

        `size` is the memory that `encode` needs, apart from the frame.
        """
        requests = self._requests.setdefault(key, [])
        requests.append(on_encoded)
        if len(requests) == 1:
            self.offload.submit(encode, partial(self._end, key), size + MAX_BODY)

    def _end(self, key: LargeKey, frame: bytes | Exception) -> None:
        if isinstance(frame, bytes) and key not in self._cache:
            self.cache(key, frame)
        for callback in self._requests.pop(key):
            callback(key, frame)

"""DELIVER frames of large messages: encoded and compressed once for all connections of a broker.

All consumers of a destination with the same compression get the same frame for the same attempt. It
is encoded in another thread; further requests for it wait for the same job, and the latest frames
are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sluicemq.model.errors import FrameTooLarge
from sluicemq.model.message import Message
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.mapping import to_deliver
from sluicemq.protocols.vibemq.offload import Offload, OffloadedJob
from sluicemq.protocols.vibemq.wire import HEADER_SIZE, MAX_BODY, MAX_UNPACKED, fitted

KEPT_BYTES: Final = 16 << 20
"""Size of the cache of frames, in bytes."""
_ENTRY: Final = 512
"""Bytes that a cached frame takes in addition; also those of a message that cannot be sent."""


class LargeKey(NamedTuple):
    """Cache key of a frame. `sequence` is unique in the broker; `detect_json` as in
    `mapping.wire_payload`."""

    sequence: int
    queue: bytes
    attempts: int
    compression: Compression
    detect_json: bool = True


class LargeDelivery(NamedTuple):
    """Request for a frame. `identity` and `threshold` as in `to_deliver` and `fitted`."""

    key: LargeKey
    message: Message
    identity: bytes
    threshold: int

    def build(self) -> bytes:
        """Return the frame, or b"" if no client could read it.

        Takes up to seconds; may be called in any thread.
        """
        key = self.key
        limit = MAX_BODY if key.compression is Compression.NONE else MAX_UNPACKED
        frame = to_deliver(
            self.message, self.identity, key.queue, key.attempts, limit, key.detect_json
        )
        try:
            return fitted(frame, key.compression, self.threshold)
        except FrameTooLarge:
            # encode again with the additions that a frame at the limit omits
            frame = to_deliver(
                self.message,
                self.identity,
                key.queue,
                key.attempts,
                detect_json=key.detect_json,
            )
            return frame if len(frame) <= MAX_BODY + HEADER_SIZE else b""


Built = Callable[[bytes | Exception], None]


class PendingFrame:
    """Pending request for a frame. Created by `LargeDeliveries.request`."""

    __slots__ = ("_built", "_deliveries", "_key")

    def __init__(self, deliveries: LargeDeliveries, key: LargeKey, built: Built) -> None:
        self._deliveries = deliveries
        self._key = key
        self._built: Built | None = built

    def cancel(self) -> None:
        """Cancel the request."""
        if self._built is not None:
            self._built = None
            self._deliveries.forget(self._key, self)

    def finish(self, frame: bytes | Exception) -> None:
        """Report the frame."""
        built, self._built = self._built, None
        if built is not None:
            built(frame)


class LargeDeliveries:
    """Frames of large messages, with their cache and their pending requests.

    offload  worker threads of all VibeMQ connections
    """

    __slots__ = ("_jobs", "_kept", "_kept_bytes", "_requests", "offload")

    def __init__(self, offload: Offload) -> None:
        self.offload = offload
        self._kept: OrderedDict[LargeKey, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._jobs: dict[LargeKey, OffloadedJob] = {}
        self._requests: dict[LargeKey, dict[PendingFrame, None]] = {}

    def find(self, key: LargeKey) -> bytes | None:
        """Return a cached frame; None if it is not cached.

        The frame is b"" if no client could read it.
        """
        frame = self._kept.get(key)
        if frame is not None:
            self._kept.move_to_end(key)
        return frame

    def keep(self, key: LargeKey, frame: bytes) -> None:
        """Add a frame to the cache."""
        if key not in self._kept:
            self._kept_bytes += _ENTRY + len(frame)
        self._kept[key] = frame
        while self._kept_bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= _ENTRY + len(oldest)

    def request(self, delivery: LargeDelivery, built: Built) -> PendingFrame:
        """Request a frame. `built` is called with it, or with the exception of building it.

        The frame is b"" if no client could read it. The call may happen before this returns.
        """
        key = delivery.key
        request = PendingFrame(self, key, built)
        requests = self._requests.get(key)
        if requests is not None:
            requests[request] = None
            return request
        self._requests[key] = {request: None}
        size = 2 * len(delivery.message.body) + MAX_BODY
        job = self.offload.submit(delivery.build, partial(self._end, key), size)
        if not job.ended:
            self._jobs[key] = job
        return request

    def forget(self, key: LargeKey, request: PendingFrame) -> None:
        """Remove a cancelled request."""
        requests = self._requests.get(key)
        if requests is None:
            return
        requests.pop(request, None)
        if not requests:
            del self._requests[key]
            job = self._jobs.pop(key, None)
            if job is not None:
                job.cancel()

    def _end(self, key: LargeKey, frame: bytes | Exception) -> None:
        self._jobs.pop(key, None)
        if isinstance(frame, bytes):
            self.keep(key, frame)
        for request in self._requests.pop(key, {}):
            request.finish(frame)

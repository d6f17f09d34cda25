"""DELIVER frames of large messages: made and compressed once, for all connections of a broker.

A frame is the same for every consumer of a destination that has agreed upon the same compression,
as long as it is the same attempt. It is made in another thread, whoever asks meanwhile waits for
the same job, and the youngest frames are kept for those who ask later.
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
"""Bytes of frames that are kept."""
_ENTRY: Final = 512
"""Bytes that a frame takes up in addition; all of those of a message that does not fit."""


class LargeKey(NamedTuple):
    """What a frame depends on. A message's sequence is that of no other one of the broker;
    `detect_json` as in `mapping.shown_payload`."""

    sequence: int
    queue: bytes
    attempts: int
    compression: Compression
    detect_json: bool = True


class LargeDelivery(NamedTuple):
    """A frame that is asked for. `identity` and `threshold`: see `to_deliver` and `fitted`."""

    key: LargeKey
    message: Message
    identity: bytes
    threshold: int

    def build(self) -> bytes:
        """Return the frame, or b"" if there is none that a client could read. Takes up to seconds;
        may be called in any thread."""
        key = self.key
        limit = MAX_BODY if key.compression is Compression.NONE else MAX_UNPACKED
        frame = to_deliver(
            self.message, self.identity, key.queue, key.attempts, limit, key.detect_json
        )
        try:
            return fitted(frame, key.compression, self.threshold)
        except FrameTooLarge:
            # without what is left out in a frame at the limit
            frame = to_deliver(
                self.message,
                self.identity,
                key.queue,
                key.attempts,
                detect_json=key.detect_json,
            )
            return frame if len(frame) <= MAX_BODY + HEADER_SIZE else b""


Built = Callable[[bytes | Exception], None]


class Request:
    """Somebody waits for a frame. Made by `LargeDeliveries.request`."""

    __slots__ = ("_built", "_deliveries", "_key")

    def __init__(self, deliveries: LargeDeliveries, key: LargeKey, built: Built) -> None:
        self._deliveries = deliveries
        self._key = key
        self._built: Built | None = built

    def cancel(self) -> None:
        """Wait no longer."""
        if self._built is not None:
            self._built = None
            self._deliveries.forget(self._key, self)

    def finish(self, frame: bytes | Exception) -> None:
        """Report the frame."""
        built, self._built = self._built, None
        if built is not None:
            built(frame)


class LargeDeliveries:
    """See the module.

    offload  for all that is done in another thread for VibeMQ
    """

    __slots__ = ("_jobs", "_kept", "_kept_bytes", "_requests", "offload")

    def __init__(self, offload: Offload) -> None:
        self.offload = offload
        self._kept: OrderedDict[LargeKey, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._jobs: dict[LargeKey, OffloadedJob] = {}
        self._requests: dict[LargeKey, dict[Request, None]] = {}

    def find(self, key: LargeKey) -> bytes | None:
        """Return the frame if it has been made not long ago; b"" if there is none that a client
        could read, None if that is not known."""
        frame = self._kept.get(key)
        if frame is not None:
            self._kept.move_to_end(key)
        return frame

    def keep(self, key: LargeKey, frame: bytes) -> None:
        """Keep a frame for others."""
        if key not in self._kept:
            self._kept_bytes += _ENTRY + len(frame)
        self._kept[key] = frame
        while self._kept_bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= _ENTRY + len(oldest)

    def request(self, delivery: LargeDelivery, built: Built) -> Request:
        """Have a frame made; `built` is called with it, with b"" if there is none that a client
        could read, or with what went wrong. That may be before this returns."""
        key = delivery.key
        request = Request(self, key, built)
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

    def forget(self, key: LargeKey, request: Request) -> None:
        """A request has been cancelled."""
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

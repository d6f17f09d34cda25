"""Large frames: worker threads unpack, check, encode and compress them.

A broker has one `Offload`. It runs few jobs at a time, in the order of submission, because each may
need twice the largest unpacked frame: 105 bytes of Brotli can unpack to 64 MiB. That memory is
reserved before a job starts. A job waits while other connections' input takes the memory; one job
can always run, so that waiting ends.

Received frames are read by `read_large`. The frames of large messages are encoded and compressed
once for all connections of a broker: all consumers of a destination with the same compression get
the same frame for the same attempt. Further requests for it wait for the same job, and the latest
frames are cached.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from sluicemq.model.errors import FrameTooLarge, ProtocolError, without_traceback
from sluicemq.model.message import Message
from sluicemq.protocols.transport import Background
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

LARGE: Final = 256 * 1024
"""Size of a body, in bytes, above which another thread unpacks, checks and compresses it."""
MAX_RUNNING_JOBS: Final = 2
"""Maximum number of running jobs."""
MAX_CACHE_BYTES: Final = 16 << 20
"""Size of the cache of frames, in bytes."""
_ENTRY_OVERHEAD: Final = 512
"""Bytes that a cached frame takes in addition; also those of a message that cannot be sent."""

Result = TypeVar("Result")


class Memory(Protocol):
    """Memory budget of unpacked frames."""

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes. Return False if the budget is exceeded and others have reserved."""

    def unreserve(self, size: int) -> None:
        """Release `size` reserved bytes."""


@dataclass(slots=True, eq=False)
class OffloadedJob:
    """Submitted job. Created by `Offload.submit`.

    work      function to call in another thread; None once the job has ended
    callback  function to call with the result; None once the job has ended or is cancelled
    size      bytes of memory that it needs at most
    """

    work: Callable[[], Any] | None
    callback: Callable[[Any], None] | None
    size: int

    def cancel(self) -> None:
        """Do not report the result, and do not start the job if it has not started."""
        self.work = self.callback = None

    def run(self) -> object:
        """Return the result or the exception of the work. Called in another thread."""
        work = self.work
        try:
            return None if work is None else work()
        except Exception as error:
            return without_traceback(error)


class Offload:
    """Runs jobs in worker threads. All methods are called on the event loop."""

    __slots__ = ("_background", "_memory", "_running", "_waiting")

    def __init__(self, background: Background, memory: Memory) -> None:
        self._background = background
        self._memory = memory
        self._waiting: deque[OffloadedJob] = deque()
        self._running = 0

    def submit(
        self,
        work: Callable[[], Result],
        callback: Callable[[Result | Exception], None],
        size: int,
    ) -> OffloadedJob:
        """Call `work` in another thread, then `callback` on the event loop.

        `callback` gets the result, or the exception that `work` raised. `size`: bytes of memory
        that it needs at most.
        """
        job = OffloadedJob(work, callback, size)
        self._waiting.append(job)
        self._start_jobs()
        return job

    def _start_jobs(self) -> None:
        while self._waiting and self._running < MAX_RUNNING_JOBS:
            job = self._waiting[0]
            if job.work is None:
                self._waiting.popleft()
                continue
            if not self._memory.reserve(job.size):
                return
            self._waiting.popleft()
            self._running += 1
            self._background.submit(job.run, partial(self._end, job))

    def _end(self, job: OffloadedJob, result: object) -> None:
        self._running -= 1
        callback = job.callback
        job.cancel()
        try:
            if callback is not None:
                callback(result)
        finally:
            self._memory.unreserve(job.size)
            self._start_jobs()


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
        return compressed(frame(limit=limit), key.compression, threshold)
    except FrameTooLarge:
        # without the additions that a frame at the limit omits
        plain = frame(limit=MAX_BODY)
        return plain if len(plain) <= MAX_BODY + HEADER_SIZE else b""
    except ProtocolError:  # more properties than a frame can have headers
        return b""


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

        `size` is that of the message's body and headers.
        """
        requests = self._requests.setdefault(key, [])
        requests.append(on_encoded)
        if len(requests) == 1:
            self.offload.submit(encode, partial(self._end, key), 2 * size + MAX_BODY)

    def _end(self, key: LargeKey, frame: bytes | Exception) -> None:
        if isinstance(frame, bytes):
            self.cache(key, frame)
        for callback in self._requests.pop(key):
            callback(key, frame)

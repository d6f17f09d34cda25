"""Decoding of a stream of bytes into frames: the part that all protocols share.

received bytes ──feed──> complete frames
        └── an unfinished frame stays, until its next bytes have arrived
"""

from __future__ import annotations

from typing import Generic, TypeVar

from sluicemq.model.errors import ProtocolError, without_traceback

Frame = TypeVar("Frame")


class FrameDecoder(Generic[Frame]):
    """Decodes the bytes of one direction of one connection into frames. A protocol adds `_parse`.

    A frame that is too long may be skipped: its remaining bytes are dropped as they arrive.

    `error` is None until the peer violates the protocol; later input is ignored. Frames that were
    complete before the error are still returned, so callers process them first and check `error`
    afterwards.
    """

    __slots__ = ("_need", "_rest", "_skip", "error")

    def __init__(self) -> None:
        self.error: ProtocolError | None = None
        self._rest = bytearray()
        """Bytes of the unfinished frame."""
        self._need = 0
        """Bytes of it that `_parse` needs to continue; 0 = any more."""
        self._skip = 0
        """Bytes to be dropped before the next frame."""

    @property
    def incomplete(self) -> bool:
        """True if a frame has been received in part."""
        return bool(self._rest or self._skip)

    @property
    def buffered(self) -> int:
        """Bytes held of frames that are not returned yet; 1 while one is being skipped."""
        return len(self._rest) or int(self._skip > 0)

    def discard(self) -> None:
        """Drop the bytes of the frames that are not returned yet."""
        self._rest.clear()

    def feed(self, data: bytes) -> list[Frame]:
        """Decode received bytes and return the complete frames. Never raises."""
        frames: list[Frame] = []
        if self.error is not None:
            return frames
        if self._skip:
            count = min(self._skip, len(data))
            self._skip -= count
            data = data[count:]
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
        """Append the complete frames, and return the index of the incomplete rest.

        With a rest, `_need` is set; `_skip` may be set without one. Raises ProtocolError.
        """
        raise NotImplementedError

"""Frames of one direction, and resynchronisation after missing or invalid bytes.

in step       the codec receives all bytes
out of step   bytes are missing, the codec has reported an error, or the capture begins within
              the connection: a new codec tries each position that looks like the beginning of a
              frame. The first position at which it finds a frame without an error before it is
              the next beginning; the bytes between become one row with the reason
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sluicemq.pipeline.decode.captures import NO_TIME
from sluicemq.pipeline.decode.codecs import Codec
from sluicemq.pipeline.decode.columns import FrameColumns, RowBuffer
from sluicemq.pipeline.decode.options import DecodeOptions
from sluicemq.pipeline.decode.tcp import Chunk

_TRIAL: Final = 64 << 10
"""Bytes without an error after which a beginning is accepted before a frame is complete."""
_OVERLAP: Final = 64
"""Overlap of searches in bytes, not less than the longest signature."""

MID_STREAM: Final = "the capture begins within the connection"


class Flow:
    """Bytes of one direction of a connection.

    Without a codec, they are one row with the reason, if there is one.
    """

    def __init__(
        self,
        rows: RowBuffer,
        place: tuple[int, str, str, str | None],
        kind: type[Codec] | None,
        arguments: tuple[bool, DecodeOptions],
        begins: bool,
        reason: str | None,
    ) -> None:
        """Set the row columns between `file` and `time`, and how codecs are constructed.

        `begins`: the first byte is the first of the connection; otherwise, `reason` is why the
        bytes before the first frame are not decoded, None if that is no error."""
        self._rows = rows
        self._place = place
        self._kind = kind
        self._arguments = arguments
        self._codec = kind(*arguments) if kind is not None and begins else None
        """None: out of step."""
        self._kept = bytearray()
        """Bytes from `_begin` on; out of step, the last bytes, to search from index `_from` on."""
        self._from = 0
        self._begin = 0
        """Position of the first byte that is not in a row yet."""
        self._end = 0
        """Position behind the last byte."""
        self._reason = reason
        self._since = NO_TIME
        """Time at which synchronisation was lost."""
        self._gaps = 0
        """Number of gaps while out of step, except the one that is the reason."""
        self._latest = NO_TIME

    def emit(
        self, time: int, offset: int | None, length: int | None, columns: FrameColumns
    ) -> None:
        """Add a row."""
        known = None if time == NO_TIME else time
        self._rows.add((*self._place, known, offset, length), columns)

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add the next bytes."""
        for chunk in chunks:
            if chunk.missing:
                self._skip(chunk)
            self._take(chunk)

    def end(self, closed: bool) -> None:
        """Handle the end of the stream; `closed`: the connection had ended."""
        if self._codec is not None:
            self._accept(self._codec, self._codec.end())
        if self._codec is None:
            self._report(self._end)
        elif self._codec.incomplete and self._end > self._begin:
            size = self._end - self._begin
            what = "connection" if closed else "capture"
            text = f"the {what} ends within a frame, of which {size} bytes have come"
            self.emit(self._latest, self._begin, size, FrameColumns(error=text))

    def _take(self, chunk: Chunk) -> None:
        self._end += len(chunk.data)
        self._latest = chunk.time
        self._kept += chunk.data
        if self._codec is not None:
            self._accept(self._codec, self._codec.feed(chunk.data))
        while self._codec is None and (found := self._search()) is not None:
            self._codec, frames = found
            self._accept(self._codec, frames)

    def _skip(self, chunk: Chunk) -> None:
        if self._codec is None:
            self._gaps += 1
        else:
            reason = f"{chunk.missing} bytes are missing in the capture at {self._end}"
            if chunk.cut:
                reason += ", as packets were captured in part only (tcpdump -s 0 takes all)"
            self._fall_out(reason)
        self._kept.clear()
        self._from = 0
        self._end += chunk.missing

    def _accept(self, codec: Codec, frames: list[Any]) -> None:
        """Emit rows for the frames that `codec` found in the kept bytes."""
        at = 0
        for frame in frames:
            size = codec.size(self._kept, at, frame)
            self.emit(self._latest, self._begin + at, size, codec.describe(frame))
            at += size
        if codec.error is None and not codec.incomplete:
            # blank lines between frames belong to no frame
            at = len(self._kept)
        del self._kept[:at]
        self._begin += at
        if codec.error is not None:
            self._fall_out(str(codec.error))
            self._from = 1

    def _fall_out(self, reason: str) -> None:
        self._codec = None
        self._reason = reason
        self._since = self._latest

    def _search(self) -> tuple[Codec, list[Any]] | None:
        """Return the next codec in step, and the frames it found in the kept bytes.

        Return None if more bytes are needed."""
        kind, at = self._kind, self._from
        while (
            kind is not None
            and kind.signature is not None
            and (match := kind.signature.search(self._kept, at)) is not None
        ):
            at = match.start()
            codec = kind(*self._arguments)
            rest = bytes(memoryview(self._kept)[at:])
            frames = codec.feed(rest)
            if frames or (codec.error is None and len(rest) >= _TRIAL):
                self._report(self._end - len(rest))
                self._begin = self._end - len(rest)
                self._kept = bytearray(rest)
                return codec, frames
            if codec.error is None:
                break
            at += 1
        else:
            at = max(at, len(self._kept) - _OVERLAP)
        # no frame begins in the bytes before
        del self._kept[:at]
        self._from = 0
        return None

    def _report(self, until: int) -> None:
        """Emit a row with the reason why the bytes before `until` were not decoded."""
        size = until - self._begin
        if size > 0:
            more = f", and {self._gaps} more gaps" if self._gaps else ""
            text = f"{self._reason}{more}; {size} bytes from {self._begin} on are not decoded"
            time = self._latest if self._since == NO_TIME else self._since
            error = None if self._reason is None else text
            self.emit(time, self._begin, size, FrameColumns(error=error))
        self._gaps = 0

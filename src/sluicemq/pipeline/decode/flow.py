"""Frames of one direction, and resynchronisation after missing or invalid bytes.

in step       the codec receives all bytes
out of step   bytes are missing, the codec has reported an error, or the capture begins within
              the connection: a new codec tries each position that looks like the beginning of a
              frame. The first position at which it finds a frame without an error before it is
              the next beginning; the bytes between become one row with the reason
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from sluicemq.pipeline.decode.captures import NO_TIME
from sluicemq.pipeline.decode.codec import Codec, FrameColumns
from sluicemq.pipeline.decode.options import DecodeOptions
from sluicemq.pipeline.decode.payload import Portion
from sluicemq.pipeline.decode.reassembly import Gap

Emit = Callable[[int, int, int, FrameColumns | None, str | None], None]
"""Called with time, offset, length, a frame's columns, and the error."""

_TRIAL: Final = 64 << 10
"""Bytes without an error after which a beginning is accepted before a frame is complete."""
_OVERLAP: Final = 64
"""Overlap of searches in bytes, not less than the longest signature."""

MID_STREAM: Final = "the capture begins within the connection"


class Flow:
    """Frames of one direction of a connection with a known protocol."""

    def __init__(
        self, kind: type[Codec], to_server: bool, begins: bool, options: DecodeOptions, emit: Emit
    ) -> None:
        """Set up the codec; `begins`: the first byte is the first of the connection."""
        self._kind = kind
        self._to_server = to_server
        self._options = options
        self._emit = emit
        self._codec: Codec | None = self._new() if begins else None
        self._begin = 0
        """Position of the first byte that is not in a row yet."""
        self._seen = 0
        """Position behind the last byte."""
        self._kept = bytearray()
        """Bytes from `_begin` on, for codecs with `keeps`."""
        self._reason = "" if begins else MID_STREAM
        self._since = NO_TIME
        """Time at which synchronisation was lost."""
        self._gaps = 0
        """Number of gaps while out of step, except the one that is the reason."""
        self._window = bytearray()
        """Out of step: the last bytes, to search from index `_from` on."""
        self._from = 0
        self._latest = NO_TIME

    def _new(self) -> Codec:
        return self._kind(self._to_server, self._options.max_frame_bytes, self._options.secrets)

    def take(self, portion: Portion) -> None:
        """Add the next bytes."""
        data = portion.data
        self._seen = portion.offset + len(data)
        self._latest = int(portion.time[-1])
        if self._codec is not None:
            self._accept(self._codec, portion.times, data, self._codec.feed(data))
        else:
            self._window += data
        while self._codec is None and (found := self._search()) is not None:
            codec, data, frames = found
            self._codec = codec
            self._accept(codec, portion.times, data, frames)

    def gap(self, gap: Gap) -> None:
        """Add a gap: missing bytes."""
        if self._codec is None:
            self._gaps += 1
        else:
            self._reason = f"{gap.size} bytes are missing in the capture at {gap.offset}"
            if gap.cut:
                self._reason += ", as packets were captured in part only (tcpdump -s 0 takes all)"
        self._seen = gap.offset + gap.size
        self._fall_out(b"", 0)

    def end(self, closed: bool) -> None:
        """Handle the end of the stream; `closed`: the connection had ended."""
        codec = self._codec
        if codec is not None:
            self._accept(codec, lambda places: [self._latest] * len(places), b"", codec.end())
        if self._codec is None:
            self._report(self._seen)
        elif self._codec.incomplete and self._seen > self._begin:
            size = self._seen - self._begin
            what = "connection" if closed else "capture"
            why = f"the {what} ends within a frame, of which {size} bytes have come"
            self._emit(self._latest, self._begin, size, None, why)

    def _accept(
        self,
        codec: Codec,
        times: Callable[[list[int]], list[int]],
        data: bytes,
        frames: list[Any],
    ) -> None:
        """Emit rows for the frames that `codec` returned for the kept bytes and `data`."""
        if codec.keeps and (self._kept or not frames):
            self._kept += data
            data = bytes(self._kept) if frames else b""
        if frames:
            at = 0
            sizes: list[int] = []
            for frame in frames:
                sizes.append(codec.size(data, at, frame))
                at += sizes[-1]
            ends = list(accumulate(sizes, initial=self._begin))[1:]
            for frame, size, end, time in zip(frames, sizes, ends, times(ends), strict=True):
                self._emit(time, end - size, size, codec.describe(frame), None)
            self._begin += at
            if codec.keeps:
                self._kept = bytearray(memoryview(data)[at:])
        if codec.error is not None:
            self._reason = str(codec.error)
            left = max(0, len(data) - (self._seen - self._begin))
            rest = bytes(self._kept) if codec.keeps else data[left:]
            self._fall_out(rest, int(self._seen - len(rest) == self._begin))
        elif self._kept and not codec.incomplete:
            # blank lines between frames belong to no frame
            self._begin += len(self._kept)
            self._kept.clear()

    def _fall_out(self, rest: bytes, first: int) -> None:
        """Start to search for a beginning in the last bytes `rest`, from index `first` on."""
        if self._codec is not None:
            self._since = self._latest
        self._codec = None
        self._kept.clear()
        self._window = bytearray(rest)
        self._from = first

    def _search(self) -> tuple[Codec, bytes, list[Any]] | None:
        """Return the next codec in step, with the bytes from its start on and their frames.

        Return None if more bytes are needed."""
        signature = self._kind.signature
        window = self._window
        at = self._from
        while signature is not None and (match := signature.search(window, at)) is not None:
            at = match.start()
            codec = self._new()
            rest = bytes(memoryview(window)[at:])
            frames = codec.feed(rest)
            if not frames and codec.error is not None:
                at += 1
                continue
            if frames or len(rest) >= _TRIAL:
                self._report(self._seen - len(rest))
                self._begin = self._seen - len(rest)
                self._window = bytearray()
                return codec, rest, frames
            self._drop(at)
            return None
        self._drop(max(at, len(window) - _OVERLAP))
        return None

    def _drop(self, size: int) -> None:
        """Drop the first bytes of the window, in which no frame begins."""
        del self._window[:size]
        self._from = 0

    def _report(self, until: int) -> None:
        """Emit a row with the reason why the bytes before `until` were not decoded."""
        size = until - self._begin
        if size > 0:
            more = f", and {self._gaps} more gaps" if self._gaps else ""
            text = f"{self._reason}{more}; {size} bytes from {self._begin} on are not decoded"
            time = self._latest if self._since == NO_TIME else self._since
            self._emit(time, self._begin, size, None, text)
        self._gaps = 0


class Unread:
    """Direction that is not decoded; only its bytes are counted."""

    def __init__(self, why: str | None, emit: Emit) -> None:
        """Set the reason `why`, None if that is no error."""
        self._why = why
        self._emit = emit
        self._seen = 0
        self._latest = NO_TIME

    def take(self, portion: Portion) -> None:
        """Count the next bytes."""
        self._seen = portion.offset + len(portion.data)
        self._latest = int(portion.time[-1])

    def gap(self, gap: Gap) -> None:
        """Count missing bytes."""
        self._seen = gap.offset + gap.size

    def end(self, closed: bool) -> None:
        """Emit a row with the reason, if there is one."""
        if self._seen:
            self._emit(self._latest, 0, self._seen, None, self._why)

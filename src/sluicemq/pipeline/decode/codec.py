"""Interface between the decoding of streams and the protocols' server codecs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Property

Pairs = list[tuple[str, str | None]]

HIDDEN: Final = "***"
"""Replacement for passwords."""


class FrameColumns(NamedTuple):
    """Columns of a frame that depend on its protocol; see columns.py."""

    frame: str | None
    packet_type: int | None = None
    destination: str | None = None
    destination_kind: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    request_id: str | None = None
    reply_to: str | None = None
    priority: int | None = None
    properties: Pairs | None = None
    body_kind: str | None = None
    body: bytes | None = None
    error: str | None = None


class Codec(ABC):
    """Decoder of one direction of a connection, starting at the beginning of a frame.

    It calls the server's codec (protocols/*/wire.py), which does not report frame boundaries;
    `size` computes the length of each frame that the codec returned.
    """

    name: ClassVar[str]
    signature: ClassVar[re.Pattern[bytes] | None] = None
    """Pattern of the beginning of a frame, for resynchronisation. None: frames are found at the
    beginning of a connection only."""
    keeps: ClassVar[bool] = True
    """True if `size` needs the frame's bytes."""

    def __init__(self, to_server: bool, limit: int, secrets: bool) -> None:
        """Set `limit`, the maximum size of a frame in bytes; `secrets` includes passwords."""
        self.to_server = to_server
        self.limit = limit
        self.secrets = secrets
        self._decoder = self._new_decoder()

    @abstractmethod
    def _new_decoder(self) -> Any:
        """Return the server's codec, with `error`, `incomplete` and `feed`."""

    @property
    def error(self) -> ProtocolError | None:
        """Error in the bytes after the last frame; decoding stops there."""
        error: ProtocolError | None = self._decoder.error
        return error

    @property
    def incomplete(self) -> bool:
        """True if a frame has begun and has not ended."""
        return bool(self._decoder.incomplete)

    def feed(self, data: bytes) -> list[Any]:
        """Add bytes and return the frames that are complete now. Never raises."""
        frames: list[Any] = self._decoder.feed(data)
        return frames

    def end(self) -> list[Any]:
        """Return the frames that the end of the stream completes."""
        return []

    @abstractmethod
    def size(self, data: bytes, at: int, frame: Any) -> int:
        """Return the size in bytes of a frame returned by `feed`, which begins at `data[at]`."""

    @abstractmethod
    def describe(self, frame: Any) -> FrameColumns:
        """Return a frame's columns. Never raises: an invalid part sets the column `error`."""


def printable_bytes(raw: bytes) -> str:
    """Return a name as text; a byte that is not UTF-8 becomes \\xNN."""
    return raw.decode("utf-8", "backslashreplace")


def printable_text(text: str) -> str:
    """Return text that a table can store.

    Half a surrogate pair becomes the byte that it represents, or \\uNNNN."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def printable_properties(properties: Iterable[tuple[str, Property]]) -> Pairs | None:
    """Return values as text: true and false, decimal numbers, bytes in base64."""
    return [(printable_text(name), _as_text(value)) for name, value in properties] or None


def _as_text(value: Property) -> str | None:
    if isinstance(value, str):
        return printable_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return None if value is None else repr(value)


def printable_name(text: str | None) -> str | None:
    """Return the text as `printable_text`, None for None."""
    return printable_text(text) if text else None

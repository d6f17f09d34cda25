"""What the decoding of a stream asks of a protocol: the server's codec, and what its frames say."""

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
"""In place of a password."""


class Said(NamedTuple):
    """The columns of a frame that depend on its protocol; see columns.py."""

    frame: str
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
    """One direction of one connection, from the beginning of a frame on.

    It decodes nothing itself: that is done by the codec of the server (protocols/*/wire.py), which
    does not tell where its frames begin and end. `size` does, for frames that the codec has taken.
    """

    name: ClassVar[str]
    signature: ClassVar[re.Pattern[bytes] | None] = None
    """How frames begin, as far as bytes can tell: places where it may be worth while to try. None:
    frames are found at the beginning of a connection only."""
    keeps: ClassVar[bool] = True
    """Whether `size` wants the frame's bytes."""

    def __init__(self, to_server: bool, limit: int, secrets: bool) -> None:
        """`limit` in bytes of a frame; `secrets` shows passwords."""
        self.to_server = to_server
        self.limit = limit
        self.secrets = secrets

    @property
    @abstractmethod
    def error(self) -> ProtocolError | None:
        """What is wrong with what comes after the last frame; nothing more is decoded then."""

    @property
    @abstractmethod
    def incomplete(self) -> bool:
        """Whether a frame has begun and has not ended."""

    @abstractmethod
    def feed(self, data: bytes) -> list[Any]:
        """Take bytes; give the frames that are complete now. Never raises."""

    def end(self) -> list[Any]:
        """The frames that are complete because nothing more comes."""
        return []

    @abstractmethod
    def size(self, data: bytes, at: int, frame: Any) -> int:
        """Bytes of a frame that `feed` has given and that begins at `data[at]`."""

    @abstractmethod
    def said(self, frame: Any) -> Said:
        """What a frame says. Never raises: what is wrong with a part of it is its `error`."""


def shown_bytes(raw: bytes) -> str:
    """Names that may be any bytes: what is not UTF-8 is spelled \\xNN."""
    return raw.decode("utf-8", "backslashreplace")


def shown_text(text: str) -> str:
    """Text as a table can hold it: half a surrogate pair becomes the byte that it stands for, or is
    spelled \\uNNNN."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def shown_properties(properties: Iterable[tuple[str, Property]]) -> Pairs | None:
    """Values as text: true and false, numbers in decimal, bytes in base64."""
    pairs: Pairs = []
    for name, value in properties:
        if isinstance(value, str):
            text: str | None = shown_text(value)
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, bytes):
            text = b64encode(value).decode()
        else:
            text = None if value is None else repr(value)
        pairs.append((shown_text(name), text))
    return pairs or None


def shown_name(text: str | None) -> str | None:
    """None for what is absent."""
    return shown_text(text) if text else None

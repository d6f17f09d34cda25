"""Codecs of request-response protocols: msglite's HTTP gateway and JMQ's port mapper."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Final

from sluicemq.model.errors import ConnectionLost, FrameTooLarge, ProtocolError
from sluicemq.pipeline.decode.codec import (
    HIDDEN,
    Codec,
    FrameColumns,
    printable_properties,
    printable_text,
)
from sluicemq.protocols.jmq.wire import MAX_LINE, PORT_MAPPER_VERSION, read_services
from sluicemq.protocols.msglite.http import GatewayRequest, HttpLimits, RequestReader

_LONGEST_ANSWER: Final = 1 << 16
"""Maximum size of a port mapper's response, as in clients."""


class _Exchange(Codec):
    """Collects the bytes of one side, which are one frame."""

    def _new_decoder(self) -> None:
        self._received = bytearray()
        self._done = False
        self._error: ProtocolError | None = None

    @property
    def error(self) -> ProtocolError | None:
        return self._error

    @property
    def incomplete(self) -> bool:
        return bool(self._received) and not self._done

    def feed(self, data: bytes) -> list[Any]:
        return [] if self._done or self._error is not None else self._take(data)

    @abstractmethod
    def _take(self, data: bytes) -> list[Any]:
        """Implement `feed`, until a frame is complete or an error has occurred."""

    def _collect(self, data: bytes, limit: int) -> None:
        if len(self._received) + len(data) > limit:
            self._error = FrameTooLarge(f"a request or response is larger than {limit} bytes")
            self._received.clear()
        else:
            self._received += data

    def end(self) -> list[Any]:
        return self._finish() if self.incomplete and self._error is None else []

    def _finish(self) -> list[Any]:
        self._done = True
        return [bytes(self._received)]

    def size(self, data: bytes, at: int, frame: object) -> int:
        return len(data) - at


class PortMapperCodec(_Exchange):
    """JMQ's port mapper: an optional line with the version, and a list of services."""

    name = "jmq-portmapper"

    def _take(self, data: bytes) -> list[bytes]:
        self._collect(data, MAX_LINE if self.to_server else _LONGEST_ANSWER)
        received = self._received
        if self.to_server:
            line = received.partition(b"\n")[0].strip(b"\r")
            if line and not line.isdigit():
                self._error = ProtocolError("the port mapper request is not a version number")
        elif not received.startswith((b"%d " % PORT_MAPPER_VERSION)[: len(received)]):
            self._error = ProtocolError("the response is not a port mapper's")
        complete = b"\n" in received if self.to_server else received.endswith(b"\n.\n")
        return self._finish() if complete and self._error is None else []

    def describe(self, frame: bytes) -> FrameColumns:
        if self.to_server:
            return FrameColumns("request", body=frame)
        try:
            services = read_services(frame)
        except ConnectionLost as fault:
            return FrameColumns("services", body=frame, error=str(fault))
        rows = ((row.name, f"{row.protocol} {row.type} {row.port}") for row in services)
        return FrameColumns("services", properties=printable_properties(rows), body=frame)


class HttpCodec(_Exchange):
    """Codec of msglite's HTTP gateway; a response is one frame, because it has no decoder."""

    name = "msglite-http"

    _SECRETS: ClassVar = frozenset({"Authorization", "Proxy-Authorization", "Cookie"})

    def _new_decoder(self) -> None:
        super()._new_decoder()
        self._reader = RequestReader(HttpLimits(body=self.limit))

    @property
    def incomplete(self) -> bool:
        return self._reader.begun and not self._done if self.to_server else super().incomplete

    def _take(self, data: bytes) -> list[GatewayRequest]:
        if not self.to_server:
            self._collect(data, self.limit)
            return []
        self._reader.feed(data)
        return self._request()

    def _finish(self) -> list[GatewayRequest | bytes]:
        if not self.to_server:
            return super()._finish()
        self._reader.end()
        return list(self._request())

    def _request(self) -> list[GatewayRequest]:
        self._error = self._reader.error
        self._done = self._reader.request is not None
        return [] if self._reader.request is None else [self._reader.request]

    def describe(self, frame: GatewayRequest | bytes) -> FrameColumns:
        if isinstance(frame, bytes):
            return FrameColumns("response", body=frame)
        headers = [
            (name, HIDDEN if name in self._SECRETS and not self.secrets else value)
            for name, value in frame.headers.items()
        ]
        first = [("method", frame.method), ("url", frame.url), ("protocol", frame.protocol)]
        return FrameColumns(
            "request",
            destination=printable_text(frame.url.partition("?")[0]),
            properties=printable_properties([*first, *headers]),
            body_kind="bytes" if frame.body else "none",
            body=frame.body,
        )

"""A blocking client of the HTTP API, based on `http.client`."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from types import TracebackType
from typing import Any, NamedTuple, Self

from sluicemq.cli.local import LocalBroker
from sluicemq.model.rows import RowValues, encode

HTTP = "http://127.0.0.1:0"
PHPMQ = "phpmq://127.0.0.1:0"
TIMEOUT = 30.0


class Response(NamedTuple):
    """A response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Return the error code; errors are always problem documents."""
        assert self.headers["content-type"] == "application/problem+json"
        problem = self.json()
        assert problem["type"] == f"/problems/{problem['code']}"
        assert problem["title"]
        assert problem["detail"]
        assert problem["status"] == self.status
        return str(problem["code"])


class Client:
    """A client on one persistent connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, **headers: str) -> None:
        """Connect; `headers` are sent with every request."""
        self.headers = headers
        self.connection: http.client.HTTPConnection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
            if context is None
            else http.client.HTTPSConnection("localhost", port, timeout=TIMEOUT, context=context)
        )

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Response:
        """Send a request; `path` is without the common prefix."""
        all_headers = {**self.headers, **headers}
        self.connection.request(method, f"/api/v1{path}", body, all_headers)
        response = self.connection.getresponse()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, response_headers, response.read())

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, None, **headers)

    def journal(self) -> Any:
        response = self.get("/journal")
        assert response.status == 200, response
        return response.json()

    def segment(self, first: int, byte_range: str = "") -> Response:
        """Request a segment of the journal, or a byte range of it."""
        path = f"/journal/segments/{first}"
        return self.get(path, Range=f"bytes={byte_range}") if byte_range else self.get(path)

    def write(self, rows: list[RowValues], **query: object) -> Response:
        """Send a part of a batch; by default the only part."""
        defaults = {"writer": "w", "batch": 0, "partition": 0, "part": 0, "final": "true"}
        text = "&".join(f"{name}={value}" for name, value in {**defaults, **query}.items())
        return self.request("POST", f"/batches?{text}", b"".join(encode(rows)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.connection.close()


def basic_auth(user: str, password: str) -> str:
    """Return the value of an `Authorization` header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def exchange_bytes(port: int, data: bytes) -> bytes:
    """Send raw bytes and return everything received until the broker closes the connection."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(data)
        response = b""
        while chunk := connection.recv(1 << 16):
            response += chunk
        return response


def ready_counts(broker: LocalBroker) -> dict[str, int]:
    """Return the number of ready messages in each destination that has any."""
    destinations = broker.status()["destinations"]
    return {
        destination["name"]: destination["ready"]
        for destination in destinations
        if destination["ready"]
    }

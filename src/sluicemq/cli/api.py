"""Blocking client of the broker's HTTP API over TCP, TLS or a Unix socket.

    with Api(place.target()) as api:
        for queue in api.items("/destinations", kind="queue"):
            ...

It reuses the `HttpConnection` of the Spark tasks: commands send small requests, and http.client
loads in less time than an HTTP library takes.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode

import msgspec

from sluicemq.cli.console import UsageError
from sluicemq.clients.http import (
    TIMEOUT,
    HttpConnection,
    HttpResponse,
    HttpTarget,
    error_in,
)
from sluicemq.model.destination import Address, Kind, encode_name
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConnectionLost,
    RequestRefused,
    SluiceError,
)

PREFIX: Final = "/api/v1"
PAGE_SIZE: Final = 500
"""Number of items requested per page."""
KINDS: Final = {Kind.QUEUE: "queue", Kind.TOPIC: "topic"}

Query = Mapping[str, str | int | bool | None]
"""Query parameters; those that are None are omitted."""


class ApiRefused(RequestRefused):
    """An error response of the API.

    status    HTTP status code
    code      error code for programs: "destination-not-found", ...
    document  the response body if it is a JSON object
    """

    def __init__(self, message: str, status: int, code: str, document: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.document = document


class Resource(NamedTuple):
    """A path within the API with its query parameters."""

    path: str
    query: dict[str, str]

    def __truediv__(self, part: str) -> Resource:
        """Return the path with one more segment; `part` may be any text."""
        return Resource(f"{self.path}/{_part(part)}", self.query)


def destination(address: Address) -> Resource:
    """Return the path of a destination. A name that is not UTF-8, or that would be resolved as a
    relative path segment, is sent as a query parameter."""
    kind, name = address
    try:
        name.encode()
        plain = name not in ("", ".", "..")
    except UnicodeEncodeError:
        plain = False
    if plain:
        return Resource(f"/destinations/{KINDS[kind]}/{_part(name)}", {})
    encoded = base64.b64encode(encode_name(name)).decode()
    return Resource(f"/destinations/{KINDS[kind]}/~", {"name_base64": encoded})


def below(path: str, part: str) -> Resource:
    """Return the path of the item `part` (any text) of the collection at `path`."""
    return Resource(path, {}) / part


def named(address: Address) -> dict[str, str]:
    """Return a destination as a field of a request body."""
    kind, name = address
    try:
        name.encode()
    except UnicodeEncodeError:
        return {
            "kind": KINDS[kind],
            "name_base64": base64.b64encode(encode_name(name)).decode(),
        }
    return {"kind": KINDS[kind], "name": name}


def selected(name: str) -> dict[str, str]:
    """Return a destination as query parameters of a list."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return {"destination_base64": base64.b64encode(encode_name(name)).decode()}
    return {"destination": name}


class Api:
    """One connection to the API, used by one thread. Closed by `close` or `with`.

    All requests raise ConnectionLost if the broker does not respond, AuthenticationMissing,
    AuthenticationFailed, AccessDenied, and ApiRefused for all other errors. The notes of an error
    state how to resolve it.
    """

    def __init__(self, target: HttpTarget, patience: float = TIMEOUT) -> None:
        """Set up the client. `patience` is the maximum wait for the next bytes of a response,
        seconds."""
        self._target = target
        self._line = HttpConnection(target, patience)

    @property
    def where(self) -> str:
        """Return the broker's address for messages."""
        return str(self._target)

    def get(self, path: str | Resource, **query: str | int | bool | None) -> Any:
        """Return the document at a path."""
        return self._document(self._exchange("GET", path, query))

    def put(self, path: str | Resource, body: Any = None, **query: str | int | bool | None) -> Any:
        """Send a POST; return the response document or None if it is empty."""
        return self._document(self._exchange("PUT", path, query, body))

    def post(self, path: str | Resource, body: Any = None, **query: str | int | bool | None) -> Any:
        """Send a PUT; return the response document or None if it is empty."""
        return self._document(self._exchange("POST", path, query, body))

    def delete(
        self, path: str | Resource, body: Any = None, **query: str | int | bool | None
    ) -> Any:
        """Send a DELETE; return the response document or None if it is empty."""
        return self._document(self._exchange("DELETE", path, query, body))

    def lines(self, path: str | Resource, body: Any) -> Iterator[dict[str, Any]]:
        """Send a POST with a streamed response; yield the JSON document of each line as it
        arrives."""
        try:
            self._line.close()
            self._line.send("POST", *_request(path, {}, body))
            status, lines = self._line.receive_lines()
            if status >= 400:
                raise self._refused(HttpResponse(status, {}, b"".join(lines)))
            for line in lines:
                yield self._decoded(line)
        except (OSError, http.client.HTTPException) as fault:
            raise self._lost(fault) from None
        finally:
            self._line.close()

    def content(self, path: str | Resource, **query: str | int | bool | None) -> bytes:
        """Return the response body at a path without decoding it."""
        return self._exchange("GET", path, query).body

    def items(
        self, path: str | Resource, most: int = 0, /, **query: str | int | bool | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of a list from all of its pages; at most `most`."""
        seen, cursor = 0, None
        while True:
            limit = min(most - seen, PAGE_SIZE) if most else PAGE_SIZE
            document = self.get(path, limit=limit, cursor=cursor, **query)
            yield from document["items"]
            seen += len(document["items"])
            cursor = document["next_cursor"]
            if cursor is None or seen == most:
                return

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(
        self, method: str, path: str | Resource, query: Query, body: Any = None
    ) -> HttpResponse:
        request = (method, *_request(path, query, body))
        # the server may have closed an idle connection; only requests without side effects are
        # repeated
        again = self._line.connected and method == "GET"
        while True:
            try:
                self._line.send(*request)
                answer = self._line.receive()
            except (OSError, http.client.HTTPException) as fault:
                self._line.close()
                if again and not isinstance(fault, TimeoutError):
                    again = False
                    continue
                raise self._lost(fault) from None
            if answer.status >= 400:
                raise self._refused(answer)
            return answer

    def _document(self, answer: HttpResponse) -> Any:
        return self._decoded(answer.body) if answer.body else None

    def _decoded(self, text: bytes) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._stranger() from None

    def _stranger(self) -> ConnectionLost:
        return ConnectionLost(f"what answers at {self.where} is not a broker's API")

    def _lost(self, fault: Exception) -> SluiceError:
        if isinstance(fault, ssl.SSLCertVerificationError):
            return noted(
                ConnectionLost(
                    f"the certificate of {self.where} is not trusted: {fault.verify_message}"
                ),
                "Name the file of the authority that made it with --ca FILE.",
            )
        reason = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
        if isinstance(fault, TimeoutError):
            return ConnectionLost(f"the broker at {self.where} does not answer: {reason}")
        error = ConnectionLost(f"no broker answers at {self.where}: {reason}")
        if isinstance(fault, PermissionError):
            return noted(
                error,
                "Only the owner of the broker's data may open this socket: run the command as that "
                "user, or log in with --url http://… and --user.",
            )
        if self._target.path:
            return noted(
                error,
                "Is it running? sluicemq serve starts one; --data-dir DIR or --url "
                "http://HOST:7680 selects another one.",
            )
        return noted(error, "Is it running with an http:// listener?")

    def _refused(self, answer: HttpResponse) -> SluiceError:
        code, message = error_in(answer)
        text = f"{self.where}: {message}"
        if answer.status == 401:
            kind = AuthenticationMissing if code == "authentication-required" else None
            return noted(
                (kind or AuthenticationFailed)(text),
                "Log in with --user NAME (and --password-file FILE), or with --token-file FILE.",
            )
        if answer.status == 403:
            denied = AccessDenied(text)
            return noted(denied, _PERMIT) if " may not " in message else denied
        if not code:
            return self._stranger()
        error = ApiRefused(text, answer.status, code, msgspec.json.decode(answer.body))
        return noted(error, _ADVICE[code]) if code in _ADVICE else error


def noted(error: SluiceError, advice: str) -> SluiceError:
    """Return the error with `advice` added as a second line."""
    error.add_note(advice)
    return error


_PERMIT: Final = "A superuser can permit it: sluicemq permissions grant USER PATTERN OPERATION..."
_ADVICE: Final = {
    "destination-exists": "alter changes its settings.",
    "destination-in-use": "--force removes it all the same.",
    "subscription-in-use": "--force removes it all the same.",
    "destination-not-found": "sluicemq queues and sluicemq topics list the existing ones.",
    "message-not-found": "sluicemq messages list NAME lists the existing ones.",
    "subscription-not-found": "sluicemq subscriptions lists the existing ones.",
    "connection-not-found": "sluicemq connections lists the existing ones.",
    "transaction-not-found": "sluicemq transactions lists the existing ones.",
    "user-not-found": "sluicemq users lists the existing ones.",
    "role-not-found": "sluicemq permissions role lists the existing ones.",
    "not-found": "Is the broker older than this program? sluicemq status shows its version.",
    "stopping": "The broker is stopping; ask again when it runs.",
}


def _request(
    path: str | Resource, query: Query, body: Any
) -> tuple[str, list[bytes], dict[str, str]]:
    """Return the URL path with parameters, the body parts and the headers of a request."""
    if isinstance(path, Resource):
        query = {**path.query, **query}
        path = path.path
    given = {name: _text(value) for name, value in query.items() if value is not None}
    url = PREFIX + path
    if given:
        url += f"?{urlencode(given, errors='surrogateescape')}"
    if body is None:
        return url, [], {"Accept": "application/json"}
    return url, [_encoded(body)], {"Content-Type": "application/json"}


def _encoded(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!a} is not UTF-8 text") from None


def _part(text: str) -> str:
    return quote(text, safe="", errors="surrogateescape")


def _text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""HTTP client for a broker's interface, with a persistent connection.

    http://[user[:password]@]host[:port]        port 7680 if none is named
    https://…  or  http+tls://…?ca=FILE&insecure=true
    http+unix:///path

An `HttpClient` with `retry_timeout`, as Spark tasks have, repeats requests while the broker
restarts: if the connection breaks, or the status is 408, 502, 503 or 504. All its requests must
therefore be idempotent.
"""

from __future__ import annotations

import base64
import http.client
import random
import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import fields

from sluicemq.clients import urls
from sluicemq.management.operation import (
    BY_BASE64,
    AnswerT,
    ApiOperation,
    ParametersT,
    is_utf_8,
    to_base64,
)
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConfigurationError,
    ConnectionLost,
    RequestRefused,
    SluiceError,
)

PORT: Final = 7680
RETRY_TIMEOUT: Final = 60.0
"""Seconds for which a broker may be unavailable before a request fails."""
TIMEOUT: Final = 60.0
"""Default timeout in seconds for the next bytes of a response."""

_OPTIONS: Final[urls.Known] = {"ca": ("ca", urls.text), "insecure": ("insecure", urls.boolean)}
_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 5.0
_TRANSIENT: Final = frozenset({408, 502, 503, 504})
_FAULTS: Final = (OSError, http.client.HTTPException)
_MAX_REASON: Final = 500
"""Maximum number of characters of an unstructured response in an error message."""


class HttpTarget(urls.TlsOptions, frozen=True):
    """Broker address and credentials, sent to the executors. Its text contains no secret.

    path  of a Unix socket; host and port are then unused
    """

    host: str = "localhost"
    port: int = PORT
    tls: bool = False
    authorization: str = ""
    path: str = ""

    def __repr__(self) -> str:
        return f"<HttpTarget {self}>"

    def __str__(self) -> str:
        if self.path:
            return self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def target(options: Mapping[str, str]) -> HttpTarget:
    """Return the target of the options `url`, `user`, `password` and `token`.

    Raises ConfigurationError, whose message contains no secret."""
    fields = parse_url(options.get("url", ""))
    user = options.get("user", fields.pop("username", ""))
    password = options.get("password", fields.pop("password", ""))
    for host, port in fields.pop("hosts"):
        fields |= {"host": host, "port": port}
    return HttpTarget(
        authorization=authorization(user, password, options.get("token", "")), **fields
    )


def parse_url(url: str) -> dict[str, Any]:
    """Return the fields that the URL of an HTTP listener sets (`urls.parse`).

    Raises ConfigurationError, whose message contains no secret."""
    if url[:8].lower() == "https://":
        url = f"http+tls://{url[8:]}"
    if not url.lower().startswith(("http://", "http+")):
        raise ConfigurationError(
            "the option url names the HTTP listener of a broker, such as http://localhost:7680"
        )
    try:
        fields = urls.parse(url, "http", _OPTIONS)
    except ConfigurationError as error:
        raise ConfigurationError(f"url: {error}") from None
    if len(fields["hosts"]) > 1:
        raise ConfigurationError("the option url names one host")
    return fields


def authorization(user: str, password: str, token: str) -> str:
    """Return the Authorization header; "" = anonymous. Raises ConfigurationError."""
    if token and (user or password):
        raise ConfigurationError("a token identifies the user: leave out user and password")
    if token:
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError("the option token has characters that no token has")
        return f"Bearer {token}"
    if not user:
        if password:
            raise ConfigurationError("a password needs the option user")
        return ""
    if not is_utf_8(f"{user}{password}"):
        raise ConfigurationError("the user or the password is not UTF-8 text")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class HttpRefusal(RequestRefused):
    """Error response of the broker.

    status  HTTP status
    code    error code: "batch-conflict", "segment-not-found", ...
    answer  the whole response body
    """

    def __init__(self, text: str, status: int, code: str, answer: bytes) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.answer = answer


class HttpResponse(NamedTuple):
    """Response to a request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class HttpClient:
    """Client of a broker with one connection, for use by one thread. A context manager.

    The server may close an idle connection: the next request opens another, and a GET that fails
    because of that is repeated at once.
    """

    def __init__(
        self, target: HttpTarget, *, timeout: float = TIMEOUT, retry_timeout: float | None = None
    ) -> None:
        """Set the time limits in seconds.

        timeout        limit for the next bytes of a response
        retry_timeout  time for which failed requests are repeated; None = they are not
        """
        self.target = target
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] = (),
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request and return its response.

        Raises ConnectionLost if the broker was unavailable for longer than `retry_timeout`,
        AuthenticationMissing or AuthenticationFailed (401), AccessDenied (403), and HttpRefusal for
        other errors. A redirection raises ConnectionLost: it is not followed. Raises
        ConfigurationError for a file of trusted certificates that cannot be used.
        """
        self.send(method, path, body, headers)
        return self.receive()

    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation of the management API and return its response.

        Raises as `request`, ConnectionLost for a response that no broker sends, and
        UnicodeEncodeError for a body with text that is not UTF-8.
        """
        response = self.request(*request_of(operation, parameters))
        return answer_in(operation, self.target, response)

    def send(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request; `receive` returns its response.

        Never raises: `receive` repeats a failed request, or raises its error."""
        standard_headers = {"Content-Length": str(sum(map(len, body)))}
        if self.target.authorization:
            standard_headers["Authorization"] = self.target.authorization
        self._pending = (method, path, body, {**(headers or {}), **standard_headers})
        if self._connection is not None and _has_input(self._connection):
            self.close()
        self._was_idle = self._connection is not None
        self._transmit()

    def _transmit(self) -> None:
        self._send_error: Exception | None = None
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.request(*self._pending)
        except (*_FAULTS, ConfigurationError) as fault:
            self._send_error = fault

    def receive(self) -> HttpResponse:
        """Return the response to the last `send`; raises as `request`."""
        deadline = time.monotonic() + (self._retry_timeout or 0.0)
        pause = _FIRST_PAUSE
        while True:
            fault: Exception
            try:
                answer = self._answer()
                content = HttpResponse(answer.status, answer.headers, answer.read())
                if content.status < 300:
                    return content
                if content.status not in _TRANSIENT or time.monotonic() + pause > deadline:
                    raise refusal_error(self.target, content)
                fault = http.client.HTTPException(f"it answers {content.status}")
            except _FAULTS as broken:
                fault = broken
            self.close()
            stale = self._was_idle and self._pending[0] == "GET"
            if not stale or isinstance(fault, TimeoutError):
                untrusted = isinstance(fault, ssl.SSLCertVerificationError)
                if untrusted or time.monotonic() + pause > deadline:
                    raise connection_error(self.target, fault, self._retry_timeout) from fault
                # jitter, so that tasks do not retry at the same moment
                time.sleep(pause * random.uniform(0.75, 1.0))
                pause = min(2 * pause, _MAX_PAUSE)
            self._was_idle = False
            self._transmit()

    def receive_lines(self) -> Iterator[bytes]:
        """Yield the lines of the response to the last `send` as they arrive; raises as `request`,
        without a repetition."""
        try:
            response = self._answer()
            if response.status >= 300:
                content = HttpResponse(response.status, response.headers, response.read())
                raise refusal_error(self.target, content)
            yield from response
        except _FAULTS as fault:
            raise connection_error(self.target, fault, None) from fault

    def _answer(self) -> http.client.HTTPResponse:
        if self._send_error is not None:
            raise self._send_error
        assert self._connection is not None
        return self._connection.getresponse()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> http.client.HTTPConnection:
        target = self.target
        if target.path:
            return _UnixConnection(target.path, self._timeout)
        if not target.tls:
            return http.client.HTTPConnection(target.host, target.port, timeout=self._timeout)
        context = target.context(verify_host_name=True)
        return http.client.HTTPSConnection(
            target.host, target.port, timeout=self._timeout, context=context
        )


def _has_input(connection: http.client.HTTPConnection) -> bool:
    """Return whether the server has closed an idle connection, or breaks the protocol."""
    poll = select.poll()
    if connection.sock is not None:
        poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a port."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


Request = tuple[str, str, list[bytes], dict[str, str]]
"""Method, URL path with the query, parts of the body, and headers."""


def error_in(answer: HttpResponse) -> tuple[str, str]:
    """Return the code and the detail of a problem document; no code and the start of the body if
    the response is something else."""
    try:
        problem = msgspec.json.decode(answer.body, type=dict[str, Any])
        return str(problem["code"]), str(problem["detail"])
    except (msgspec.MsgspecError, UnicodeError, KeyError):
        return "", answer.body[:_MAX_REASON].decode(errors="replace") or "no reason given"


def request_of(operation: ApiOperation[ParametersT, Any], parameters: ParametersT) -> Request:
    """Encode a request. A name of a destination that is not UTF-8, or that would be resolved as a
    relative path segment, is sent as a query parameter. Raises UnicodeEncodeError;
    ConfigurationError for another name or id that is empty."""
    values = {name: getattr(parameters, name) for name in parameters.__struct_fields__}
    query = {
        field.name: _text(values[field.name])
        for field in fields(operation.parameters)
        if field.name in operation.query_names and values[field.name] != field.default
    }
    if operation.has_address:
        values["kind"], name = values["address"].kind.name.lower(), values["address"].name
        if name in ("", ".", "..") or not is_utf_8(name):
            query["name_base64"], name = to_base64(name), BY_BASE64
        values["name"] = name
    path = operation.full_path
    for name in operation.path_names:
        if not values[name]:
            raise ConfigurationError(f"the {name.replace('_', ' ')} is empty")
        path = path.replace(f"{{{name}}}", quote(values[name], safe="", errors="surrogateescape"))
    if query:
        path += f"?{urlencode(query, errors='surrogateescape')}"
    if operation.body is None:
        return operation.method, path, [], {"Accept": "application/json"}
    body = msgspec.json.encode(values["body"])
    return operation.method, path, [body], {"Content-Type": "application/json"}


def answer_in(
    operation: ApiOperation[Any, AnswerT], target: HttpTarget, response: HttpResponse
) -> AnswerT:
    """Decode a response. Raises ConnectionLost if it is not that of a broker."""
    if operation.answer in (bytes, NoneType):
        if operation.answer is NoneType and response.status != operation.status:
            raise invalid_response_error(target)
        content: Any = response.body if operation.answer is bytes else None
        return content  # type: ignore[no-any-return]
    try:
        return msgspec.json.decode(response.body, type=operation.answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise invalid_response_error(target) from None


def invalid_response_error(target: HttpTarget) -> ConnectionLost:
    """Return the error for a response that no broker sends."""
    return ConnectionLost(f"the server at {target} is not a broker's API")


def connection_error(
    target: HttpTarget, fault: Exception, retry_timeout: float | None
) -> ConnectionLost:
    """Return the error for a connection that cannot be made or breaks, after requests have been
    repeated for `retry_timeout` seconds; None = not repeated."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        advice = (
            "; name the authority's file by ?ca=FILE in the url"
            if retry_timeout is not None
            else ""
        )
        return ConnectionLost(
            f"the certificate of {target} is not trusted: {fault.verify_message}{advice}"
        )
    text = str(fault) or type(fault).__name__
    reason = urls.reason_of(fault) if isinstance(fault, OSError) else text
    if retry_timeout is not None:
        return ConnectionLost(
            f"no answer from the broker at {target} for {retry_timeout:g} s ({reason}); is it "
            f"running, with a listener {str(target).replace('https', 'http+tls')}?"
        )
    if isinstance(fault, TimeoutError):
        return ConnectionLost(f"the broker at {target} does not answer: {reason}")
    return ConnectionLost(f"no broker answers at {target}: {reason}")


def refusal_error(target: HttpTarget, response: HttpResponse) -> SluiceError:
    """Return the error for an error response, or for a redirection: brokers send none."""
    code, message = error_in(response)
    if response.status < 400:
        message = f"it redirects to {response.headers.get('Location', 'nowhere')}"
    text = f"{target}: {message}"
    if response.status == 401:
        missing = code == "authentication-required"
        return AuthenticationMissing(text) if missing else AuthenticationFailed(text)
    if response.status == 403:
        return AccessDenied(text)
    if not code:
        return ConnectionLost(f"{invalid_response_error(target)}: {message}")
    return HttpRefusal(text, response.status, code, response.body)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

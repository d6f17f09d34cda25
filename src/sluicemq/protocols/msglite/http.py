"""HTTP subset of the gateway: one request per connection, answered in HTTP/1.0.

Request (msglite protocol notes, HTTP gateway): HEAD, GET, POST, PUT or DELETE in HTTP/1.0 or 1.1;
lines end in CR LF or LF; folded header lines are joined. A body has Content-Length bytes; without
that header HEAD and GET have none, and other methods' bodies end with the input. Chunked bodies and
interim responses are not supported. The gateway is meant to run behind a full web server.

Input that such a server may interpret differently is rejected: Transfer-Encoding, a Content-Length
that is repeated, folded or no number, a blank before a header's colon, control characters in the
head. Bytes after the request are never read as another one.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sluicemq.model.errors import FrameTooLarge, ProtocolError, without_traceback

METHODS: Final = frozenset({b"HEAD", b"GET", b"POST", b"PUT", b"DELETE"})
VERSIONS: Final = frozenset({b"HTTP/1.0", b"HTTP/1.1"})

REASONS: Final = {
    "100": "Continue",
    "101": "Switching Protocols",
    "200": "OK",
    "201": "Created",
    "202": "Accepted",
    "203": "Non-Authoritative Information",
    "204": "No Content",
    "205": "Reset Content",
    "206": "Partial Content",
    "300": "Multiple Choices",
    "301": "Moved Permanently",
    "302": "Found",
    "303": "See Other",
    "304": "Not Modified",
    "305": "Use Proxy",
    "307": "Temporary Redirect",
    "400": "Bad Request",
    "401": "Unauthorized",
    "402": "Payment Required",
    "403": "Forbidden",
    "404": "Not Found",
    "405": "Method Not Allowed",
    "406": "Not Acceptable",
    "407": "Proxy Authentication Required",
    "408": "Request Time-out",
    "409": "Conflict",
    "410": "Gone",
    "411": "Length Required",
    "412": "Precondition Failed",
    "413": "Request Entity Too Large",
    "414": "Request-URI Too Large",
    "415": "Unsupported Media Type",
    "416": "Requested range not satisfiable",
    "417": "Expectation Failed",
    "500": "Internal Server Error",
    "501": "Not Implemented",
    "502": "Bad Gateway",
    "503": "Service Unavailable",
    "504": "Gateway Time-out",
    "505": "HTTP Version not supported",
}
"""Status codes of RFC 2616 section 6.1.1, except 306."""


MAX_LINE: Final = 4095
"""Maximum length of a line without its end, in bytes."""
MAX_LINES: Final = 1023
"""Maximum number of header lines."""
MAX_BODY: Final = 64 * 1024 * 1024
"""Default maximum size of a body, in bytes."""


class GatewayRequest(NamedTuple):
    """Request as the gateway publishes it.

    headers  by canonical name (`X-Test-Header`); repeated ones joined with ","
    """

    method: str
    url: str
    protocol: str
    headers: dict[str, str]
    body: bytes


_TOKEN: Final = frozenset(
    b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Control characters except the tab; CR within a line is the important one."""
_UP_TO_THE_END: Final = -1


class RequestReader:
    """Parses one request. `error` is None until the client sends invalid input.

    request   request, once it is complete
    buffered  bytes received of the unfinished request
    """

    __slots__ = (
        "_first",
        "_headers",
        "_length",
        "_lines",
        "_max_body",
        "_rest",
        "_value",
        "buffered",
        "error",
        "request",
    )

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self.error: ProtocolError | None = None
        self.request: GatewayRequest | None = None
        self.buffered = 0
        self._max_body = max_body
        self._rest = bytearray()
        """Unfinished line of the head; once the head is complete, the body."""
        self._first: list[bytes] | None = None
        """Method, URL and version, once the request line is complete."""
        self._lines = 0
        """Header lines received."""
        self._headers: dict[bytes, bytearray] = {}
        """Values by name; folded lines joined with a blank, repeated headers with a comma."""
        self._value: bytearray | None = None
        """Value of the last header line."""
        self._length: int | None = None
        """Bytes of the body, or _UP_TO_THE_END; None until the head is complete."""

    @property
    def has_head(self) -> bool:
        """True if the head is complete and valid."""
        return self._length is not None

    def discard(self) -> None:
        """Drop the request, complete or not."""
        self.request = None
        self.buffered = 0
        self._rest.clear()
        self._headers.clear()
        self._value = None

    def feed(self, data: bytes) -> None:
        """Parse received bytes and set `request` or `error`. Never raises."""
        if self.error is not None or self.request is not None:
            return
        self.buffered += len(data)
        self._rest += data
        try:
            while self._length is None:
                line = self._next_line()
                if line is None:
                    return
                self._read_line(line)
            self._read_body(self._length)
        except ProtocolError as error:
            self.error = without_traceback(error)
            self.discard()

    def end(self) -> None:
        """Handle the end of input: it completes a body without a length, else it is an error."""
        if self.error is not None or self.request is not None:
            return
        if self._length == _UP_TO_THE_END:
            self._finish()
        else:
            self.error = ProtocolError("the request is not complete")

    def _next_line(self) -> bytes | None:
        """Remove and return a line without its end; None if it is incomplete."""
        rest = self._rest
        end = rest.find(b"\n")
        line = bytes(rest[:end] if end >= 0 else rest).removesuffix(b"\r")
        if len(line) > MAX_LINE:
            raise FrameTooLarge(f"a line is longer than {MAX_LINE} bytes")
        if end < 0:
            return None
        del rest[: end + 1]
        return line

    def _read_line(self, line: bytes) -> None:
        if _CONTROL.search(line):
            raise ProtocolError("the head of the request has a control character")
        if self._first is None:
            self._first = _request_line(line)
        elif not line:
            self._length = self._body_length(self._first[0])
        elif self._lines >= MAX_LINES:
            raise FrameTooLarge(f"there are more than {MAX_LINES} header lines")
        else:
            self._lines += 1
            self._read_field(line)

    def _read_field(self, line: bytes) -> None:
        if line[:1] in (b" ", b"\t"):
            if self._value is None:
                raise ProtocolError("the first header line is folded")
            self._value += b" " + line.strip(b" \t")
            return
        name, colon, value = line.partition(b":")
        if not colon or not name or not _TOKEN.issuperset(name):
            raise ProtocolError("a header line is not a name, a colon and a value")
        name = _canonical(name)
        if name in self._headers:
            self._headers[name] += b","
        self._value = self._headers.setdefault(name, bytearray())
        self._value += value.strip(b" \t")

    def _body_length(self, method: bytes) -> int:
        """Return the bytes of the body, or _UP_TO_THE_END. Raises ProtocolError."""
        if b"Transfer-Encoding" in self._headers:
            raise ProtocolError("transfer codings are not supported")
        length = self._headers.get(b"Content-Length")
        if length is None:
            return 0 if method in (b"GET", b"HEAD") else _UP_TO_THE_END
        if not length.isdigit() or len(length) > 19:
            raise ProtocolError("the Content-Length is not a number")
        return int(length)

    def _read_body(self, length: int) -> None:
        received = len(self._rest)
        if (received if length == _UP_TO_THE_END else length) > self._max_body:
            raise FrameTooLarge(f"the body is larger than {self._max_body} bytes")
        if 0 <= length <= received:
            del self._rest[length:]
            self._finish()

    def _finish(self) -> None:
        assert self._first is not None
        method, url, protocol = map(_text, self._first)
        headers = {_text(name): _text(value) for name, value in self._headers.items()}
        body = bytes(self._rest)
        self.discard()
        self.request = GatewayRequest(method, url, protocol, headers, body)


def _request_line(line: bytes) -> list[bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[1]:
        raise ProtocolError("the request line is not a method, a URL and a version")
    if parts[0] not in METHODS:
        raise ProtocolError("the method is not HEAD, GET, POST, PUT or DELETE")
    if parts[2] not in VERSIONS:
        raise ProtocolError("the version is not HTTP/1.0 or HTTP/1.1")
    return parts


def _canonical(name: bytes) -> bytes:
    """Return `x-test-HEADER` as `X-Test-Header`."""
    return b"-".join(part[:1].upper() + part[1:].lower() for part in name.split(b"-"))


def _text(raw: bytes | bytearray) -> str:
    """Decode header bytes as UTF-8, or as Latin-1 if they are not valid UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def encode_head(status: str, headers: list[str]) -> bytes:
    """Return the status line and the headers of a response.

    `headers` is name, value, name, value …; `Connection` is replaced. Names are written in
    canonical form (`X-Test-Header`), as the original server writes them.

    Raises ProtocolError for an unknown status and for an invalid header.
    """
    reason = REASONS.get(status)
    if reason is None:
        raise ProtocolError("the status is not one of HTTP/1.1")
    if len(headers) % 2:
        raise ProtocolError("a header has no value")
    lines = [f"HTTP/1.0 {status} {reason}", "Connection: close"]
    for name, value in zip(headers[::2], headers[1::2], strict=True):
        raw = name.encode("utf-8", "replace")
        if not raw or not _TOKEN.issuperset(raw):
            raise ProtocolError("a header's name is not a token")
        if any(character < " " and character != "\t" for character in value):
            # a line break would let one header become two
            raise ProtocolError("a header's value has control characters")
        canonical = _canonical(raw).decode()
        if canonical != "Connection":
            lines.append(f"{canonical}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace")


def encode_failure(reason: str, status: str = "500") -> bytes:
    """Return the gateway's own error response: usually 500, as the original server sends."""
    body = reason.encode("utf-8", "replace") + b"\n"
    headers = ["Content-Type", "text/plain; charset=utf-8", "Content-Length", str(len(body))]
    return encode_head(status, headers) + body

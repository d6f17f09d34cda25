"""Targets of clients, the options of URLs and connection strings that set them, and the errors of
connections to them in words.

Option names ignore letter case, `_`, `-` and blanks.

All functions raise ConfigurationError, which never contains a password.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from sluicemq.model.errors import ConfigurationError
from sluicemq.model.setting import suggestion
from sluicemq.model.url import Url

Hosts = tuple[tuple[str, int], ...]
Known = Mapping[str, tuple[str, Callable[[str, str], Any]]]
"""Normalized option name -> field that it sets, and its reader, called with name and text."""


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of TLS.

    ca             file of trusted certificates; "" = the system's
    insecure       any certificate of the broker is accepted
    certificate    file of the client's own certificate, PEM or PKCS#12; "" = none
    key            file of its key, if that is not in `certificate`
    password_file  file whose first line decrypts the key
    """

    ca: str = ""
    insecure: bool = False
    certificate: str = ""
    key: str = ""
    password_file: str = ""

    def context(self, *, verify_host_name: bool) -> ssl.SSLContext:
        """Return the TLS context. `verify_host_name`: the broker's certificate must have the
        host name. Raises ConfigurationError."""
        if self.insecure and self.ca:
            raise ConfigurationError("with insecure=true nothing is verified; leave out ca")
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise ConfigurationError(f"ca: {self.ca} cannot be used: {error}") from None
        context.check_hostname = verify_host_name and not self.insecure
        if self.insecure:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # imported here because it is slow to load
            from sluicemq.security.certificates import read_chain

            files = [Path(name) if name else None for name in (self.key, self.password_file)]
            read_chain(Path(self.certificate), *files).install(context)
        elif self.key or self.password_file:
            name = "key" if self.key else "password_file"
            raise ConfigurationError(f"{name} requires a certificate; give it too")
        return context


class Target(TlsOptions, frozen=True):
    """One broker, or several that a client tries in turn.

    hosts       names or addresses with ports, tried in this order
    path        path of a Unix socket, instead of hosts
    tls         the connection is encrypted
    timeout     seconds
    keep_alive  idle seconds before a ping; 0 = no pings
    """

    hosts: Hosts = ()
    path: str = ""
    username: str = ""
    password: str = ""
    tls: bool = False
    timeout: float = 10.0
    keep_alive: float = 30.0

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for the broker's certificate. Raises ConfigurationError."""
        return self.context(verify_host_name=not self.path)


_TLS: Final = TlsOptions.__struct_fields__
_SPAN: Final = re.compile(r"(\d{1,3}):(\d{1,2}):(\d{1,2}(?:\.\d{1,7})?)\Z")


def parse(text: str, scheme: str, known: Known, *, tls_optional: bool = False) -> dict[str, Any]:
    """Return the fields that a URL sets: `tls`, `hosts`, `path`, and those of its options.

    `username` and `password` are among them if the URL has a user. `Url` parses the URL, which must
    not name a queue. `tls_optional`: options of TLS are allowed without `+tls`.
    """
    urls = Url.parse_all(text)
    url = urls[0]
    if url.protocol != scheme or url.queue:
        raise ConfigurationError(f"the URL of a broker is {scheme}://host:port")
    fields = {"tls": url.tls, "path": url.path, **read(dict(url.options), known)}
    for name in () if fields["tls"] or tls_optional else _TLS:
        if name in fields:
            raise ConfigurationError(f"{name} requires TLS ({scheme}+tls)")
    if url.user:
        fields |= {"username": url.user, "password": url.password}
    hosts = () if url.path else check_ports((address.host, address.port) for address in urls)
    return {**fields, "hosts": hosts}


def parse_single(url: str, scheme: str, known: Known) -> dict[str, Any]:
    """Return the arguments of `connect` for a URL of a protocol without login and fail-over.

    These are `host` and `port`, or `path`; `ssl_context`, and those that the options set.
    """
    fields = parse(url, scheme, {**known, **COMMON})
    if fields.pop("username", fields.pop("password", "")) or len(fields["hosts"]) > 1:
        raise ConfigurationError(f"{scheme} has one host, and no user")
    options = TlsOptions(**{name: fields.pop(name) for name in _TLS if name in fields})
    if fields.pop("tls"):
        fields["ssl_context"] = options.context(verify_host_name=not fields["path"])
    for host, number in fields.pop("hosts"):
        fields |= {"host": host, "port": number}
    return {**fields, "path": fields["path"] or None}


def check_ports(hosts: Iterable[tuple[str, int]]) -> Hosts:
    """Return the hosts. Raises ConfigurationError if a client cannot connect to a port."""
    addresses = tuple(hosts)
    for _, port in addresses:
        if not 0 < port < 65_536:
            raise ConfigurationError(f"port {port} is not valid; use 1 to 65535")
    return addresses


def normalize_name(name: str) -> str:
    """Return the normalized name of an option: lower case without separators."""
    return name.lower().translate(str.maketrans("", "", " _-"))


def read(options: Mapping[str, str], known: Known) -> dict[str, Any]:
    """Return the fields that the options set. `timeout` must be longer than 0."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        field, reader = known.get(normalize_name(name), ("", text))
        if not field:
            names = dict.fromkeys(field for field, _ in known.values())
            raise ConfigurationError(f"unknown option {name}; {suggestion(name, names)}")
        values[field] = reader(name, value)
    if values.get("timeout", 1) <= 0:
        raise ConfigurationError("timeout must be longer than 0")
    return values


def reader_of(kind: Any, description: str) -> Callable[[str, str], Any]:
    """Return the reader of options whose values have a type."""

    def read_value(name: str, value: str) -> Any:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            raise ConfigurationError(f"{name} is {description}, not {value!r}") from None

    return read_value


number: Final = reader_of(Annotated[float, msgspec.Meta(ge=0, lt=1e9)], "a number")
integer: Final = reader_of(Annotated[int, msgspec.Meta(ge=0, lt=10**9)], "a whole number")
boolean: Final = reader_of(bool, "true or false")
text: Final = reader_of(str, "text")


def seconds(name: str, value: str) -> float:
    """Read seconds: a number, or hh:mm:ss."""
    span = _SPAN.match(value)
    if span is None:
        return float(number(name, value))
    hours, minutes, rest = span.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


COMMON: Final[Known] = {
    "ca": ("ca", text),
    "insecure": ("insecure", boolean),
    "certificate": ("certificate", text),
    "key": ("key", text),
    "passwordfile": ("password_file", text),
    "timeout": ("timeout", seconds),
}
"""Options of all protocols."""
RECONNECTING: Final[Known] = {
    **COMMON,
    "username": ("username", text),
    "user": ("username", text),
    "password": ("password", text),
    "keepalive": ("keep_alive", seconds),
}
"""Options of all protocols with a login."""


# --- errors of connections ------------------------------------------------------------------------

_CLOSED_IN_HANDSHAKE: Final = "the broker closed the connection; check that the port uses TLS"
_TLS_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "UNEXPECTED_EOF_WHILE_READING": _CLOSED_IN_HANDSHAKE,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not trust the client certificate",
}
"""Errors of OpenSSL in words; others are shown by their name."""


def reason_of(error: OSError) -> str:
    """Return the error of a connection in words: OpenSSL's own text has symbols and source
    positions, and asyncio's repeats the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _TLS_REASONS.get(reason) or reason.replace("_", " ").lower() or str(error)
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # asyncio's error for a connection closed during the handshake has no text
    return error.strerror or str(error) or _CLOSED_IN_HANDSHAKE

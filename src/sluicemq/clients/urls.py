"""Parts of connection URLs and connection strings that all protocols share.

Hosts are `name[:port]`, `address[:port]` or `[IPv6 address][:port]`, separated by commas; the
client tries them in turn. Options are names with values. Option names ignore letter case, `_`, `-`
and blanks.

All functions raise ConfigurationError, which never contains a password.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from sluicemq.model.errors import ConfigurationError

Hosts = tuple[tuple[str, int], ...]
Known = Mapping[str, tuple[str, Callable[[str, str], Any]]]
"""Normalized option name -> field that it sets, and its reader, called with name and text."""


class Target(msgspec.Struct, frozen=True):
    """One broker, or several that a client tries in turn.

    hosts       names or addresses with ports, tried in this order
    path        path of a Unix socket, instead of hosts
    tls         the connection is encrypted
    insecure    any certificate is accepted
    ca          file of trusted certificates; "" = the system's
    timeout     seconds
    keep_alive  idle seconds before a ping; 0 = no pings
    """

    hosts: Hosts = ()
    path: str = ""
    username: str = ""
    password: str = ""
    tls: bool = False
    insecure: bool = False
    ca: str = ""
    timeout: float = 10.0
    keep_alive: float = 30.0

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for the broker's certificate. Raises ConfigurationError."""
        return tls_context(self.ca, insecure=self.insecure, named=not self.path)


_SPAN: Final = re.compile(r"(\d{1,3}):(\d{1,2}):(\d{1,2}(?:\.\d{1,7})?)\Z")
_NUMBER: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?\Z", re.ASCII)
_INTEGER: Final = re.compile(r"\d{1,9}\Z", re.ASCII)


def parse(url: str, scheme: str, port: int, known: Known) -> dict[str, Any]:
    """Return the fields that a URL sets: `tls`, `hosts`, `path`, and those of its options.

    `username` and `password` are among them if the URL has a user. The URL is
    `scheme[+tls]://[user[:password]@]host[:port][,…]` or `scheme+unix[+tls]:///path`, with options
    after `?`. `port` is the default port.
    """
    head, separator, rest = url.partition("://")
    name, *modifiers = head.lower().split("+")
    if name != scheme or not {"tls", "unix"}.issuperset(modifiers) or not separator:
        raise ConfigurationError(f"a broker is named as {scheme}://host:port")
    location, _, options = rest.partition("?")
    fields = {"tls": "tls" in modifiers, "path": "", **read(query(options), known)}
    if "unix" in modifiers:
        return {**fields, "hosts": (), "path": socket_path(location)}
    user, password, authority = credentials(location.rstrip("/"))
    if user:
        fields |= {"username": user, "password": password}
    return {**fields, "hosts": hosts(authority or "127.0.0.1", port)}


def parse_single(url: str, scheme: str, port: int, known: Known) -> dict[str, Any]:
    """Return the arguments of `connect` for a URL of a protocol without login and fail-over.

    These are `host` and `port`, or `path`; `ssl_context`, and those that the options set. `ca`,
    `insecure` and `timeout` are options of all protocols.
    """
    fields = parse(url, scheme, port, {**known, **COMMON})
    if fields.pop("username", fields.pop("password", "")) or len(fields["hosts"]) > 1:
        raise ConfigurationError(f"{scheme} has one host, and no user")
    ca, insecure = fields.pop("ca", ""), fields.pop("insecure", False)
    if fields.pop("tls"):
        fields["ssl_context"] = tls_context(ca, insecure=insecure, named=not fields["path"])
    for host, number in fields.pop("hosts"):
        fields |= {"host": host, "port": number}
    return {**fields, "path": fields["path"] or None}


def hosts(text: str, port: int) -> Hosts:
    """Return the hosts of a list; `port` is the default port."""
    found = []
    for item in text.split(","):
        host, given = item.strip(), str(port)
        if host.startswith("["):
            host, bracket, rest = host[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")):
                raise ConfigurationError(f"{item!r}: an IPv6 address is written [address]:port")
            given = rest[1:] or given
        elif host.count(":") == 1:
            host, _, given = host.partition(":")
        if not host:
            raise ConfigurationError("a host name is missing")
        number = integer("port", given)
        if not 0 < number < 65_536:
            raise ConfigurationError(f"{given} is not a port: 1 to 65535")
        found.append((host, number))
    return tuple(found)


def credentials(location: str) -> tuple[str, str, str]:
    """Split `user:password@rest` into user, password and rest; "" without credentials."""
    userinfo, at, rest = location.rpartition("@")
    user, _, password = userinfo.partition(":")
    return (unquote(user), unquote(password), rest) if at else ("", "", rest)


def socket_path(location: str) -> str:
    """Return the path of a Unix socket in a URL."""
    path = unquote(location)
    if not path.startswith("/"):
        raise ConfigurationError("the path of a Unix socket must begin with /")
    return path


def query(text: str) -> dict[str, str]:
    """Return the options in the query part of a URL."""
    options: dict[str, str] = {}
    for item in filter(None, text.split("&")):
        name, _, value = item.partition("=")
        options[unquote(name)] = unquote(value)
    return options


def plain(name: str) -> str:
    """Return the normalized name of an option: lower case without separators."""
    return name.lower().translate(str.maketrans("", "", " _-"))


def read(options: Mapping[str, str], known: Known) -> dict[str, Any]:
    """Return the fields that the options set. `timeout` must be longer than 0."""
    values: dict[str, Any] = {}
    for name, given in options.items():
        field, reader = known.get(plain(name), ("", text))
        if not field:
            raise ConfigurationError(f"there is no option {name}")
        values[field] = reader(name, given)
    if values.get("timeout", 1) <= 0:
        raise ConfigurationError("timeout must be longer than 0")
    return values


def number(name: str, given: str) -> float:
    """Read a decimal number."""
    if not _NUMBER.match(given):
        raise ConfigurationError(f"{name}: {given!r} is not a number")
    return float(given)


def integer(name: str, given: str) -> int:
    """Read a whole number."""
    if not _INTEGER.match(given):
        raise ConfigurationError(f"{name}: {given!r} is not a whole number")
    return int(given)


def truth(name: str, given: str) -> bool:
    """Read true or false."""
    if given.lower() not in ("true", "false"):
        raise ConfigurationError(f"{name} is true or false, not {given!r}")
    return given.lower() == "true"


def seconds(name: str, given: str) -> float:
    """Read seconds: a number, or hh:mm:ss."""
    span = _SPAN.match(given)
    if span is None:
        return number(name, given)
    hours, minutes, rest = span.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def text(name: str, given: str) -> str:
    """Return the text as it is."""
    return given


def tls_context(ca: str, *, insecure: bool, named: bool) -> ssl.SSLContext:
    """Return a context that trusts the certificates in the file `ca` ("" = the system's).

    With `insecure` it trusts any certificate. `named`: the broker's certificate must have the host
    name.
    """
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise ConfigurationError(f"ca: {ca} cannot be used: {error}") from None
    if insecure or not named:
        context.check_hostname = False
    if insecure:
        context.verify_mode = ssl.CERT_NONE
    return context


COMMON: Final[Known] = {
    "ca": ("ca", text),
    "insecure": ("insecure", truth),
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

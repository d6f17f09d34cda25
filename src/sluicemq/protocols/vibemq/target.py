"""Where a client connects to, and how: told by a URL or by a connection string of the .NET kind.

    vibemq[+tls]://[user[:password]@]host[:port][,host[:port]…][?option=value&…]
    vibemq+unix:///path[?option=value&…]
    Host=a:2925,b;Port=2925;Username=me;Password=secret;UseTls=true;…

Names of options do not depend on letter case, nor on `_`, `-` and blanks between their words:

    host, port, username (user, user id, uid), password (pwd), token (auth token)
    tls (use tls, ssl)                              true or false
    insecure (skip certificate validation)          true or false
    ca                                              file of certificates that are trusted
    timeout (command timeout), keep alive (keep alive interval)    seconds, or hh:mm:ss
    compression (preferred compressions)            `brotli,gzip`, in order of preference; none
    threshold (compression threshold)               bytes
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from sluicemq.model.errors import ConfigurationError
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression

DEFAULT_PORT: Final = 2925

_SCHEME: Final = re.compile(r"vibemq((?:\+(?:tls|unix))*)://", re.IGNORECASE)
_SPAN: Final = re.compile(r"(\d{1,3}):(\d{1,2}):(\d{1,2}(?:\.\d{1,7})?)\Z")
_NUMBER: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?\Z", re.ASCII)
_INTEGER: Final = re.compile(r"\d{1,9}\Z", re.ASCII)


class Target(NamedTuple):
    """One broker or several that stand for each other.

    hosts       tried in this order; a name or address, and a port
    path        of a Unix socket, instead of hosts
    ca          file of trusted certificates; "" = the system's
    insecure    whoever answers is taken for the broker
    timeout     seconds
    keep_alive  seconds between two pings; 0 = none
    """

    hosts: tuple[tuple[str, int], ...] = (("127.0.0.1", DEFAULT_PORT),)
    path: str = ""
    username: str = ""
    password: str = ""
    token: str = ""
    tls: bool = False
    insecure: bool = False
    ca: str = ""
    timeout: float = 10.0
    keep_alive: float = 30.0
    compression: tuple[Compression, ...] = SUPPORTED
    threshold: int = THRESHOLD

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises ConfigurationError, which never shows a password."""
        scheme = _SCHEME.match(text)
        if scheme is not None:
            return _parse_url(text[scheme.end() :], scheme.group(1).lower().split("+")[1:])
        return _parse_pairs(text)


def _parse_url(text: str, modifiers: list[str]) -> Target:
    location, _, query = text.partition("?")
    options: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        name, _, value = item.partition("=")
        options[unquote(name)] = unquote(value)
    target = _with_options(Target(tls="tls" in modifiers), options)
    if "unix" in modifiers:
        path = unquote(location)
        if not path.startswith("/"):
            raise ConfigurationError("the path of a Unix socket begins with /")
        return target._replace(hosts=(), path=path)
    userinfo, at, hosts = location.rstrip("/").rpartition("@")
    if at:
        user, _, password = userinfo.partition(":")
        target = target._replace(username=unquote(user), password=unquote(password))
    return target._replace(hosts=_hosts(hosts or "127.0.0.1", DEFAULT_PORT))


def _parse_pairs(text: str) -> Target:
    options: dict[str, str] = {}
    for item in text.split(";"):
        if not item.strip():
            continue
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(
                "a connection string is Host=…;Port=…;Username=…, or a URL vibemq://…"
            )
        options[name] = value.strip()
    plain = {_plain(name): value for name, value in options.items()}
    port = _integer("port", plain.pop("port", str(DEFAULT_PORT)))
    host = plain.pop("host", plain.pop("server", "127.0.0.1"))
    return _with_options(Target(), plain)._replace(hosts=_hosts(host, port))


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
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
            raise ConfigurationError("a host has no name")
        number = _integer("port", given)
        if not 0 < number < 65_536:
            raise ConfigurationError(f"{given} is no port")
        found.append((host, number))
    return tuple(found)


def _plain(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", " _-"))


def _number(name: str, text: str) -> float:
    if not _NUMBER.match(text):
        raise ConfigurationError(f"{name}: {text!r} is not a number")
    return float(text)


def _integer(name: str, text: str) -> int:
    if not _INTEGER.match(text):
        raise ConfigurationError(f"{name}: {text!r} is not a whole number")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _seconds(name: str, text: str) -> float:
    span = _SPAN.match(text)
    if span is None:
        return _number(name, text)
    hours, minutes, seconds = span.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _text(name: str, text: str) -> str:
    return text


def _algorithms(name: str, text: str) -> tuple[Compression, ...]:
    known = {how.name.lower(): how for how in Compression}
    found = []
    for word in filter(None, (word.strip().lower() for word in text.split(","))):
        if word not in known:
            raise ConfigurationError(f"{name}: {word!r} is none of {', '.join(known)}")
        if known[word] is not Compression.NONE:
            found.append(known[word])
    return tuple(found)


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "username": ("username", _text),
    "user": ("username", _text),
    "userid": ("username", _text),
    "uid": ("username", _text),
    "password": ("password", _text),
    "pwd": ("password", _text),
    "token": ("token", _text),
    "authtoken": ("token", _text),
    "tls": ("tls", _truth),
    "usetls": ("tls", _truth),
    "ssl": ("tls", _truth),
    "insecure": ("insecure", _truth),
    "skipcertificatevalidation": ("insecure", _truth),
    "ca": ("ca", _text),
    "timeout": ("timeout", _seconds),
    "commandtimeout": ("timeout", _seconds),
    "keepalive": ("keep_alive", _seconds),
    "keepaliveinterval": ("keep_alive", _seconds),
    "compression": ("compression", _algorithms),
    "preferredcompressions": ("compression", _algorithms),
    "threshold": ("threshold", _integer),
    "compressionthreshold": ("threshold", _integer),
}


def _with_options(target: Target, options: Mapping[str, str]) -> Target:
    values: dict[str, Any] = {}
    for name, text in options.items():
        field, read = _OPTIONS.get(_plain(name), ("", _text))
        if not field:
            raise ConfigurationError(f"there is no option {name!r}")
        values[field] = read(name, text)
    if values.get("timeout", 1) <= 0:
        raise ConfigurationError("timeout is longer than 0")
    return target._replace(**values)


def tls_context(target: Target) -> ssl.SSLContext | None:
    """What the target asks for; None without TLS. Raises ConfigurationError."""
    if not target.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=target.ca or None)
    except OSError as error:
        raise ConfigurationError(f"ca: {target.ca} cannot be used: {error}") from None
    if target.insecure or target.path:
        context.check_hostname = False
    if target.insecure:
        context.verify_mode = ssl.CERT_NONE
    return context

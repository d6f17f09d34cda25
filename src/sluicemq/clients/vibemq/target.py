"""Address and options of a broker, from a URL or a .NET connection string.

    vibemq[+tls]://[user[:password]@]host[:port][,host[:port]…][?option=value&…]
    vibemq+unix:///path[?option=value&…]
    Host=a:2925,b;Port=2925;Username=me;Password=secret;UseTls=true;…

Names of options ignore letter case, `_`, `-` and blanks:

    host, port, username (user, user id, uid), password (pwd), token (auth token)
    tls (use tls, ssl)                              true or false
    insecure (skip certificate validation)          true or false
    ca                                              file of certificates that are trusted
    timeout (command timeout), keep alive (keep alive interval)    seconds, or hh:mm:ss
    compression (preferred compressions)            `brotli,gzip`, in order of preference; none
    threshold (compression threshold)               bytes
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from sluicemq.clients import urls
from sluicemq.model.errors import ConfigurationError
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression

DEFAULT_PORT: Final = 2925


class Target(NamedTuple):
    """One broker, or several that a client tries in turn.

    hosts       names or addresses with ports, tried in this order
    path        path of a Unix socket, instead of hosts
    ca          file of trusted certificates; "" = the system's
    insecure    any certificate is accepted
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
        """Parse a URL or connection string. Raises ConfigurationError without the password."""
        if "://" in text.partition("?")[0]:
            return cls(**urls.parse(text, "vibemq", DEFAULT_PORT, _OPTIONS))
        return _parse_pairs(text)


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
    plain = {urls.plain(name): value for name, value in options.items()}
    port = urls.integer("port", plain.pop("port", str(DEFAULT_PORT)))
    host = plain.pop("host", plain.pop("server", "127.0.0.1"))
    return _with_options(Target(), plain)._replace(hosts=urls.hosts(host, port))


def _algorithms(name: str, text: str) -> tuple[Compression, ...]:
    known = {how.name.lower(): how for how in Compression}
    found = []
    for word in filter(None, (word.strip().lower() for word in text.split(","))):
        if word not in known:
            raise ConfigurationError(f"{name}: {word!r} is not one of {', '.join(known)}")
        if known[word] is not Compression.NONE:
            found.append(known[word])
    return tuple(found)


_OPTIONS: Final[urls.Known] = {
    "username": ("username", urls.text),
    "user": ("username", urls.text),
    "userid": ("username", urls.text),
    "uid": ("username", urls.text),
    "password": ("password", urls.text),
    "pwd": ("password", urls.text),
    "token": ("token", urls.text),
    "authtoken": ("token", urls.text),
    "tls": ("tls", urls.truth),
    "usetls": ("tls", urls.truth),
    "ssl": ("tls", urls.truth),
    "insecure": ("insecure", urls.truth),
    "skipcertificatevalidation": ("insecure", urls.truth),
    "ca": ("ca", urls.text),
    "timeout": ("timeout", urls.seconds),
    "commandtimeout": ("timeout", urls.seconds),
    "keepalive": ("keep_alive", urls.seconds),
    "keepaliveinterval": ("keep_alive", urls.seconds),
    "compression": ("compression", _algorithms),
    "preferredcompressions": ("compression", _algorithms),
    "threshold": ("threshold", urls.integer),
    "compressionthreshold": ("threshold", urls.integer),
}


def _with_options(target: Target, options: Mapping[str, str]) -> Target:
    return target._replace(**urls.read(options, _OPTIONS))


def tls_context(target: Target) -> ssl.SSLContext | None:
    """Return the TLS context of a target; None without TLS. Raises ConfigurationError."""
    if not target.tls:
        return None
    return urls.tls_context(target.ca, insecure=target.insecure, named=not target.path)

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

from typing import Final

from sluicemq.clients import urls
from sluicemq.model.errors import ConfigurationError
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression

DEFAULT_PORT: Final = 2925


class Target(urls.Target, frozen=True):
    """A broker's address and login.

    token        for brokers that need one instead of user and password
    compression  offered algorithms, in order of preference
    threshold    size in bytes from which a frame is compressed
    """

    token: str = ""
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
    return Target(urls.hosts(host, port), **urls.read(plain, _OPTIONS))


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
    **urls.RECONNECTING,
    "userid": ("username", urls.text),
    "uid": ("username", urls.text),
    "pwd": ("password", urls.text),
    "token": ("token", urls.text),
    "authtoken": ("token", urls.text),
    "tls": ("tls", urls.truth),
    "usetls": ("tls", urls.truth),
    "ssl": ("tls", urls.truth),
    "skipcertificatevalidation": ("insecure", urls.truth),
    "commandtimeout": ("timeout", urls.seconds),
    "keepaliveinterval": ("keep_alive", urls.seconds),
    "compression": ("compression", _algorithms),
    "preferredcompressions": ("compression", _algorithms),
    "threshold": ("threshold", urls.integer),
    "compressionthreshold": ("threshold", urls.integer),
}

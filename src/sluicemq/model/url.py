"""Network addresses as URLs: of listeners and brokers, on the command line and in files.

    scheme://[user[:password]@][host][:port][/queue][?option=value&…]     TCP
    scheme+unix://[/path][?queue=name&option=value&…]                     Unix domain socket

`scheme` is a protocol followed by `+unix` and `+tls` as needed (`phpmq+tls://`). An address
without a host means 127.0.0.1, one without a port the protocol's traditional port; port 0 lets
the operating system choose. IPv6 addresses stand in brackets. `Url.parse_all` accepts several
hosts, `[host][:port],host[:port],…`, which a client tries in turn. The queue and the path may hold
any bytes, percent-encoded where a URL cannot show them; other parts are UTF-8. Options are the
settings of a listener under the names they have in the configuration file, with `-`, `_` or blanks
between words.

`Url.format` is the inverse of `Url.parse`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from sluicemq.model.destination import decode_name, encode_name
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.setting import suggestion

LOOPBACK: Final = "127.0.0.1"
MAX_URL: Final = 8192
"""Maximum length of an address in characters."""
MAX_SOCKET_PATH: Final = 107
"""Maximum length of a Unix socket's path in bytes on Linux (sun_path without NUL)."""

_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f]")
_HOST_NAME: Final = re.compile(r"(?!-|.{254})[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?\Z")
"""Labels of 1 to 63 characters: the resolver raises UnicodeError for others."""
_PORT: Final = re.compile(r"[0-9]{1,5}\Z")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RAW_BYTE: Final = re.compile("[\udc80-\udcff]")
"""A byte of the command line that is not UTF-8, as `surrogateescape` decodes it."""
_PASSWORD: Final = re.compile(r"(://[^:@/]*:).*@", re.DOTALL)
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)
_SECRET_OPTION: Final = re.compile(r"(?i)(password|pwd|(auth_?)?token)\Z")
"""Name of an option of a client whose value is a secret."""


class Protocol(NamedTuple):
    """Default port and socket path of a protocol. None or "": an address must contain it."""

    port: int | None
    path: str = ""


PROTOCOLS: Final[dict[str, Protocol]] = {
    "msglite": Protocol(9813, "/tmp/msglite.socket"),
    "msglite-http": Protocol(9814),
    "phpmq": Protocol(9100),
    "phpmq-maintenance": Protocol(9101),
    "vibemq": Protocol(2925),
    "jmq": Protocol(7676),
    "http": Protocol(7680),
    "auto": Protocol(None),
}


class Url(NamedTuple):
    """Parsed address.

    protocol   a key of PROTOCOLS
    host       name or IP address without brackets; "" for a Unix socket
    port       0-65535; 0 for a Unix socket
    path       of the Unix socket; "" for TCP
    tls        True if the connection is encrypted
    user       user name, or ""
    password   password, or ""
    queue      destination of a client, or ""
    options    further settings in the order written, names with underscores
    """

    protocol: str
    host: str = LOOPBACK
    port: int = 0
    path: str = ""
    tls: bool = False
    user: str = ""
    password: str = ""
    queue: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Url:
        """Parse an address. Raises ConfigurationError with a correction if it is invalid."""
        first, *other_urls = cls.parse_all(text)
        if other_urls:
            raise _mistake(text, "only one host is possible here")
        return first

    @classmethod
    def parse_all(cls, text: str) -> list[Url]:
        """Parse an address with several hosts, separated by commas. Returns one Url for each.

        Raises ConfigurationError with a correction if it is invalid."""
        try:
            return cls._parse(text)
        except ConfigurationError as error:
            raise _mistake(text, str(error)) from None

    @classmethod
    def _parse(cls, text: str) -> list[Url]:
        if len(text) > MAX_URL:
            raise ConfigurationError(f"it is longer than {MAX_URL} characters")
        if match := _UNSAFE.search(text):
            character = match.group().encode()[0]
            raise ConfigurationError(f"write the character 0x{character:02x} as %{character:02X}")
        if escape := _BAD_ESCAPE.search(text):
            raise ConfigurationError(f"a literal % (position {escape.start() + 1}) is written %25")
        if "#" in text:
            raise ConfigurationError("an address has no # part; write a literal # as %23")
        text = _RAW_BYTE.sub(lambda match: f"%{ord(match.group()) & 0xFF:02X}", text)
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise ConfigurationError(
                f"begin with a protocol, as in msglite://{text or 'host:port'}"
            )
        protocol, unix, tls = _parse_scheme(scheme)
        rest, _, query = rest.partition("?")
        options = _parse_query(query)
        if unix:
            queue = options.pop("queue", "")
            path = _parse_socket_path(protocol, rest)
            url = cls(protocol, "", 0, path, tls, queue=queue, options=tuple(options.items()))
            return [url]
        authority, _, raw_queue = rest.partition("/")
        userinfo, at_sign, host_list = authority.rpartition("@")
        user, colon, password = userinfo.partition(":")
        if at_sign and not user:
            raise ConfigurationError("there is no user name before the @")
        if colon and not password:
            raise ConfigurationError("there is no password between the : and the @")
        if "queue" in options:
            raise ConfigurationError("the queue of a TCP address is its path: …host:port/queue")
        url = cls(
            protocol,
            tls=tls,
            user=_decode(user, "the user"),
            password=_decode(password, "the password"),
            queue=decode_name(unquote_to_bytes(raw_queue)),
            options=tuple(options.items()),
        )
        hosts = parse_hosts(host_list, PROTOCOLS[protocol].port)
        return [url._replace(host=host, port=port) for host, port in hosts]

    def format(self) -> str:
        """Return the address as text with the secrets, which `str(url)` hides."""
        return self._text(quote(self.password, safe=""), self.options)

    def __str__(self) -> str:
        options = [
            (name, "***" if _SECRET_OPTION.match(name) else value) for name, value in self.options
        ]
        return self._text("***", options)

    def _text(self, password: str, plain_options: Iterable[tuple[str, str]]) -> str:
        scheme = f"{self.protocol}{'+unix' if self.path else ''}{'+tls' if self.tls else ''}"
        options = [(name, quote(value, safe="/:,*")) for name, value in plain_options]
        queue = quote(encode_name(self.queue), safe="/:,")
        if self.path:
            location = quote(encode_name(self.path), safe="/")
            if queue:
                options.insert(0, ("queue", queue))
        else:
            user = quote(self.user, safe="")
            credentials = f"{user}:{password}@" if self.password else f"{user}@" if user else ""
            host = f"[{quote(self.host, safe=':')}]" if ":" in self.host else self.host
            location = f"{credentials}{host}:{self.port}{'/' if queue else ''}{queue}"
        query = "&".join(f"{name}={value}" for name, value in options)
        return f"{scheme}://{location}{'?' if query else ''}{query}"

    @property
    def public(self) -> bool:
        """True unless the address is a Unix socket or a loopback address."""
        return not self.path and is_public(self.host)

    def collides(self, other: Url) -> bool:
        """Return whether a process cannot listen on both addresses at the same time."""
        if self.path or other.path:
            return self.path == other.path
        if self.port != other.port or self.port == 0:
            return False
        if self.host == other.host:
            return True
        versions = _ip_version(self.host), _ip_version(other.host)
        # a listener on `::` accepts no IPv4 connections
        has_same_version = 0 in versions or versions[0] == versions[1]
        return has_same_version and (is_wildcard(self.host) or is_wildcard(other.host))


def _mistake(text: str, problem: str) -> ConfigurationError:
    """Return the error for an address, which it shows without password and options."""
    displayed_text = _QUERY.sub("?…", _PASSWORD.sub(r"\1***@", text))
    return ConfigurationError(f"address {displayed_text[:200]!r}: {problem}")


def _parse_scheme(scheme: str) -> tuple[str, bool, bool]:
    protocol, *modifiers = scheme.lower().split("+")
    if protocol not in PROTOCOLS:
        hint = suggestion(protocol, PROTOCOLS)
        raise ConfigurationError(f"unknown protocol {protocol!r}; {hint}")
    for modifier in modifiers:
        if modifier not in ("unix", "tls"):
            raise ConfigurationError(f"+{modifier} is unknown; there are +unix and +tls")
    if len(set(modifiers)) != len(modifiers):
        raise ConfigurationError("+unix and +tls are written once")
    return protocol, "unix" in modifiers, "tls" in modifiers


def _parse_query(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in query.split("&") if query else ():
        raw_name, _, raw_value = item.partition("=")
        name = re.sub("[- ]", "_", unquote(raw_name))
        if not name or not raw_value:
            raise ConfigurationError(
                f"{item!r} is not an option; options are name=value, joined by &"
            )
        if not name.isidentifier():
            raise ConfigurationError(f"{name!r} cannot be the name of an option")
        if name in options:
            raise ConfigurationError(f"the option {name} is given twice")
        options[name] = (
            decode_name(unquote_to_bytes(raw_value))
            if name == "queue"
            else _decode(raw_value, f"the option {name}")
        )
    return options


def _decode(raw: str, part: str) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{part} is not UTF-8 text") from None


def _parse_socket_path(protocol: str, rest: str) -> str:
    path = unquote(rest, errors="surrogateescape") or PROTOCOLS[protocol].path
    if not path:
        raise ConfigurationError(f"give the path of the socket: {protocol}+unix:///run/x.sock")
    if not path.startswith("/"):
        raise ConfigurationError(
            "a Unix socket has an absolute path: three slashes after the colon"
        )
    if "\0" in path:
        raise ConfigurationError("a path cannot contain the character 0")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_SOCKET_PATH:
        raise ConfigurationError(f"the path of a Unix socket has at most {MAX_SOCKET_PATH} bytes")
    return path


def parse_hosts(text: str, default_port: int | None) -> list[tuple[str, int]]:
    """Parse hosts with optional ports, separated by commas. Raises ConfigurationError."""
    return [_parse_host_port(item.strip(), default_port) for item in (text or LOOPBACK).split(",")]


def _parse_host_port(text: str, default_port: int | None) -> tuple[str, int]:
    if text.startswith("["):
        raw_host, bracket, tail = text[1:].partition("]")
        host = unquote(raw_host)
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigurationError("an IPv6 address is written [address]:port")
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ConfigurationError(f"{host!r} is not an IPv6 address") from None
        colon, port = tail[:1], tail[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise ConfigurationError("put an IPv6 address in brackets: [::1]:9813")
        if colon and not host:
            host = LOOPBACK
        host = host.lower()
        if not _HOST_NAME.match(host):
            raise ConfigurationError(f"{host!r} is neither a host name nor an IP address")
    if not colon:
        if default_port is None:
            raise ConfigurationError("the protocol has no traditional port; write host:port")
        return host, default_port
    if not _PORT.match(port) or int(port) > 65535:
        raise ConfigurationError(f"{port!r} is not a port number (0-65535)")
    return host, int(port)


def is_wildcard(host: str) -> bool:
    """Return whether the host means all addresses of the machine."""
    return host in ("0.0.0.0", "::")


def _ip_version(host: str) -> int:
    """Return 4 or 6 for an IP address; 0 for a host name, which may have addresses of both."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def is_public(host: str) -> bool:
    """Return whether the host is not this machine's loopback.

    A host name counts as public because its IP address can change after the check.
    """
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"

"""Where clients connect: the settings of a listener, what one connection may cost, and which
combinations are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from sluicemq.model.message import Durability
from sluicemq.protocols.phpmq.wire import DISPATCH_VERSIONS, DispatchVersion
from sluicemq.protocols.vibemq.publisher import BLOCK_TIMEOUT
from sluicemq.protocols.vibemq.queues import NO_LIMIT
from sluicemq.server.address import Url
from sluicemq.server.settings import about
from sluicemq.server.units import Unit

WITH_LOGINS: Final = frozenset({"vibemq", "jmq", "http"})
"""Protocols whose clients can say who they are."""

DEFAULT_LISTENERS: Final = (
    "msglite://",
    "phpmq://",
    "phpmq-maintenance://",
    "vibemq://",
    "jmq://",
    "http://",
)


VIBEMQ_FRAME_BYTES: Final = 1024**2
"""`max_frame_bytes` of a VibeMQ listener that says nothing about it, at most."""

OFFERS_LOGIN: Final = WITH_LOGINS | {"auto"}
"""Listeners of these protocols may ask their clients who they are."""


def is_open(url: Url, user: str, required: str, insecure_public: bool) -> bool:
    """Return whether clients without a certificate may do everything at a listener of a protocol
    without logins, whether or not there are users.

    `user` is that of the listener, "" for none; the others are `auth.required` and
    `insecure_public`.
    """
    return not user and required != "always" and (insecure_public or not url.public)


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may cost the broker. Each listener may say otherwise."""

    max_connections: Annotated[
        int,
        about(
            "Connections of one listener at a time; more are closed at once (JMS and VibeMQ "
            "clients: see `max_rejections`).",
            ge=1,
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        about(
            "The same of one client address; an IPv6 address stands for its /64, Unix sockets have "
            "none. 0 = no limit.",
            ge=0,
        ),
    ] = 0
    max_connections_per_user: Annotated[
        int,
        about(
            "The same of one user; a login beyond it is refused. Not of HTTP, where each request "
            "says who it is from. 0 = no limit.",
            ge=0,
        ),
    ] = 0
    max_frame_bytes: Annotated[
        int,
        about(
            "Largest message body accepted. Of the VibeMQ protocol: largest frame as it is sent, "
            "at most 1 MiB unless a `vibemq` listener itself says otherwise.",
            Unit.BYTES,
            ge=1,
            le=1024**3,
        ),
    ] = 64 * 1024**2
    max_header_bytes: Annotated[
        int, about("Longest command line or frame header accepted.", Unit.BYTES, ge=64, le=1024**2)
    ] = 64 * 1024
    max_name_bytes: Annotated[
        int, about("Longest name of a destination.", Unit.BYTES, ge=1, le=65_535)
    ] = 1024
    max_login_bytes: Annotated[
        int,
        about(
            "Input that a connection may leave unfinished before it has logged in (without logins: "
            "before its first valid command); beyond it the connection is closed.",
            Unit.BYTES,
            ge=1024,
            le=1024**3,
        ),
    ] = 64 * 1024
    login_timeout: Annotated[
        float,
        about(
            "Time to log in, whatever else a client sends; the time in which its password waits to "
            "be checked does not count. 0 = for ever.",
            Unit.SECONDS,
        ),
    ] = 10.0
    frame_timeout: Annotated[
        float,
        about(
            "A connection that leaves a frame or request unfinished and sends nothing more of it "
            "for so long is closed; 0 = never.",
            Unit.SECONDS,
        ),
    ] = 60.0
    idle_timeout: Annotated[
        float,
        about(
            "A connection silent in both directions for so long is closed; 0 = never.", Unit.SECONDS
        ),
    ] = 0.0
    output_high_watermark: Annotated[
        int,
        about(
            "Bytes waiting for a slow reader at which it gets no more deliveries.",
            Unit.BYTES,
            ge=1024,
        ),
    ] = 1024**2
    output_timeout: Annotated[
        float,
        about(
            "A peer that takes nothing of what waits for it for so long is cut off; 0 = never.",
            Unit.SECONDS,
        ),
    ] = 60.0


class Listener(ListenerLimits, frozen=True, kw_only=True):
    """One address that clients connect to, with its own limits."""

    url: Url
    durability: Annotated[
        Durability | None,
        about(
            "What a sender waits for: `sync` = its message is on disk, `lazy` = it is on its way "
            "there, `none` = memory only. Without it: `none` for msglite, `sync` for the others."
        ),
    ] = None
    dispatch_version: Annotated[
        DispatchVersion,
        about(
            "Of the PHPMQ protocol: the form of dispatches. `1` has three packets, as the released "
            "PHP clients expect; `2` has a fourth with the remaining TTL. `auto`: the form in "
            "which the connection has sent; if it has not, that in which the message was sent, "
            "and `1` for messages of other protocols."
        ),
    ] = "auto"
    request_queue: Annotated[
        str, about("Of the msglite HTTP gateway: the queue that requests are sent to.")
    ] = "msglite.httpRequests"
    window: Annotated[
        int,
        about("Of the VibeMQ protocol: messages a subscription may hold unacknowledged.", ge=1),
    ] = 256
    window_bytes: Annotated[
        int,
        about("Of the VibeMQ protocol: the same in bytes of their payloads.", Unit.BYTES, ge=1),
    ] = 1024**2
    ack_timeout: Annotated[
        float,
        about(
            "Of the VibeMQ protocol: time for the acknowledgement of the message that a "
            "connection has to handle next, in queues without an `ack_timeout` of their own; "
            "0 = for ever.",
            Unit.SECONDS,
        ),
    ] = 30.0
    max_unpacked_bytes: Annotated[
        int,
        about(
            "Of the VibeMQ protocol: largest frame accepted when it is decompressed, headers "
            "included; `max_frame_bytes` limits it as it is sent.",
            Unit.BYTES,
            ge=1024,
            le=1024**3,
        ),
    ] = 64 * 1024**2
    compression: Annotated[
        bool, about("Of the VibeMQ protocol: large frames are compressed for clients that ask.")
    ] = True
    compression_threshold: Annotated[
        int, about("Of the VibeMQ protocol: what is large; 0 = everything.", Unit.BYTES)
    ] = 1024
    strict_create: Annotated[
        bool,
        about(
            "Of the VibeMQ protocol: CreateQueue fails for a queue that exists, even if it is to "
            "be as it is."
        ),
    ] = False
    foreign_delete: Annotated[
        Literal["refuse", "allow"],
        about(
            "Of the VibeMQ protocol: whether DeleteQueue deletes a queue that the configuration, "
            "an administrator or a client of another protocol has created, that has consumers of "
            "other protocols, or that is the dead-letter queue of one that exists."
        ),
    ] = "refuse"
    default_mode: Annotated[
        Literal["RoundRobin", "FanOutWithAck", "FanOutWithoutAck", "PriorityBased"] | None,
        about(
            "Of the VibeMQ protocol: mode of queues for which clients give no options. Without it: "
            "as `priority_ordering` in `[broker.default_destination]` says, else `RoundRobin`."
        ),
    ] = None
    default_max_queue_size: Annotated[
        int,
        about(
            "Of the VibeMQ protocol: messages that may wait in such queues; 0 = as `max_messages` "
            "of `[broker.default_destination]`, else 10,000.",
            le=NO_LIMIT,
        ),
    ] = 0
    default_overflow: Annotated[
        Literal["DropOldest", "DropNewest", "BlockPublisher", "RedirectToDlq"] | None,
        about(
            "Of the VibeMQ protocol: what happens to messages beyond that. Without it: `overflow` "
            "of `[broker.default_destination]`, else `DropOldest`."
        ),
    ] = None
    default_max_retries: Annotated[
        int,
        about(
            "Of the VibeMQ protocol: deliveries of a message, in total, in such queues; 0 = as "
            "`max_attempts` of `[broker.default_destination]`, else 3.",
            le=NO_LIMIT,
        ),
    ] = 0
    block_timeout: Annotated[
        float,
        about(
            "Of the VibeMQ protocol: time for which a publish waits for room in a queue that "
            "blocks its publishers; 0 = it is refused at once. .NET clients give up after their "
            "`CommandTimeout`, 10 s by default.",
            Unit.SECONDS,
            le=3600,
        ),
    ] = BLOCK_TIMEOUT / 1000
    rate_limit: Annotated[
        int,
        about(
            "Of the VibeMQ protocol: requests of a connection in a second, acknowledgements and "
            "pings not counted; 0 = as many as it likes."
        ),
    ] = 0
    max_login_failures: Annotated[
        int,
        about(
            "Of the VibeMQ protocol: refused logins of a connection, with the last of which it is "
            "closed; until then, and until `login_timeout`, the client may try again.",
            ge=1,
            le=1000,
        ),
    ] = 5
    json: Annotated[
        Literal["auto", "string"],
        about(
            "Of the VibeMQ protocol: how text of other protocols is delivered. `auto`: a JSON "
            "object or array as that, all else as a JSON string. `string`: always as a JSON "
            "string."
        ),
    ] = "auto"
    services: Annotated[
        Literal["all", "jms", "portmapper"],
        about(
            "Of the JMQ protocol: both the port mapper and the service it leads to (`jms`, with "
            "TLS `ssljms`), or one of them."
        ),
    ] = "all"
    portmapper_timeout: Annotated[
        float,
        about(
            "Of the JMQ protocol: a client that says nothing for so long is told what the port "
            "mapper tells, as those of iMQ 2.0 expect; 0 = never.",
            Unit.SECONDS,
            le=60,
        ),
    ] = 1.0
    advertised_port: Annotated[
        int,
        about(
            "Of the JMQ protocol: the port that the port mapper tells clients for this listener, "
            "if they reach it by another than it has here (containers, address translation); "
            "0 = the one it has.",
            le=65_535,
        ),
    ] = 0
    authentication: Annotated[
        Literal["auto", "basic", "digest"],
        about(
            "Of the JMQ protocol: how clients log in. `basic`: with the password, best under TLS. "
            "`digest`: with an MD5 of it, which only users have who were added with "
            "`--allow-digest`. `auto`: by digest if nobody has to log in or all users can do that, "
            "else basic."
        ),
    ] = "auto"
    prefetch: Annotated[
        int,
        about(
            "Of the JMQ protocol: messages that a consumer is sent before it has to ask for more, "
            "at most; it may ask for fewer.",
            ge=1,
        ),
    ] = 1000
    shared_prefetch: Annotated[
        int,
        about(
            "Of the JMQ protocol: the same for consumers that share a subscription of a topic.",
            ge=1,
        ),
    ] = 5
    producer_flow: Annotated[
        int,
        about(
            "Of the JMQ protocol: messages after which a producer waits for the broker's word; "
            "0 = never."
        ),
    ] = 1000
    ping_interval: Annotated[
        float,
        about(
            "Of the JMQ protocol: a silent client is pinged after this time, and given up after "
            "six times as long; 0 = never.",
            Unit.SECONDS,
        ),
    ] = 120.0
    max_rejections: Annotated[
        int,
        about(
            "Of the JMQ and VibeMQ protocols: clients beyond `max_connections` that are told so at "
            "a time (HELLO_REPLY with status 503, Error CONNECTION_LIMIT); the connections of more "
            "are closed at once.",
            le=10_000,
        ),
    ] = 64
    user: Annotated[
        str,
        about(
            "Of protocols without logins: whom their clients act as, with that user's permissions. "
            "Without it they may do everything, and only on loopback and Unix sockets."
        ),
    ] = ""
    certificate: Annotated[
        Path | None,
        about(
            "For `+tls`: PEM file with the certificate and its chain, or PKCS#12 (`.p12`, `.pfx`) "
            "with the key too."
        ),
    ] = None
    key: Annotated[
        Path | None, about("PEM file with the private key, if not in the certificate's file.")
    ] = None
    password_file: Annotated[
        Path | None, about("File whose first line decrypts the private key.")
    ] = None
    tls_min_version: Annotated[
        Literal["1.2", "1.3"], about("The oldest version of TLS accepted.")
    ] = "1.2"
    ciphers: Annotated[
        str | None,
        about(
            "Cipher suites of TLS 1.2, as for `openssl ciphers`. Without it: those that Python "
            "thinks sound. TLS 1.3 has its own, which all are."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["none", "optional", "required"],
        about("Whether clients are asked for a certificate, and turned away without one."),
    ] = "none"
    client_ca: Annotated[
        Path | None, about("PEM file with the authorities whose client certificates are trusted.")
    ] = None
    client_user: Annotated[
        Literal["cn", "san-dns", "san-email", "subject"],
        about(
            "What in a client's certificate is the user's name: the common name, the first "
            "alternative name of a kind, or the whole subject (RFC 4514)."
        ),
    ] = "cn"
    socket_mode: Annotated[
        int, about("File mode of a Unix socket: who may connect.", Unit.MODE, le=0o777)
    ] = 0o660


VIBEMQ_SETTINGS: Final = (
    "window",
    "window_bytes",
    "ack_timeout",
    "max_unpacked_bytes",
    "compression",
    "compression_threshold",
    "strict_create",
    "foreign_delete",
    "default_mode",
    "default_max_queue_size",
    "default_overflow",
    "default_max_retries",
    "block_timeout",
    "rate_limit",
    "max_login_failures",
    "json",
)
"""Settings of a listener that mean something only to VibeMQ clients."""

JMQ_SETTINGS: Final = (
    "services",
    "portmapper_timeout",
    "advertised_port",
    "authentication",
    "prefetch",
    "shared_prefetch",
    "producer_flow",
    "ping_interval",
)
"""Settings of a listener that mean something only to JMS clients."""

TOLD_OF_REFUSALS: Final = frozenset({"jmq", "vibemq", "auto"})
"""Listeners of these protocols can tell clients that there are too many (`max_rejections`)."""

TLS_SETTINGS: Final = (
    "certificate",
    "key",
    "password_file",
    "tls_min_version",
    "ciphers",
    "client_certificate",
    "client_ca",
    "client_user",
)
"""Settings of a listener that mean something only with TLS."""

_UNSAID: Final = {
    field.name: field.default
    for field in msgspec.structs.fields(Listener)
    if field.name in TLS_SETTINGS
}


def default_listeners() -> tuple[Listener, ...]:
    """Every served protocol on its traditional loopback port."""
    return tuple(
        listener_of({"url": Url.parse(url)}, ListenerLimits()) for url in DEFAULT_LISTENERS
    )


def listener_of(values: Mapping[str, Any], limits: ListenerLimits) -> Listener:
    """Return a listener with its own settings, `url` among them, and else those of `limits`.

    One of VibeMQ has not more than VIBEMQ_FRAME_BYTES from there: its clients cannot read more.
    """
    inherited = msgspec.structs.asdict(limits)
    if values["url"].protocol == "vibemq":
        inherited["max_frame_bytes"] = min(limits.max_frame_bytes, VIBEMQ_FRAME_BYTES)
    return Listener(**{**inherited, **values})


def admin_listener(path: Path) -> Listener:
    """The socket of whoever owns the data; nobody else may open it."""
    return Listener(
        url=Url("http", host="", path=str(path)), socket_mode=0o600, max_connections=256
    )


def address_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    if url.user or url.queue:
        yield f"{url}: a listener has neither a user nor a queue; leave them to the clients"
    if url.options:
        names = ", ".join(name for name, _ in url.options)
        yield f"{url}: the options {names} were not applied"
    if listener.dispatch_version not in DISPATCH_VERSIONS.values():
        yield f"{url}: dispatch_version is auto, 1 or 2, not {listener.dispatch_version}"
    if not 0 <= listener.socket_mode <= 0o777:
        yield f"{url}: socket_mode is three octal digits (0660), not 0{listener.socket_mode:o}"


def tls_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    if not url.tls:
        for name in TLS_SETTINGS:
            if getattr(listener, name) != _UNSAID[name]:
                secure = url._replace(tls=True)
                yield f"{url}: {name} has a meaning only with TLS; write {secure}"
        return
    found = list(_tls_file_problems(listener))
    if listener.client_certificate != "none" and listener.client_ca is None:
        found.append(
            f"{url}: client_certificate = {listener.client_certificate} needs client_ca: the "
            "authorities whose certificates are trusted"
        )
    if listener.client_ca is not None and listener.client_certificate == "none":
        found.append(
            f"{url}: client_ca has no effect unless client_certificate is optional or required"
        )
    yield from found
    if not found:
        # Only where there is TLS: the library that reads certificates is slow to load.
        from sluicemq.server import tls

        yield from tls.problems(listener)


def _tls_file_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    if listener.certificate is None:
        yield f"{url}: TLS needs a certificate; add certificate=/path/to/chain.pem"
    for name in ("certificate", "key", "password_file", "client_ca"):
        path = getattr(listener, name)
        if path is None:
            continue
        if not path.is_file():
            yield f"{url}: {name}: there is no file {path}"
        elif not os.access(path, os.R_OK):
            yield f"{url}: {name}: {path} may not be read by this user"

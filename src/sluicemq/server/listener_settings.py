"""Settings of listeners, limits of their connections, and checks of combinations."""

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
"""Protocols whose clients can log in."""

DEFAULT_LISTENERS: Final = (
    "msglite://",
    "phpmq://",
    "phpmq-maintenance://",
    "vibemq://",
    "jmq://",
    "http://",
)


VIBEMQ_FRAME_BYTES: Final = 1024**2
"""Maximum of `max_frame_bytes` of a VibeMQ listener without a value of its own."""

OFFERS_LOGIN: Final = WITH_LOGINS | {"auto"}
"""Protocols of listeners that may require a login."""


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of connections; each listener may have values of its own."""

    max_connections: Annotated[
        int,
        about(
            "Maximum number of connections of one listener; further connections are closed at "
            "once (JMS and VibeMQ clients: see `max_rejections`).",
            ge=1,
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        about(
            "Maximum number of connections from one client address; an IPv6 address counts as its "
            "/64, Unix sockets have none. 0 = no limit.",
            ge=0,
        ),
    ] = 0
    max_connections_per_user: Annotated[
        int,
        about(
            "Maximum number of connections of one user; further logins are rejected. Does not "
            "apply to HTTP, where each request is authenticated. 0 = no limit.",
            ge=0,
        ),
    ] = 0
    max_frame_bytes: Annotated[
        int,
        about(
            "Maximum size of a message body. VibeMQ: maximum size of a frame as it is sent, at "
            "most 1 MiB unless a `vibemq` listener has a value of its own.",
            Unit.BYTES,
            ge=1,
            le=1024**3,
        ),
    ] = 64 * 1024**2
    max_header_bytes: Annotated[
        int,
        about("Maximum length of a command line or frame header.", Unit.BYTES, ge=64, le=1024**2),
    ] = 64 * 1024
    max_name_bytes: Annotated[
        int, about("Maximum length of a destination name.", Unit.BYTES, ge=1, le=65_535)
    ] = 1024
    max_login_bytes: Annotated[
        int,
        about(
            "Maximum size of incomplete input of a connection before its login (without logins: "
            "before its first valid command); beyond it the connection is closed.",
            Unit.BYTES,
            ge=1024,
            le=1024**3,
        ),
    ] = 64 * 1024
    login_timeout: Annotated[
        float,
        about(
            "Time in which a client has to log in, not counting the time in which its password "
            "waits for its check. 0 = no limit.",
            Unit.SECONDS,
        ),
    ] = 10.0
    frame_timeout: Annotated[
        float,
        about(
            "Time without input after which a connection with an incomplete frame or request is "
            "closed; 0 = never.",
            Unit.SECONDS,
        ),
    ] = 60.0
    idle_timeout: Annotated[
        float,
        about(
            "Time without traffic in both directions after which a connection is closed; 0 = "
            "never.",
            Unit.SECONDS,
        ),
    ] = 0.0
    output_high_watermark: Annotated[
        int,
        about(
            "Size of the unsent output of a connection at which deliveries to it are paused.",
            Unit.BYTES,
            ge=1024,
        ),
    ] = 1024**2
    output_timeout: Annotated[
        float,
        about(
            "Time after which a connection is closed whose client reads nothing of the unsent "
            "output; 0 = never.",
            Unit.SECONDS,
        ),
    ] = 60.0


class Listener(ListenerLimits, frozen=True, kw_only=True):
    """Address that clients connect to, with its settings."""

    url: Url
    durability: Annotated[
        Durability | None,
        about(
            "Condition for the confirmation of a published message: `sync` = it is on disk, "
            "`lazy` = it is being written, `none` = it is in memory. Without it: `none` for "
            "msglite, `sync` for the other protocols."
        ),
    ] = None
    dispatch_version: Annotated[
        DispatchVersion,
        about(
            "PHPMQ: version of dispatches. `1` has three packets, as the released PHP clients "
            "expect; `2` has a fourth with the remaining TTL. `auto`: the version in which the "
            "connection has sent; if it has not sent, the version in which the message was sent, "
            "and `1` for messages of other protocols."
        ),
    ] = "auto"
    request_queue: Annotated[
        str, about("HTTP gateway of msglite: queue that requests are sent to.")
    ] = "msglite.httpRequests"
    window: Annotated[
        int,
        about("VibeMQ: maximum number of unacked messages of a subscription.", ge=1),
    ] = 256
    window_bytes: Annotated[
        int,
        about(
            "VibeMQ: maximum size of the payloads of the unacked messages of a subscription.",
            Unit.BYTES,
            ge=1,
        ),
    ] = 1024**2
    ack_timeout: Annotated[
        float,
        about(
            "VibeMQ: time for the acknowledgement of the message that a connection has to process "
            "next, in queues without an `ack_timeout` of their own; 0 = no limit.",
            Unit.SECONDS,
        ),
    ] = 30.0
    max_unpacked_bytes: Annotated[
        int,
        about(
            "VibeMQ: maximum size of a decompressed frame with its headers; `max_frame_bytes` "
            "limits the frame as it is sent.",
            Unit.BYTES,
            ge=1024,
            le=1024**3,
        ),
    ] = 64 * 1024**2
    compression: Annotated[
        bool, about("VibeMQ: compress large frames for clients that request it.")
    ] = True
    compression_threshold: Annotated[
        int, about("VibeMQ: size at which a frame is large; 0 = all frames.", Unit.BYTES)
    ] = 1024
    strict_create: Annotated[
        bool,
        about("VibeMQ: CreateQueue fails for an existing queue, even with the same options."),
    ] = False
    foreign_delete: Annotated[
        Literal["refuse", "allow"],
        about(
            "VibeMQ: whether DeleteQueue deletes a queue that the configuration, an administrator "
            "or a client of another protocol has created, that has consumers of other protocols, "
            "or that is the dead-letter queue of an existing one."
        ),
    ] = "refuse"
    default_mode: Annotated[
        Literal["RoundRobin", "FanOutWithAck", "FanOutWithoutAck", "PriorityBased"] | None,
        about(
            "VibeMQ: mode of queues for which clients give no options. Without it: by "
            "`priority_ordering` in `[broker.default_destination]`, else `RoundRobin`."
        ),
    ] = None
    default_max_queue_size: Annotated[
        int,
        about(
            "VibeMQ: maximum number of messages in such queues; 0 = `max_messages` of "
            "`[broker.default_destination]`, else 10,000.",
            le=NO_LIMIT,
        ),
    ] = 0
    default_overflow: Annotated[
        Literal["DropOldest", "DropNewest", "BlockPublisher", "RedirectToDlq"] | None,
        about(
            "VibeMQ: policy for further messages. Without it: `overflow` of "
            "`[broker.default_destination]`, else `DropOldest`."
        ),
    ] = None
    default_max_retries: Annotated[
        int,
        about(
            "VibeMQ: maximum number of deliveries of a message in such queues; 0 = `max_attempts` "
            "of `[broker.default_destination]`, else 3.",
            le=NO_LIMIT,
        ),
    ] = 0
    block_timeout: Annotated[
        float,
        about(
            "VibeMQ: time for which a publish waits for room in a queue that blocks its "
            "publishers; 0 = it is rejected at once. .NET clients stop waiting after their "
            "`CommandTimeout`, 10 s by default.",
            Unit.SECONDS,
            le=3600,
        ),
    ] = BLOCK_TIMEOUT / 1000
    rate_limit: Annotated[
        int,
        about(
            "VibeMQ: maximum number of requests of a connection per second, without "
            "acknowledgements and pings; 0 = no limit."
        ),
    ] = 0
    max_login_failures: Annotated[
        int,
        about(
            "VibeMQ: number of failed logins after which a connection is closed; before that, and "
            "until `login_timeout`, the client may try again.",
            ge=1,
            le=1000,
        ),
    ] = 5
    json: Annotated[
        Literal["auto", "string"],
        about(
            "VibeMQ: how text of other protocols is delivered. `auto`: a JSON object or array "
            "unchanged, other text as a JSON string. `string`: always as a JSON string."
        ),
    ] = "auto"
    services: Annotated[
        Literal["all", "jms", "portmapper"],
        about(
            "JMQ: services of the listener: port mapper and connection service (`jms`, with TLS "
            "`ssljms`), or one of them."
        ),
    ] = "all"
    portmapper_timeout: Annotated[
        float,
        about(
            "JMQ: time without input after which a client receives the reply of the port mapper, "
            "as clients of iMQ 2.0 expect; 0 = never.",
            Unit.SECONDS,
            le=60,
        ),
    ] = 1.0
    advertised_port: Annotated[
        int,
        about(
            "JMQ: port of this listener in the reply of the port mapper, if clients reach it by "
            "another port (containers, address translation); 0 = the port of the listener.",
            le=65_535,
        ),
    ] = 0
    authentication: Annotated[
        Literal["auto", "basic", "digest"],
        about(
            "JMQ: how clients log in. `basic`: with the password, best over TLS. `digest`: with "
            "an MD5 digest of it, which requires users that were added with `--allow-digest`. "
            "`auto`: digest if no login is required or all users have it, else basic."
        ),
    ] = "auto"
    prefetch: Annotated[
        int,
        about(
            "JMQ: maximum number of messages that are sent to a consumer before it requests more; "
            "clients may choose a smaller number.",
            ge=1,
        ),
    ] = 1000
    shared_prefetch: Annotated[
        int,
        about(
            "JMQ: the same for consumers of shared subscriptions of a topic.",
            ge=1,
        ),
    ] = 5
    producer_flow: Annotated[
        int,
        about(
            "JMQ: number of messages after which a producer waits for the broker's permission to "
            "continue; 0 = never."
        ),
    ] = 1000
    ping_interval: Annotated[
        float,
        about(
            "JMQ: time without traffic after which the broker pings a client; after six times as "
            "long it closes the connection. 0 = never.",
            Unit.SECONDS,
        ),
    ] = 120.0
    max_rejections: Annotated[
        int,
        about(
            "JMQ and VibeMQ: clients beyond `max_connections` that receive an error at the same "
            "time (HELLO_REPLY with status 503, Error CONNECTION_LIMIT); further connections are "
            "closed at once.",
            le=10_000,
        ),
    ] = 64
    user: Annotated[
        str,
        about(
            "Protocols without logins: user whose permissions the clients have. Without it they "
            "have all permissions, and the listener must be on loopback or a Unix socket."
        ),
    ] = ""
    certificate: Annotated[
        Path | None,
        about(
            "With `+tls`: PEM file with the certificate and its chain, or PKCS#12 (`.p12`, "
            "`.pfx`) with the key too."
        ),
    ] = None
    key: Annotated[
        Path | None,
        about("PEM file with the private key, if the certificate's file does not contain it."),
    ] = None
    password_file: Annotated[
        Path | None, about("File whose first line decrypts the private key.")
    ] = None
    tls_min_version: Annotated[Literal["1.2", "1.3"], about("Minimum version of TLS.")] = "1.2"
    ciphers: Annotated[
        str | None,
        about(
            "Cipher suites of TLS 1.2, as for `openssl ciphers`. Without it: Python's default. "
            "TLS 1.3 has cipher suites of its own, which are all accepted."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["none", "optional", "required"],
        about("Whether clients are asked for a certificate, and rejected without one."),
    ] = "none"
    client_ca: Annotated[
        Path | None, about("PEM file with the authorities whose client certificates are trusted.")
    ] = None
    client_user: Annotated[
        Literal["cn", "san-dns", "san-email", "subject"],
        about(
            "Field of the client's certificate that is the user name: the common name, the first "
            "alternative name of a kind, or the whole subject (RFC 4514)."
        ),
    ] = "cn"
    socket_mode: Annotated[
        int,
        about(
            "File mode of a Unix socket, which decides which local users may connect.",
            Unit.MODE,
            le=0o777,
        ),
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
"""Settings of a listener that apply only to VibeMQ clients."""

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
"""Settings of a listener that apply only to JMS clients."""

REJECTS_WITH_ERROR: Final = frozenset({"jmq", "vibemq", "auto"})
"""Protocols of listeners that can reject connections with an error (`max_rejections`)."""

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
"""Settings of a listener that apply only with TLS."""

_TLS_DEFAULTS: Final = {
    field.name: field.default
    for field in msgspec.structs.fields(Listener)
    if field.name in TLS_SETTINGS
}


def default_listeners() -> tuple[Listener, ...]:
    """Return a listener for each protocol, on its traditional loopback port."""
    return tuple(
        listener_of({"url": Url.parse(url)}, ListenerLimits()) for url in DEFAULT_LISTENERS
    )


def listener_of(values: Mapping[str, Any], limits: ListenerLimits) -> Listener:
    """Return a listener with the settings `values`, which include `url`; others are from `limits`.

    `max_frame_bytes` from `limits` is reduced to VIBEMQ_FRAME_BYTES for VibeMQ, whose clients
    cannot read more.
    """
    inherited = msgspec.structs.asdict(limits)
    if values["url"].protocol == "vibemq":
        inherited["max_frame_bytes"] = min(limits.max_frame_bytes, VIBEMQ_FRAME_BYTES)
    return Listener(**{**inherited, **values})


def admin_listener(path: Path) -> Listener:
    """Return the listener of the admin socket, which only its owner may open."""
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
    """Yield the errors in the TLS settings, apart from those in the contents of the files."""
    url = listener.url
    if not url.tls:
        for name in TLS_SETTINGS:
            if getattr(listener, name) != _TLS_DEFAULTS[name]:
                secure = url._replace(tls=True)
                yield f"{url}: {name} has a meaning only with TLS; write {secure}"
        return
    yield from _tls_file_problems(listener)
    if listener.client_certificate != "none" and listener.client_ca is None:
        yield (
            f"{url}: client_certificate = {listener.client_certificate} needs client_ca: the "
            "authorities whose certificates are trusted"
        )
    if listener.client_ca is not None and listener.client_certificate == "none":
        yield f"{url}: client_ca has no effect unless client_certificate is optional or required"


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

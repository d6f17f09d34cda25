"""Settings of listeners and of the clients of their protocols, limits of connections, and checks of
combinations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.model.setting import about
from sluicemq.model.url import PROTOCOLS, Url
from sluicemq.protocols.phpmq.wire import DispatchVersion
from sluicemq.protocols.vibemq.wire import BLOCK_TIMEOUT, NO_LIMIT
from sluicemq.server.settings import Setting, Unit

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

VIBEMQ: Final = frozenset({"vibemq", "auto"})
JMQ: Final = frozenset({"jmq", "auto"})
REJECTING: Final = JMQ | VIBEMQ
TLS: Final = frozenset({"tls"})
"""Listeners for which a setting has a meaning."""

VIBEMQ_FRAME_BYTES: Final = 1024**2
"""Maximum of `max_frame_bytes` of a VibeMQ listener without a value of its own."""

OFFERS_LOGIN: Final = WITH_LOGINS | {"auto"}
"""Protocols of listeners that may require a login."""


class JmqSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all JMS clients, regardless of the listener."""

    instance: Annotated[
        str,
        about(
            "Name of the broker that its port mapper reports: printable ASCII characters without "
            "blanks."
        ),
    ] = "sluicemq"
    metrics_interval: Annotated[
        float,
        about(
            "Interval between two messages of a topic `mq.metrics.…` that has subscribers; 0 = "
            "none.",
            Unit.SECONDS,
        ),
    ] = 60.0
    transaction_timeout: Annotated[
        int,
        about(
            "Time after which a transaction is rolled back that is neither ended nor prepared; 0 "
            "= never.",
            Unit.MILLISECONDS,
        ),
    ] = 0
    detached_timeout: Annotated[
        int,
        about(
            "Time after which a transaction is rolled back that is not prepared and that no "
            "connection uses any more; 0 = never.",
            Unit.MILLISECONDS,
        ),
    ] = 600_000
    broker_list: Annotated[
        str,
        about(
            "Brokers that clients may connect to if the connection to this one is lost: "
            "`mq://host:port/`, separated by commas."
        ),
    ] = ""


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
            "Maximum number of connections from one client address to one listener; an IPv6 "
            "address counts as its /64, Unix sockets have none. 0 = no limit.",
            ge=0,
        ),
    ] = 0
    max_connections_per_user: Annotated[
        int,
        about(
            "Maximum number of connections of one user to one listener; further logins are "
            "rejected. Does not apply to HTTP, where each request is authenticated. 0 = no limit.",
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
            "Time without progress (the end of the frame, or 16 KiB more of it) after which a "
            "connection with an incomplete frame or request is closed; 0 = never.",
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
            "and `1` for messages of other protocols.",
            only=("phpmq", "auto"),
        ),
    ] = "auto"
    request_queue: Annotated[
        str, about("HTTP gateway of msglite: queue that requests are sent to.")
    ] = "msglite.httpRequests"
    window: Annotated[
        int,
        about("VibeMQ: maximum number of unacked messages of a subscription.", ge=1, only=VIBEMQ),
    ] = 256
    window_bytes: Annotated[
        int,
        about(
            "VibeMQ: maximum size of the payloads of the unacked messages of a subscription.",
            Unit.BYTES,
            ge=1,
            only=VIBEMQ,
        ),
    ] = 1024**2
    ack_timeout: Annotated[
        float,
        about(
            "VibeMQ: time for the acknowledgement of the message that a connection has to process "
            "next, in queues without an `ack_timeout` of their own; 0 = no limit.",
            Unit.SECONDS,
            only=VIBEMQ,
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
            only=VIBEMQ,
        ),
    ] = 64 * 1024**2
    compression: Annotated[
        bool, about("VibeMQ: compress large frames for clients that request it.", only=VIBEMQ)
    ] = True
    compression_threshold: Annotated[
        int,
        about("VibeMQ: size at which a frame is large; 0 = all frames.", Unit.BYTES, only=VIBEMQ),
    ] = 1024
    strict_create: Annotated[
        bool,
        about(
            "VibeMQ: CreateQueue of a queue that exists is answered with QUEUE_EXISTS.",
            only=VIBEMQ,
        ),
    ] = False
    foreign_delete: Annotated[
        Literal["refuse", "allow"],
        about(
            "VibeMQ: whether DeleteQueue deletes a queue that the configuration, an administrator "
            "or a client of another protocol has created, that has consumers of other protocols, "
            "or that is the dead-letter queue of an existing one.",
            only=VIBEMQ,
        ),
    ] = "refuse"
    default_mode: Annotated[
        Literal["RoundRobin", "FanOutWithAck", "FanOutWithoutAck", "PriorityBased"] | None,
        about(
            "VibeMQ: mode of queues for which clients give no options. Without it: by "
            "`priority_ordering` in `[broker.default_destination]`, else `RoundRobin`.",
            only=VIBEMQ,
        ),
    ] = None
    default_max_queue_size: Annotated[
        int,
        about(
            "VibeMQ: maximum number of messages in such queues; 0 = `max_messages` of "
            "`[broker.default_destination]`, else 10,000.",
            le=NO_LIMIT,
            only=VIBEMQ,
        ),
    ] = 0
    default_overflow: Annotated[
        Literal["DropOldest", "DropNewest", "BlockPublisher", "RedirectToDlq"] | None,
        about(
            "VibeMQ: policy for further messages. Without it: `overflow` of "
            "`[broker.default_destination]`, else `DropOldest`.",
            only=VIBEMQ,
        ),
    ] = None
    default_max_retries: Annotated[
        int,
        about(
            "VibeMQ: maximum number of deliveries of a message in such queues; 0 = `max_attempts` "
            "of `[broker.default_destination]`, else 3.",
            le=NO_LIMIT,
            only=VIBEMQ,
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
            only=VIBEMQ,
        ),
    ] = BLOCK_TIMEOUT / 1000
    rate_limit: Annotated[
        int,
        about(
            "VibeMQ: maximum number of requests of a connection per second, without "
            "acknowledgements and pings; 0 = no limit.",
            only=VIBEMQ,
        ),
    ] = 0
    max_login_failures: Annotated[
        int,
        about(
            "VibeMQ: number of failed logins after which a connection is closed; before that, and "
            "until `login_timeout`, the client may try again.",
            ge=1,
            le=1000,
            only=VIBEMQ,
        ),
    ] = 5
    json: Annotated[
        Literal["auto", "string"],
        about(
            "VibeMQ: how text of other protocols is delivered. `auto`: a JSON object or array "
            "unchanged, other text as a JSON string. `string`: always as a JSON string.",
            only=VIBEMQ,
        ),
    ] = "auto"
    services: Annotated[
        Literal["all", "jms", "portmapper"],
        about(
            "JMQ: services of the listener: port mapper and connection service (`jms`, with TLS "
            "`ssljms`), or one of them.",
            only=("jmq",),
        ),
    ] = "all"
    portmapper_timeout: Annotated[
        float,
        about(
            "JMQ: time without input after which a client receives the reply of the port mapper, "
            "as clients of iMQ 2.0 expect; 0 = never.",
            Unit.SECONDS,
            le=60,
            only=JMQ,
        ),
    ] = 1.0
    advertised_port: Annotated[
        int,
        about(
            "JMQ: port of this listener in the reply of the port mapper, if clients reach it by "
            "another port (containers, address translation); 0 = the port of the listener.",
            le=65_535,
            only=JMQ,
        ),
    ] = 0
    authentication: Annotated[
        Literal["auto", "basic", "digest"],
        about(
            "JMQ: how clients log in. `basic`: with the password, best over TLS. `digest`: with "
            "an MD5 digest of it, which requires users that were added with `--allow-digest`. "
            "`auto`: digest if no login is required or all users have it, else basic.",
            only=JMQ,
        ),
    ] = "auto"
    prefetch: Annotated[
        int,
        about(
            "JMQ: maximum number of messages that are sent to a consumer before it requests more; "
            "clients may choose a smaller number.",
            ge=1,
            only=JMQ,
        ),
    ] = 1000
    shared_prefetch: Annotated[
        int,
        about("JMQ: the same for consumers of shared subscriptions of a topic.", ge=1, only=JMQ),
    ] = 5
    producer_flow: Annotated[
        int,
        about(
            "JMQ: number of messages after which a producer waits for the broker's permission to "
            "continue; 0 = never.",
            only=JMQ,
        ),
    ] = 1000
    ping_interval: Annotated[
        float,
        about(
            "JMQ: time without traffic after which the broker pings a client; after six pings "
            "without an answer it closes the connection. 0 = never.",
            Unit.SECONDS,
            only=JMQ,
        ),
    ] = 120.0
    max_rejections: Annotated[
        int,
        about(
            "JMQ and VibeMQ: clients beyond `max_connections` that receive an error at the same "
            "time (HELLO_REPLY with status 503, Error CONNECTION_LIMIT); further connections are "
            "closed at once.",
            le=10_000,
            only=REJECTING,
        ),
    ] = 64
    user: Annotated[
        str,
        about(
            "Protocols without logins: user whose permissions the clients have. Without it they "
            "have all permissions, and the listener must be on loopback or a Unix socket.",
            only=frozenset(PROTOCOLS) - WITH_LOGINS,
        ),
    ] = ""
    certificate: Annotated[
        Path | None,
        about(
            "With `+tls`: PEM file with the certificate and its chain, or PKCS#12 (`.p12`, "
            "`.pfx`) with the key too.",
            only=TLS,
        ),
    ] = None
    key: Annotated[
        Path | None,
        about(
            "PEM file with the private key, if the certificate's file does not contain it.",
            only=TLS,
        ),
    ] = None
    password_file: Annotated[
        Path | None, about("File whose first line decrypts the private key.", only=TLS)
    ] = None
    tls_min_version: Annotated[
        Literal["1.2", "1.3"], about("Minimum version of TLS.", only=TLS)
    ] = "1.2"
    ciphers: Annotated[
        str | None,
        about(
            "Cipher suites of TLS 1.2, as for `openssl ciphers`. Without it: Python's default. "
            "TLS 1.3 has cipher suites of its own, which are all accepted.",
            only=TLS,
        ),
    ] = None
    client_certificate: Annotated[
        Literal["none", "optional", "required"],
        about(
            "Whether the broker requests a client certificate (`optional`), and rejects clients "
            "without one (`required`).",
            only=TLS,
        ),
    ] = "none"
    client_ca: Annotated[
        Path | None,
        about("PEM file with the authorities whose client certificates are trusted.", only=TLS),
    ] = None
    client_user: Annotated[
        Literal["cn", "san-dns", "san-email", "subject"],
        about(
            "Field of the client's certificate that is the user name: the common name, the first "
            "alternative name of a kind, or the whole subject (RFC 4514).",
            only=TLS,
        ),
    ] = "cn"
    socket_mode: Annotated[
        int,
        about(
            "File mode of a Unix socket, which decides which local users may connect.",
            Unit.MODE,
            le=0o777,
            only=("unix",),
        ),
    ] = 0o660

    @property
    def rejections(self) -> int:
        """Connections beyond `max_connections` that receive an error; 0 if the protocol has none
        for that."""
        return self.max_rejections if self.url.protocol in REJECTING else 0


def default_listeners() -> tuple[Listener, ...]:
    """Return a listener for each protocol, on its traditional loopback port."""
    return tuple(
        listener_of({"url": Url.parse(url)}, ListenerLimits()) for url in DEFAULT_LISTENERS
    )


def listener_of(values: Mapping[str, Any], limits: ListenerLimits) -> Listener:
    """Return a listener with the settings `values`, which include `url`; others are from
    `limits`."""
    return Listener(**{**inherited_limits(values["url"], limits), **values})


def inherited_limits(url: Url, limits: ListenerLimits) -> dict[str, Any]:
    """Return the limits of the listener of that address, unless it has values of its own.

    `max_frame_bytes` is reduced to VIBEMQ_FRAME_BYTES for VibeMQ, whose clients cannot read more.
    """
    inherited = msgspec.structs.asdict(limits)
    if url.protocol == "vibemq":
        inherited["max_frame_bytes"] = min(limits.max_frame_bytes, VIBEMQ_FRAME_BYTES)
    return inherited


def admin_listener(path: Path) -> Listener:
    """Return the listener of the admin socket, which only its owner may open."""
    return Listener(
        url=Url("http", host="", path=str(path)), socket_mode=0o600, max_connections=256
    )


def applies(setting: Setting, url: Url) -> bool:
    """Return whether a setting has a meaning for the listener of that address."""
    kinds = {url.protocol, "tls" if url.tls else "", "unix" if url.path else ""}
    return not setting.only or not kinds.isdisjoint(setting.only)


def check_applies(setting: Setting, url: Url) -> None:
    """Raise ConfigurationError if a setting has no meaning for the listener of that address."""
    if applies(setting, url):
        return
    if setting.only == TLS:
        tls_url = url._replace(tls=True)
        raise ConfigurationError(f"{setting.name} requires TLS; write {tls_url}")
    if "unix" in setting.only:
        raise ConfigurationError(f"{setting.name} requires a Unix socket")
    raise ConfigurationError(f"{setting.name} is not an option of {url.protocol}")


def tls_problems(listener: Listener) -> Iterator[str]:
    """Yield the errors in the TLS settings, apart from those in the contents of the files."""
    url = listener.url
    if not url.tls:
        return
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
    if listener.client_certificate != "none" and listener.client_ca is None:
        yield (
            f"{url}: client_certificate = {listener.client_certificate} needs client_ca: the "
            "authorities whose certificates are trusted"
        )
    if listener.client_ca is not None and listener.client_certificate == "none":
        yield f"{url}: client_ca has no effect unless client_certificate is optional or required"

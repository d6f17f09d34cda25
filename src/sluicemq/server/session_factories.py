"""Session factories of all protocols, the detection of a client's protocol, and the addresses that
the broker announces.

The port mapper directs JMS clients to listeners of this broker:

    row                          listener
    portmapper tcp PORTMAPPER    the one the client is connected to
    jms        tcp NORMAL        the same if it serves JMS, else the first listener that does
    ssljms     tls NORMAL        like jms, with TLS

A service without a listener gets no row, because port 0 means that the service is paused.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sluicemq.admin.app import Application
from sluicemq.admin.endpoints import PART_OVERHEAD_BYTES, ApiContext, ApiLimits
from sluicemq.admin.http_session import HttpService, HttpSession
from sluicemq.broker import Broker
from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.model.message import Durability
from sluicemq.model.url import Url, is_wildcard
from sluicemq.protocols.jmq.connection import PortMapperSession
from sluicemq.protocols.jmq.connection import SessionOptions as JmqOptions
from sluicemq.protocols.jmq.session import Coordinator, JmqSession
from sluicemq.protocols.jmq.wire import Service, encode_services
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.protocols.msglite.wire import Limits as MsgliteLimits
from sluicemq.protocols.offload import Offload
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, QueueLists
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.phpmq.wire import Limits as PhpmqLimits
from sluicemq.protocols.transport import (
    Alarm,
    Background,
    Login,
    NoConsumers,
    Process,
    Session,
    SessionInfo,
    Transport,
)
from sluicemq.protocols.vibemq.compression import SUPPORTED
from sluicemq.protocols.vibemq.connection import SessionOptions as VibemqOptions
from sluicemq.protocols.vibemq.large import LargeDeliveries
from sluicemq.protocols.vibemq.queues import Mode, Strategy, WrittenOptions, protocol_name
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.protocols.vibemq.wire import MAX_BODY
from sluicemq.security.access import Access
from sluicemq.security.authenticator import Authenticator
from sluicemq.server.admission import SessionFactory
from sluicemq.server.listener import OpenListener
from sluicemq.server.listener_settings import JmqSettings, Listener

# --- Detection of the protocol --------------------------------------------------------------------
#
#     first bytes                     protocol
#     'H' then a digit                PHPMQ: message header "H01…"
#     a method and a blank            HTTP: "GET /…"
#     > < ? .  blank, tab, CR, LF     msglite: a sigil, or blanks before one
#     1B                              JMQ: packet magic 1B FF E3 C2
#     '1'-'9'                         JMQ's port mapper: the client sends its version in digits
#     00                              VibeMQ: big-endian length of a frame below 16 MiB
#     two other characters of text    msglite too, which answers unknown commands with an error
#
# In all of them the client speaks first, so nothing is sent before the protocol is known.

PORT_MAPPER = "jmq-portmapper"
"""Protocol name of JMQ's port mapper."""

_FIRST_BYTES: Final = {
    **dict.fromkeys(b"><?. \t\r\n", "msglite"),
    0x1B: "jmq",
    **dict.fromkeys(b"123456789", PORT_MAPPER),
    0: "vibemq",
}
"""Protocols that one byte identifies."""

HTTP_METHODS: Final = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"PATCH ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
)
_TEXT: Final = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\r\n")


def detect_protocol(first: bytes) -> str | None:
    """Return the protocol's name; "" if it is unknown; None if more bytes are needed."""
    if not first:
        return None
    if first[:1] == b"H" and (len(first) < 2 or first[1:2].isdigit()):
        return "phpmq" if len(first) > 1 else None
    if first[0] in _FIRST_BYTES:
        return _FIRST_BYTES[first[0]]
    if first.startswith(HTTP_METHODS):
        return "http"
    if any(method.startswith(first) for method in HTTP_METHODS):
        return None
    if first[:1] == b"0" or first[0] not in _TEXT:
        return ""
    if len(first) < 2:
        return None
    return "msglite" if first[1] in _TEXT else ""


def detect_jmq_protocol(first: bytes) -> str | None:
    """Return the protocol on a JMQ listener: packets, or requests to the port mapper.

    A request to the port mapper may be an empty line.
    """
    if not first:
        return None
    if first[:1] == b"\x1b":
        return "jmq"
    return PORT_MAPPER if first[:1] in b"0123456789\r\n" else ""


class AutoSession(NoConsumers):
    """Session that waits until the protocol is detected, then is replaced by a session of it.

    If the client sends nothing for `silence_timeout` seconds (0 = no limit), the session assumes
    the `silent` protocol, in which the server may have to send first. `login` is the login state
    until the protocol is detected.
    """

    __slots__ = (
        "_alarm",
        "_detect_protocol",
        "_first",
        "_open_session",
        "_silent",
        "_transport",
        "login",
    )

    def __init__(
        self,
        transport: Transport,
        open_session: Callable[[str], Session],
        detect_protocol: Callable[[bytes], str | None] = detect_protocol,
        *,
        silent: str = "",
        silence_timeout: float = 0.0,
        login: Login = Login.NONE,
    ) -> None:
        self._transport = transport
        self.login = login
        self._open_session = open_session
        self._detect_protocol = detect_protocol
        self._first = b""
        self._silent = silent
        self._alarm = Alarm(transport)
        if silence_timeout:
            self._alarm.set(silence_timeout, self._open_silent_protocol)

    def receive(self, data: bytes) -> None:
        """Detect the protocol and open its session; close if no protocol matches."""
        self.closed()
        self._first += data
        protocol = self._detect_protocol(self._first)
        if protocol is None:
            return
        if not protocol:
            self._transport.close(f"no protocol begins with {self._first[:8]!r}")
            return
        try:
            session = self._open_session(protocol)
        except (ConfigurationError, TooManyConnections) as error:
            self._transport.close(str(error))
            return
        first, self._first = self._first, b""
        self._transport.replace_session(session)
        session.receive(first)

    def _open_silent_protocol(self) -> None:
        """Open a session of the silent protocol, because the client has sent nothing."""
        session = self._open_session(self._silent)
        self._transport.replace_session(session)
        session.end_of_input()

    @property
    def buffered(self) -> int:
        """Number of bytes received, which do not identify the protocol yet."""
        return len(self._first)

    @property
    def incomplete(self) -> bool:
        """True if the bytes that identify the protocol are received in part."""
        return bool(self._first)

    def discard_input(self) -> None:
        """Drop the bytes received."""
        self._first = b""

    def end_of_input(self) -> None:
        """Close the connection: the protocol stays unknown."""
        self.disconnect("")

    def closed(self) -> None:
        """Cancel the timer."""
        self._alarm.cancel()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Close the connection: the client could not read the reason."""
        self.closed()
        self._transport.close("" if stopping else reason)

    def session_info(self) -> SessionInfo:
        """Return session info with the protocol `auto`."""
        return SessionInfo("auto", state="connecting")


# --- Factories ------------------------------------------------------------------------------------

_MODES: Final = {protocol_name(mode): mode for mode in Mode}
_STRATEGIES: Final = {protocol_name(strategy): strategy for strategy in Strategy}


class SessionFactories:
    """Session factories of the supported protocols, for one broker."""

    def __init__(
        self,
        broker: Broker,
        process: Process,
        authenticator: Authenticator,
        large: Offload,
        listeners: Sequence[OpenListener] = (),
        jmq: JmqSettings | None = None,
        context: ApiContext | None = None,
        background: Background | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create the factories of a broker.

        `large` is for large VibeMQ frames, and for bodies whose conversion takes long. `listeners`
        is the list of open listeners, which may grow. `context` is for HTTP; `notify` logs warnings
        of sessions for the operator.
        """
        self._notify = notify
        self._broker = broker
        self._listeners = listeners
        self._jmq_settings = jmq or JmqSettings()
        self._large = LargeDeliveries(large)
        self._coordinator = Coordinator(broker, background)
        self._authenticator = authenticator
        self._context = context
        self._process = process
        self._replies = ReplyAddresses(broker.clock.wall)
        self._queue_lists = QueueLists(broker)
        self._factories: dict[str, Callable[[Listener, Transport, bool], Session]] = {
            "phpmq": self._phpmq,
            "phpmq-maintenance": self._maintenance,
            "msglite": self._msglite,
            "msglite-http": self._gateway,
            "vibemq": self._vibemq,
            "jmq": self._jms,
            PORT_MAPPER: self._portmapper,
        }

    def of(self, options: Listener) -> SessionFactory:
        """Return the session factory of a listener."""
        factories: dict[str, SessionFactory] = {
            protocol: partial(factory, options) for protocol, factory in self._factories.items()
        }
        if self._context is not None and options.url.protocol in ("http", "auto"):
            factories["http"] = self.http(options)
        match options.url.protocol, options.services:
            case "auto", _:
                return partial(_open_auto, factories)
            case "jmq", "all":
                return partial(_open_jmq, factories, options)
            case "jmq", "portmapper":
                return factories[PORT_MAPPER]
        return factories[options.url.protocol]

    def http(self, options: Listener, *, local: bool = False) -> SessionFactory:
        """Return the session factory of an HTTP listener; `local`: of the admin socket."""
        assert self._context is not None
        body = options.max_frame_bytes
        limits = ApiLimits(
            part=body + PART_OVERHEAD_BYTES,
            name=options.max_name_bytes,
            publish=min(body, self._context.http.max_publish_bytes),
        )
        # not at the first connection: creating the application takes some time
        application = Application(replace(self._context, limits=limits))
        service = HttpService(application, options.max_header_bytes)
        url = options.url
        # against DNS rebinding: with TLS the attacker's name has no certificate here, and a public
        # listener may be reached by any name
        name = "" if url.public or url.tls else url.host

        def open_session(transport: Transport, refused: bool) -> Session:
            _expect_capacity(options, refused)
            if local:
                access = self._authenticator.open_local(transport)
            else:
                access = self._authenticator.open(
                    transport, options.url, options.user, logs_in=True
                )
            return HttpSession(transport, service, access, host=name, tls=url.tls)

        return open_session

    def _guest_access(self, options: Listener, transport: Transport, refused: bool) -> Access:
        """Return the access of a client without a login. Raises TooManyConnections."""
        _expect_capacity(options, refused)
        access = self._authenticator.open(transport, options.url, options.user, logs_in=False)
        if access.guest is not None:
            transport.claim_user(access.guest.name)
        return access

    def _phpmq(self, options: Listener, transport: Transport, refused: bool) -> Session:
        return PhpmqSession(
            transport,
            self._broker,
            self._large.offload,
            access=self._guest_access(options, transport, refused),
            dispatch_version=options.dispatch_version,
            durability=_durability(options, Durability.SYNC),
            limits=PhpmqLimits(queue=options.max_name_bytes, body=options.max_frame_bytes),
        )

    def _maintenance(self, options: Listener, transport: Transport, refused: bool) -> Session:
        access = self._guest_access(options, transport, refused)
        return MaintenanceSession(
            transport, self._broker, self._process, self._queue_lists, access=access
        )

    def _msglite(self, options: Listener, transport: Transport, refused: bool) -> Session:
        return MsgliteSession(
            transport,
            self._broker,
            self._replies,
            self._large.offload,
            access=self._guest_access(options, transport, refused),
            durability=_durability(options, Durability.NONE),
            limits=MsgliteLimits(
                options.max_header_bytes, options.max_frame_bytes, options.max_name_bytes
            ),
        )

    def _gateway(self, options: Listener, transport: Transport, refused: bool) -> Session:
        return GatewaySession(
            transport,
            self._broker,
            self._replies,
            self._large.offload,
            access=self._guest_access(options, transport, refused),
            address=options.request_queue,
            max_body=options.max_frame_bytes,
        )

    def _vibemq(self, options: Listener, transport: Transport, refused: bool) -> Session:
        return VibemqSession(
            transport,
            self._broker,
            self._authenticator.open(transport, options.url, options.user, logs_in=True),
            self._large,
            VibemqOptions(
                durability=_durability(options, Durability.SYNC),
                frame=options.max_frame_bytes
                if options.url.protocol == "vibemq"
                else min(options.max_frame_bytes, MAX_BODY),
                unpacked=options.max_unpacked_bytes,
                window=options.window,
                window_bytes=options.window_bytes,
                ack_timeout=round(options.ack_timeout * 1000),
                threshold=options.compression_threshold,
                detect_json=options.json == "auto",
                compression=SUPPORTED if options.compression else (),
                strict_create=options.strict_create,
                foreign_delete=options.foreign_delete == "allow",
                notify=self._notify,
                rate_limit=options.rate_limit,
                login_bytes=options.max_login_bytes,
                login_failures=options.max_login_failures,
                refused=refused,
                block_timeout=round(options.block_timeout * 1000),
                defaults=_queue_defaults(options),
            ),
        )

    def _jms(self, options: Listener, transport: Transport, refused: bool) -> Session:
        settings = self._jmq_settings
        access = self._authenticator.open(transport, options.url, options.user, logs_in=True)
        authentication = options.authentication
        if authentication == "auto":
            # without a required login any response is accepted, and all clients support digest
            by_digest = access.guest is not None or self._authenticator.all_by_digest
            authentication = "digest" if by_digest else "basic"
        return JmqSession(
            transport,
            self._broker,
            self._coordinator,
            access,
            JmqOptions(
                durability=options.durability,
                max_packet_size=options.max_frame_bytes,
                login_bytes=options.max_login_bytes,
                authentication=authentication,
                service="ssljms" if options.url.tls else "jms",
                broker_list=settings.broker_list,
                prefetch=options.prefetch,
                shared_prefetch=options.shared_prefetch,
                producer_flow=options.producer_flow,
                ping_interval=options.ping_interval,
                transaction_timeout=settings.transaction_timeout,
                detached_timeout=settings.detached_timeout,
                unavailable_reason=f"the limit of {options.max_connections} connections is reached"
                if refused
                else "",
            ),
        )

    def _portmapper(self, options: Listener, transport: Transport, refused: bool) -> Session:
        return PortMapperSession(
            transport,
            lambda: encode_services(
                self._jmq_settings.instance, services(self._listeners, options)
            ),
            options.portmapper_timeout,
        )


def _open_auto(
    factories: Mapping[str, SessionFactory], transport: Transport, refused: bool
) -> Session:
    """Return the session of an `auto` listener."""
    return AutoSession(
        transport,
        partial(_open_detected, factories, transport, refused),
        login=Login.DUE if refused else Login.NONE,
    )


def _open_jmq(
    factories: Mapping[str, SessionFactory],
    options: Listener,
    transport: Transport,
    refused: bool,
) -> Session:
    """Return the session of a JMQ listener. The client selects the port mapper by its first byte
    or by sending nothing."""
    return AutoSession(
        transport,
        partial(_open_detected, factories, transport, refused),
        detect_jmq_protocol,
        silent=PORT_MAPPER,
        silence_timeout=options.portmapper_timeout,
        login=Login.DUE,
    )


def _open_detected(
    factories: Mapping[str, SessionFactory], transport: Transport, refused: bool, protocol: str
) -> Session:
    """Return the session of a detected protocol. Raises ConfigurationError if it is not served."""
    factory = factories.get(protocol)
    if factory is None:
        raise ConfigurationError(f"{protocol} is not served here")
    return factory(transport, refused)


def _expect_capacity(options: Listener, refused: bool) -> None:
    """Raise TooManyConnections for a connection beyond the limit whose protocol has no error."""
    if refused:
        raise TooManyConnections(f"the limit of {options.max_connections} connections is reached")


def _queue_defaults(options: Listener) -> WrittenOptions:
    """Return the defaults of a listener for the queues of VibeMQ clients."""
    return WrittenOptions(
        mode=_MODES.get(options.default_mode or ""),
        max_queue_size=options.default_max_queue_size or None,
        overflow=_STRATEGIES.get(options.default_overflow or ""),
        max_retry_attempts=options.default_max_retries or None,
    )


def _durability(options: Listener, default: Durability) -> Durability:
    """Return the durability of the listener, or else the default of its protocol."""
    return default if options.durability is None else options.durability


# --- Announced addresses --------------------------------------------------------------------------


def services(listeners: Iterable[OpenListener], client_listener: Listener) -> Iterator[Service]:
    """Yield the rows for a client of the listener whose options are `client_listener`."""
    reachable = [listener for listener in listeners if _is_reachable(listener)]
    # The sort is stable: the client's listener comes first, the others keep their order.
    reachable.sort(key=lambda listener: listener.options is not client_listener)
    if reachable and reachable[0].options is client_listener:
        protocol = "tls" if client_listener.url.tls else "tcp"
        yield Service("portmapper", protocol, "PORTMAPPER", _port(reachable[0]))
    for name, protocol, tls in (("jms", "tcp", False), ("ssljms", "tls", True)):
        for listener in reachable:
            if listener.url.tls == tls and listener.options.services != "portmapper":
                yield Service(name, protocol, "NORMAL", _port(listener))
                break


def jms_address(listeners: Iterable[OpenListener]) -> tuple[str, int]:
    """Return host and port that identify the broker; ("localhost", 0) if it serves no JMS."""
    for listener in listeners:
        if _is_reachable(listener):
            return _public_host(listener.url), _port(listener)
    return "localhost", 0


def console_addresses(listeners: Iterable[OpenListener]) -> Iterator[str]:
    """Yield the URLs of the console, one for each HTTP listener with a port."""
    for listener in listeners:
        url = listener.url
        if url.protocol == "http" and not url.path:
            host = _public_host(url)
            host_text = f"[{host}]" if ":" in host else host
            yield f"{'https' if url.tls else 'http'}://{host_text}:{url.port}/console/"


def _public_host(url: Url) -> str:
    return socket.gethostname() if is_wildcard(url.host) else url.host


def _is_reachable(listener: OpenListener) -> bool:
    return listener.url.protocol in ("jmq", "auto") and not listener.url.path


def _port(listener: OpenListener) -> int:
    return listener.options.advertised_port or listener.url.port

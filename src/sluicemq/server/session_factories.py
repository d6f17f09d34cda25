"""Session factories of all protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from sluicemq.broker import Broker
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.protocols.jmq.connection import SessionOptions as JmqOptions
from sluicemq.protocols.jmq.coordinator import Coordinator
from sluicemq.protocols.jmq.portmapper import PortMapperSession, answer
from sluicemq.protocols.jmq.session import JmqSession
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.http import HttpLimits
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.protocols.msglite.wire import Limits as MsgliteLimits
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, ServerInfo
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.phpmq.wire import Limits as PhpmqLimits
from sluicemq.protocols.transport import Background, Login, Session, Transport
from sluicemq.protocols.vibemq.compression import SUPPORTED
from sluicemq.protocols.vibemq.connection import SessionOptions as VibemqOptions
from sluicemq.protocols.vibemq.large import LargeDeliveries, Offload
from sluicemq.protocols.vibemq.queues import ListenerDefaults, Mode, Strategy, spelled
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.protocols.vibemq.wire import MAX_BODY
from sluicemq.security.access import Access
from sluicemq.security.authenticator import Authenticator
from sluicemq.server.auto import AutoSession
from sluicemq.server.listener_settings import HttpSettings, JmqSettings, Listener
from sluicemq.server.protocol_detection import PORT_MAPPER, detect_jmq_protocol
from sluicemq.server.services import Opened, services

if TYPE_CHECKING:
    from sluicemq.admin.api_context import ApiContext

_MODES: Final = {spelled(mode): mode for mode in Mode}
_STRATEGIES: Final = {spelled(strategy): strategy for strategy in Strategy}

SessionFactory = Callable[[Transport, Listener], Session]
"""Function that creates the session of a new connection."""


def _ignore(_: str) -> None:
    return None


class SessionFactories:
    """Session factories of the supported protocols, for one broker."""

    def __init__(
        self,
        broker: Broker,
        vitals: ServerInfo,
        authenticator: Authenticator,
        opened: Sequence[Opened] = (),
        jmq: JmqSettings | None = None,
        context: ApiContext | None = None,
        http: HttpSettings | None = None,
        background: Background | None = None,
        large: Offload | None = None,
        notify: Callable[[str], None] = _ignore,
    ) -> None:
        """Create the factories of a broker.

        `opened` is the list of open listeners, which may grow. `context` is for HTTP, `large` for
        large VibeMQ frames; `notify` logs warnings of sessions for the operator.
        """
        self._notify = notify
        self._broker = broker
        self._opened = opened
        self._jmq_settings = jmq or JmqSettings()
        self._large = LargeDeliveries(large or Offload())
        self._coordinator = Coordinator(broker, background)
        self._authenticator = authenticator
        self._context = context
        self._http_settings = http or HttpSettings()
        self._vitals = vitals
        self._replies = ReplyAddresses(broker.clock.wall)
        self._factories: dict[str, SessionFactory] = {
            "phpmq": self._phpmq,
            "phpmq-maintenance": self._maintenance,
            "msglite": self._msglite,
            "msglite-http": self._gateway,
            "vibemq": self._vibemq,
            "jmq": self._jmq,
        }

    def of(self, options: Listener) -> SessionFactory:
        """Return the session factory of a listener; each listener that may speak HTTP has its own.

        Raises ConfigurationError if this version has none for its protocol.
        """
        if options.url.protocol == "http":
            return self.http(options)
        if options.url.protocol == "auto":
            return self._auto(options)
        return self._of(options.url.protocol)

    def refusing(self, options: Listener) -> SessionFactory | None:
        """Return what serves clients beyond the limit of connections of a listener: those of JMQ
        and VibeMQ can be told that there are too many. None for the other protocols."""
        if options.max_rejections and options.url.protocol == "jmq":
            return partial(self._jmq, refused=True)
        if options.max_rejections and options.url.protocol == "vibemq":
            return partial(self._vibemq, refused=True)
        if options.max_rejections and options.url.protocol == "auto":
            return self._auto(options, refused=True)
        return None

    def _of(self, protocol: str) -> SessionFactory:
        session_factory = self._factories.get(protocol)
        if session_factory is None:
            raise ConfigurationError(
                f"this version does not serve {protocol}; it serves "
                f"{', '.join((*self._factories, 'http', 'auto'))}"
            )
        return session_factory

    def http(self, options: Listener, *, local: bool = False) -> SessionFactory:
        """Return the session factory of an HTTP listener; `local`: of the admin socket."""
        from sluicemq.server.http_session_factory import HttpSessionFactory

        assert self._context is not None
        return HttpSessionFactory(
            self._context, self._authenticator, options, self._http_settings, local=local
        )

    def _guest_access(self, transport: Transport, options: Listener) -> Access:
        """Return the access of a client without a login. Raises TooManyConnections."""
        access = self._authenticator.open(transport, options, logs_in=False)
        if access.guest is not None:
            transport.claim_user(access.guest.name)
        return access

    def _phpmq(self, transport: Transport, options: Listener) -> Session:
        return PhpmqSession(
            transport,
            self._broker,
            access=self._guest_access(transport, options),
            dispatch_version=options.dispatch_version,
            durability=_durability(options, Durability.SYNC),
            limits=PhpmqLimits(queue=options.max_name_bytes, body=options.max_frame_bytes),
        )

    def _maintenance(self, transport: Transport, options: Listener) -> Session:
        access = self._guest_access(transport, options)
        return MaintenanceSession(transport, self._broker, self._vitals, access=access)

    def _msglite(self, transport: Transport, options: Listener) -> Session:
        return MsgliteSession(
            transport,
            self._broker,
            self._replies,
            access=self._guest_access(transport, options),
            durability=_durability(options, Durability.NONE),
            limits=MsgliteLimits(line=options.max_header_bytes, body=options.max_frame_bytes),
        )

    def _gateway(self, transport: Transport, options: Listener) -> Session:
        limits = HttpLimits(body=options.max_frame_bytes)
        return GatewaySession(
            transport,
            self._broker,
            self._replies,
            access=self._guest_access(transport, options),
            address=options.request_queue,
            limits=limits,
        )

    def _vibemq(self, transport: Transport, options: Listener, *, refused: bool = False) -> Session:
        return VibemqSession(
            transport,
            self._broker,
            self._authenticator.open(transport, options, logs_in=True),
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
            self._large,
        )

    def _jmq(self, transport: Transport, options: Listener, *, refused: bool = False) -> Session:
        """Return the session of a JMQ listener.

        The client selects the port mapper by its first byte or by sending nothing. `refused` is
        True if the connection exceeds the limit.
        """
        if options.services == "jms":
            return self._jms(transport, options, refused=refused)
        if options.services == "portmapper":
            return self._portmapper(transport, options)
        return AutoSession(
            transport,
            lambda protocol: self._recognised(protocol, transport, options, refused=refused),
            detect_jmq_protocol,
            silent=PORT_MAPPER,
            patience=options.portmapper_timeout,
            login=Login.DUE,
        )

    def _jms(self, transport: Transport, options: Listener, *, refused: bool = False) -> Session:
        settings = self._jmq_settings
        access = self._authenticator.open(transport, options, logs_in=True)
        authentication = options.authentication
        if authentication == "auto":
            # where nothing is checked, what all clients can do: see docs/protocols/jmq.md
            by_digest = access.guest is not None or self._authenticator.all_by_digest
            authentication = "digest" if by_digest else "basic"
        return JmqSession(
            transport,
            self._broker,
            self._coordinator,
            access,
            JmqOptions(
                durability=options.durability,
                packet=options.max_frame_bytes,
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
                refusal=f"the limit of {options.max_connections} connections is reached"
                if refused
                else "",
            ),
        )

    def _portmapper(self, transport: Transport, options: Listener) -> Session:
        return PortMapperSession(
            transport,
            lambda: answer(self._jmq_settings.instance, services(self._opened, options)),
            options.portmapper_timeout,
        )

    def _auto(self, options: Listener, *, refused: bool = False) -> SessionFactory:
        """Return the session factory of an `auto` listener.

        HTTP is the management API and the console, as on an HTTP listener with the same address:
        its clients log in by the same rules. There is none without a context.
        """
        web = None if self._context is None or refused else self.http(options)

        def open_session(transport: Transport, options: Listener) -> Session:
            def open_as(protocol: str) -> Session:
                if protocol == "http" and web is not None:
                    return web(transport, options)
                return self._recognised(protocol, transport, options, refused=refused)

            return AutoSession(transport, open_as, login=Login.DUE if refused else Login.NONE)

        return open_session

    def _recognised(
        self, protocol: str, transport: Transport, options: Listener, *, refused: bool = False
    ) -> Session:
        """Return the session of a protocol that was recognised. Raises ConfigurationError if it is
        not served, or the client is `refused` and the protocol cannot say so."""
        if protocol == "jmq":
            return self._jms(transport, options, refused=refused)
        if protocol == PORT_MAPPER:
            return self._portmapper(transport, options)
        if protocol == "vibemq":
            return self._vibemq(transport, options, refused=refused)
        if refused:
            raise ConfigurationError("too many connections")
        return self._of(protocol)(transport, options)


def _queue_defaults(options: Listener) -> ListenerDefaults:
    """Return the defaults of a listener for the queues of VibeMQ clients."""
    return ListenerDefaults(
        _MODES.get(options.default_mode or ""),
        options.default_max_queue_size or None,
        _STRATEGIES.get(options.default_overflow or ""),
        options.default_max_retries or None,
    )


def _durability(options: Listener, usual: Durability) -> Durability:
    """Return the durability of the listener, or else the default of its protocol."""
    return usual if options.durability is None else options.durability

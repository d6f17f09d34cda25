"""Which session serves which protocol: the only place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.broker import Broker
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.protocols.link import Link, Session
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.http import HttpLimits
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.protocols.msglite.wire import Limits as MsgliteLimits
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, Vitals
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.phpmq.wire import Limits as PhpmqLimits
from sluicemq.protocols.vibemq.compression import SUPPORTED
from sluicemq.protocols.vibemq.session import Options as VibemqOptions
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.protocols.vibemq.subscriber import Terms
from sluicemq.protocols.vibemq.wire import MAX_BODY
from sluicemq.server.auto import AutoSession
from sluicemq.server.config import Listener
from sluicemq.server.identity.gate import Gate

Room = Callable[[Link, Listener], Session]
"""Makes the session of a new connection."""


class Rooms:
    """The protocols that this version serves, on one broker."""

    def __init__(self, broker: Broker, vitals: Vitals, gate: Gate) -> None:
        self._broker = broker
        self._gate = gate
        self._vitals = vitals
        self._replies = ReplyAddresses(broker.clock.wall)
        self._rooms: dict[str, Room] = {
            "phpmq": self._phpmq,
            "phpmq-maintenance": self._maintenance,
            "msglite": self._msglite,
            "msglite-http": self._gateway,
            "vibemq": self._vibemq,
            "auto": self._auto,
        }

    def of(self, protocol: str) -> Room:
        """The room of a protocol. Raises ConfigurationError if this version has none."""
        room = self._rooms.get(protocol)
        if room is None:
            raise ConfigurationError(
                f"this version does not serve {protocol}; it serves {', '.join(self._rooms)}"
            )
        return room

    def _phpmq(self, link: Link, options: Listener) -> Session:
        return PhpmqSession(
            link,
            self._broker,
            access=self._gate.open(link, options, logs_in=False),
            generation=options.generation,
            durability=_durability(options, Durability.SYNC),
            limits=PhpmqLimits(queue=options.max_name_bytes, body=options.max_frame_bytes),
        )

    def _maintenance(self, link: Link, options: Listener) -> Session:
        access = self._gate.open(link, options, logs_in=False)
        return MaintenanceSession(link, self._broker, self._vitals, access=access)

    def _msglite(self, link: Link, options: Listener) -> Session:
        return MsgliteSession(
            link,
            self._broker,
            self._replies,
            access=self._gate.open(link, options, logs_in=False),
            durability=_durability(options, Durability.NONE),
            limits=MsgliteLimits(line=options.max_header_bytes, body=options.max_frame_bytes),
        )

    def _gateway(self, link: Link, options: Listener) -> Session:
        limits = HttpLimits(body=options.max_frame_bytes)
        return GatewaySession(
            link,
            self._broker,
            self._replies,
            access=self._gate.open(link, options, logs_in=False),
            address=options.request_address,
            limits=limits,
        )

    def _vibemq(self, link: Link, options: Listener) -> Session:
        terms = Terms(
            window=options.window,
            window_bytes=options.window_bytes,
            ack_timeout=round(options.ack_timeout * 1000),
            threshold=options.compression_threshold,
        )
        return VibemqSession(
            link,
            self._broker,
            self._gate.open(link, options, logs_in=True),
            VibemqOptions(
                durability=_durability(options, Durability.SYNC),
                frame=min(options.max_frame_bytes, MAX_BODY),
                terms=terms,
                compression=SUPPORTED if options.compression else (),
                strict_create=options.strict_create,
                rate_limit=options.rate_limit,
            ),
        )

    def _auto(self, link: Link, options: Listener) -> Session:
        return AutoSession(link, lambda protocol: self.of(protocol)(link, options))


def _durability(options: Listener, usual: Durability) -> Durability:
    """What the listener says, or what the clients of the protocol expect."""
    return usual if options.durability is None else options.durability

"""msglite and gateway connections to a broker in memory."""

from __future__ import annotations

from sluicemq.broker import EngineSettings
from sluicemq.model.message import Durability
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.protocols.offload import Offload
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import OPEN, Access
from tests.support.offload import Budget, ManualBackground
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer


class Harness(SessionHarness):
    def __init__(self, settings: EngineSettings | None = None) -> None:
        super().__init__(settings)
        self.replies = ReplyAddresses(self.clock.wall)
        self.background = ManualBackground()
        self.offload = Offload(self.background, Budget())

    def open(self, transport: Transport) -> MsgliteSession:
        return MsgliteSession(transport, self.broker, self.replies, self.offload)

    def connect(
        self,
        durability: Durability = Durability.NONE,
        limits: wire.Limits | None = None,
        access: Access = OPEN,
    ) -> Peer:
        transport = RecordedTransport(self)
        session = MsgliteSession(
            transport,
            self.broker,
            self.replies,
            self.offload,
            access=access,
            durability=durability,
            limits=limits,
        )
        return Peer(self, transport, session)

    def connect_gateway(self, access: Access = OPEN) -> Peer:
        """Open a connection to the gateway."""
        transport = RecordedTransport(self)
        return Peer(
            self,
            transport,
            GatewaySession(transport, self.broker, self.replies, self.offload, access=access),
        )

    def temporary(self) -> list[str]:
        """Return the names of the existing reply addresses."""
        return [d.name for d in self.broker.destinations.values() if d.temporary]


class Peer(SessionPeer):
    """A client's end of a connection, which sends bytes and receives bytes or frames."""

    def __init__(
        self,
        harness: Harness,
        transport: RecordedTransport,
        session: MsgliteSession | GatewaySession,
    ) -> None:
        super().__init__(harness, transport, session)
        self.decoder = wire.Decoder(kinds=wire.FROM_SERVER)

    @property
    def open(self) -> bool:
        return self.transport.open

    def request(self, data: bytes) -> bytes:
        """Send bytes, and return those received in the same iteration."""
        self.send_bytes(data)
        return self.take_bytes()

    def take_bytes(self) -> bytes:
        """Return the bytes written since the last call."""
        return self.transport.take_written()

    def end(self) -> None:
        """Half-close."""
        self.session.end_of_input()
        self.harness.run_event_loop()

    def frames(self) -> list[wire.Frame]:
        """Return the frames received since the last call."""
        frames = self.decoder.feed(self.take_bytes())
        assert self.decoder.error is None
        assert not self.decoder.incomplete
        return frames

    def bodies(self) -> list[bytes | None]:
        """Return the bodies of the frames received; None for a timeout."""
        return [frame[3] if frame[0] == wire.MESSAGE else None for frame in self.frames()]

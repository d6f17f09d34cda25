"""VibeMQ connections to a broker in memory."""

from __future__ import annotations

import json
from typing import Any

from sluicemq.broker import Destination, EngineSettings
from sluicemq.model.access import EVERYBODY
from sluicemq.protocols.offload import Offload
from sluicemq.protocols.transport import Transport
from sluicemq.protocols.vibemq import queues, wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.large import LargeDeliveries
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.protocols.vibemq.wire import Decoder, Frame
from sluicemq.security.access import Access
from tests.support.offload import Budget, LoopBackground, ManualBackground
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer


class Harness(SessionHarness):
    def __init__(
        self, settings: EngineSettings | None = None, access: Access | None = None
    ) -> None:
        super().__init__(settings)
        self.access = access or Access(EVERYBODY)
        self.background = ManualBackground()
        self.memory = Budget()
        self.large = LargeDeliveries(Offload(self.background, self.memory))

    def open(self, transport: Transport) -> VibemqSession:
        large = LargeDeliveries(Offload(LoopBackground(transport), self.memory))
        return VibemqSession(transport, self.broker, self.access, large)

    def open_connection(self, options: SessionOptions | None = None) -> Peer:
        """Return a client that has not sent Connect."""
        transport = RecordedTransport(self)
        session = VibemqSession(transport, self.broker, self.access, self.large, options)
        return Peer(self, transport, session)

    def run_until_idle(self) -> None:
        """Run the event loop and the background threads until nothing is left to do now."""
        for _ in range(20):
            self.run_event_loop()
            self.background.run()

    def connect(self, options: SessionOptions | None = None, **headers: str) -> Peer:
        """Return a client that has sent Connect with these headers."""
        peer = self.open_connection(options)
        [response] = peer.send(Frame(wire.CONNECT, "hello", headers=headers))
        assert response.type == wire.CONNECT_ACK
        return peer

    def destination(self, name: str) -> Destination:
        destination = queues.find(self.broker, name)
        assert destination is not None
        return destination


class Peer(SessionPeer):
    """A client's end of a connection, frame by frame."""

    def __init__(
        self, harness: Harness, transport: RecordedTransport, session: VibemqSession
    ) -> None:
        super().__init__(harness, transport, session)
        self.decoder = Decoder()
        self.numbers = 0

    def next_id(self) -> str:
        self.numbers += 1
        return f"r{self.numbers}"

    def send(self, *frames: Frame) -> list[Frame]:
        """Send frames in one read, and return the frames received since the last call."""
        self.send_bytes(b"".join(map(wire.encode, frames)))
        return self.frames()

    def frames(self) -> list[Frame]:
        frames = self.decoder.feed(self.transport.take_written())
        assert self.decoder.error is None
        assert not self.decoder.incomplete
        return frames

    def deliveries(self) -> list[Frame]:
        """Return `frames()`, which must be deliveries only."""
        frames = self.frames()
        assert all(frame.type == wire.DELIVER for frame in frames), frames
        return frames

    def ids(self) -> list[str]:
        return [frame.id for frame in self.deliveries()]

    def request(self, kind: int, queue: str = "", payload: Any = None, **headers: str) -> Frame:
        """Send a request and return its answer, which must be the first frame."""
        identity = self.next_id()
        body = b"" if payload is None else json.dumps(payload).encode()
        responses = self.send(Frame(kind, identity, queue, body, headers))
        assert responses[0].id == identity
        self.more = responses[1:]
        """Frames that arrived with the answer."""
        return responses[0]

    def error(self, kind: int, queue: str = "", payload: Any = None, **headers: str) -> str:
        """Return the code of the Error that answers a request."""
        response = self.request(kind, queue, payload, **headers)
        assert response.type == wire.ERROR
        assert response.error_message
        return response.error_code

    def subscribe(self, queue: str) -> list[str]:
        """Subscribe; return the ids of the messages delivered at once."""
        response = self.request(wire.SUBSCRIBE, queue)
        assert response.type == wire.SUBSCRIBE_ACK
        return [frame.id for frame in self.more]

    def publish(self, queue: str, *ids: str, **headers: str) -> None:
        """Publish messages whose payload is their id; all must be acknowledged, in order."""
        requests = [
            Frame(wire.PUBLISH, message_id, queue, json.dumps(message_id).encode(), headers)
            for message_id in ids
        ]
        responses = self.send(*requests)
        acknowledged = [frame.id for frame in responses if frame.type == wire.PUBLISH_ACK]
        assert acknowledged == list(ids), responses
        self.more = [frame for frame in responses if frame.type != wire.PUBLISH_ACK]

    def acknowledge(self, *ids: str) -> list[Frame]:
        """Acknowledge each message in a frame of its own, like the .NET client."""
        return self.send(*(Frame(wire.ACK, message_id) for message_id in ids))

    def create(self, queue: str, **options: Any) -> None:
        response = self.request(wire.CREATE_QUEUE, queue, options)
        assert response == Frame(wire.CREATE_QUEUE, response.id, queue)

    def info(self, queue: str) -> Any:
        """Return the information on a queue; None if it does not exist."""
        response = self.request(wire.QUEUE_INFO, queue)
        assert response.type == wire.QUEUE_INFO
        return json.loads(response.payload) if response.payload else None

"""JMQ broker whose replies a test defines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.transport import Backoff
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import Decoder, Packet, encode_packet, encode_reply
from tests.clients.scripted_broker import Decode, ScriptedListener

SHORT_BACKOFF = Backoff(0.01, 0.01)
"""Backoff of tests that reconnect."""
NONCE = b"-34b997a1a2d58a1635f2b0596f8a217"

Answer = Callable[[Packet], bytes | None]
"""Returns the reply to a packet; None: the default reply."""


class ScriptedBroker(ScriptedListener[Packet]):
    """Broker with defined replies; `received` has the packets of the clients."""

    def __init__(self, answer: Answer | None = None) -> None:
        super().__init__()
        self.answer: Answer = answer or (lambda packet: None)
        self._ids = itertools.count(1000)

    def decoder(self) -> Decode[Packet]:
        return Decoder().feed

    def handle(self, frame: Packet, writer: asyncio.StreamWriter) -> None:
        assert type(frame) is Packet
        reply = self.answer(frame)
        writer.write(self.default_reply(frame) if reply is None else reply)

    def default_reply(self, packet: Packet) -> bytes:
        """Return the reply of a broker that accepts the packet."""
        kind, cid = packet.type, packet.consumer_id
        if not packet.flags & packets.A:
            return b""
        if packet.is_message:
            return encode_reply(PacketType.SEND_REPLY, cid, Status.OK)
        properties: dict[str, object] = {}
        new_id = Long(next(self._ids))
        match kind:
            case PacketType.HELLO:
                properties = {"JMQConnectionID": new_id, "JMQProtocolLevel": 500}
                challenge = {"JMQAuthType": "digest", "JMQChallenge": True}
                return encode_reply(kind + 1, cid, Status.OK, properties) + encode_packet(
                    PacketType.AUTHENTICATE_REQUEST, 0, cid, challenge, body=NONCE
                )
            case PacketType.CREATE_SESSION:
                properties = {"JMQSessionID": new_id}
            case PacketType.ADD_PRODUCER:
                properties = {"JMQProducerID": new_id, "JMQSize": -1}
            case PacketType.ADD_CONSUMER:
                properties = {"JMQConsumerID": new_id, "JMQSize": packet.properties["JMQSize"]}
            case PacketType.BROWSE:
                properties = {"JMQConsumerID": new_id}
            case PacketType.START_TRANSACTION:
                properties = {"JMQTransactionID": new_id}
            case PacketType.COMMIT_TRANSACTION if "JMQStartNextTransaction" in packet.properties:
                properties = {"JMQNextTransactionID": new_id}
        return encode_reply(kind + 1, cid, Status.OK, properties)

    async def wait_for_packet(self, kind: PacketType, number: int = 1) -> Packet:
        """Wait for the packet of a type with that number, from 1, and return it."""
        await self.wait_until(lambda: len(self.all(kind)) >= number)
        return self.all(kind)[number - 1]

    def all(self, kind: PacketType) -> list[Packet]:
        return [packet for packet in self.received if packet.type == kind]

    def received_since(self, kind: PacketType) -> list[tuple[str, dict[str, Any]]]:
        """Return names and properties of the packets from the last one of that type on."""
        last = max(index for index, packet in enumerate(self.received) if packet.type == kind)
        return [
            (PacketType(packet.type).name, dict(packet.properties))
            for packet in self.received[last:]
        ]

    def send(self, *data: bytes) -> None:
        """Send data to the most recent connection."""
        self.connections[-1].write(b"".join(data))


def deliver(
    consumer_id: int, number: int, flags: int = 0, kind: int = PacketType.TEXT_MESSAGE, **more: Any
) -> bytes:
    """Return a persistent message of a queue; `number` is in its body and its SysMessageID."""
    return encode_packet(
        kind,
        packets.Q | packets.P | flags,
        consumer_id,
        header=encode_header("q", delivery_count=1),
        body=more.pop("body", b"%d" % number),
        sysid=sysid(number),
        **more,
    )


def sysid(number: int) -> bytes:
    return bytes(31) + bytes([number])


def refusing(kind: PacketType, status: int, reason: str = "") -> Answer:
    """Return a function that replies to packets of a type with a status."""

    def answer(packet: Packet) -> bytes | None:
        if packet.type != kind:
            return None
        reply = PacketType.SEND_REPLY if packet.is_message else kind + 1
        properties = {"JMQReason": reason} if reason else None
        return encode_reply(reply, packet.consumer_id, status, properties)

    return answer


def run_scenario(
    scenario: Callable[[ScriptedBroker, JmqClient], Coroutine[None, None, None]],
    answer: Answer | None = None,
    **options: Any,
) -> ScriptedBroker:
    """Run a scenario with a client that has connected; `options` are those of `connect`."""

    async def main() -> ScriptedBroker:
        broker = ScriptedBroker(answer)
        async with broker.listen() as port:
            options.setdefault("reconnect", None)
            client = await JmqClient.connect(port=port, direct=True, **options)
            async with client:
                await scenario(broker, client)
        return broker

    return asyncio.run(main())

"""The JMS client with a broker whose replies are damaged.

Only errors of the client libraries are raised, there is no hang, and no task is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.jmq.messages import MessageFormatError
from sluicemq.model.errors import ClientError
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import Decoder, Oversized, Packet, encode_packet, encode_reply
from tests.fuzz import jmq
from tests.fuzz.mutations import mutate

ANSWER_SECONDS = 0.1
"""The client's timeout for answers that may never arrive."""
TIMEOUT = 60.0
"""Seconds for all that the client does."""
CONSUMER = 5


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory for sockets, whose paths must be short."""
    with TemporaryDirectory() as name:
        yield Path(name)


def answers(chance: Random, packet: Packet) -> list[bytes]:
    """Return the broker's reply to a packet, and unsolicited packets."""
    frames = []
    if packet.flags & packets.A:
        kind = PacketType.SEND_REPLY if packet.is_message else packet.type + 1
        status = Status.OK if chance.random() < 0.9 else chance.choice(list(Status))
        properties: dict[str, object] = {
            "JMQSessionID": Long(1),
            "JMQProducerID": Long(2),
            "JMQConsumerID": Long(CONSUMER),
            "JMQTransactionID": Long(7),
            "JMQSize": chance.choice((10, 1, 0, -1)),
            "JMQDestType": 1,
            "JMQQuantity": 1,
            "JMQProtocolLevel": 500,
        }
        body = b""
        if packet.type == PacketType.BROWSE:
            body = bytes(64)
        elif packet.type == PacketType.GENERATE_UID:
            body = bytes(8)
        frames.append(encode_reply(kind, packet.consumer_id, status, properties, body))
    if packet.type == PacketType.HELLO:
        challenge_properties = {
            "JMQAuthType": chance.choice(("basic", "digest")),
            "JMQChallenge": True,
        }
        kind = PacketType.AUTHENTICATE_REQUEST
        frames.append(
            encode_packet(kind, 0, packet.consumer_id, challenge_properties, body=b"nonce")
        )
    if packet.type in (PacketType.ADD_CONSUMER, PacketType.DELIVER):
        for flag in (0, packets.L):
            frames.append(
                encode_packet(
                    PacketType.TEXT_MESSAGE,
                    packets.Q | flag,
                    CONSUMER,
                    {"a": 1},
                    encode_header("hostile.a", reply_to="hostile.b"),
                    b"text",
                )
            )
    if chance.random() < 0.2:
        frames += jmq.broker(chance)
    return frames


async def use(client: JmqClient) -> None:
    """Call all kinds of awaitable methods."""
    session = await client.session()
    producer = await session.producer("hostile.a")
    for _ in range(3):
        await producer.send("text")
    consumer = await session.consumer("hostile.a")
    for _ in range(3):
        message = await consumer.receive(ANSWER_SECONDS)
        with contextlib.suppress(MessageFormatError):
            assert isinstance(message.body, object)
    browser = session.browser("hostile.a")
    async for _ in browser:
        pass
    transacted = await client.session(transacted=True)
    await (await transacted.producer("hostile.a")).send(b"bytes")
    await transacted.commit()
    await client.ping()


# "True": from one seed. The number of draws depends on the timing of client and broker.
@given(chance=st.randoms(use_true_random=True), damage=st.sampled_from([0.0, 0.1, 0.3, 1.0]))
def test_a_damaged_broker(directory: Path, chance: Random, damage: float) -> None:
    errors: list[dict[str, Any]] = []

    tasks: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                for packet in decoder.feed(data):
                    assert not isinstance(packet, Oversized)
                    frames = answers(chance, packet)
                    if chance.random() < damage:
                        frames = mutate(chance, frames)
                    writer.write(b"".join(frames))
                assert decoder.error is None
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        path = str(directory / "socket")
        server = await asyncio.start_unix_server(serve, path)
        async with server, asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ClientError):
                client = await JmqClient.connect(
                    path=path, timeout=ANSWER_SECONDS, reconnect=None, keep_alive=0
                )
                try:
                    await use(client)
                finally:
                    await client.close()
            while not tasks:  # the client may have given up before the connection was accepted
                await asyncio.sleep(0)
            await asyncio.gather(*filter(None, tasks))

    asyncio.run(main())
    assert not errors, errors

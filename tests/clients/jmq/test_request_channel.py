"""Packets that the client sends to a scripted broker."""

from __future__ import annotations

import asyncio
import re
import zlib
from contextlib import suppress
from itertools import count

import pytest

from sluicemq.clients.jmq import (
    JavaObject,
    JmqClient,
    MessageFormatError,
    Queue,
    StatusError,
    Topic,
)
from sluicemq.model.errors import ConnectionLost, RequestTimeout
from sluicemq.protocols.java import MAX_ENTRIES, Long, dumps, dumps_map, dumps_stream
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import sysid_text
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import Packet, encode_packet, encode_reply
from tests.clients.jmq.scripted_broker import (
    SHORT_BACKOFF,
    Answer,
    ScriptedBroker,
    deliver,
    refusing,
    run_scenario,
)


def names(broker: ScriptedBroker, kind: PacketType) -> list[str]:
    return [name for name, _ in broker.received_since(kind)]


# --- connecting and closing ---------------------------------------------------------------------


def test_connect_and_close_send_packets_of_java_client() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        await session.producer("q")
        await session.consumer(Topic("t"), name="d", durable=True, selector="a > 1", no_local=True)

    broker = run_scenario(scenario, client_id="me", prefetch=7)
    session, producer, consumer = (
        broker.all(kind)[0].properties[name]
        for kind, name in (
            (PacketType.ADD_PRODUCER, "JMQSessionID"),
            (PacketType.DELETE_PRODUCER, "JMQProducerID"),
            (PacketType.DELETE_CONSUMER, "JMQConsumerID"),
        )
    )
    received_packets = broker.received_since(PacketType.HELLO)
    assert set(received_packets[0][1]) == {
        "JMQProtocolLevel", "JMQVersion", "JMQUserAgent", "JMQRBufferSize", "JMQReconnectable"
    }  # fmt: skip
    assert received_packets[1:-1] == [
        ("AUTHENTICATE", {"JMQAuthType": "digest"}),
        ("SET_CLIENTID", {"JMQClientID": "me", "JMQShare": False}),
        ("START", {}),
        ("CREATE_SESSION", {"JMQAckMode": 1}),
        ("CREATE_DESTINATION", {"JMQDestination": "q", "JMQDestType": 1}),
        ("ADD_PRODUCER", {"JMQDestination": "q", "JMQDestType": 1, "JMQSessionID": session}),
        ("CREATE_DESTINATION", {"JMQDestination": "t", "JMQDestType": 2}),
        (
            "ADD_CONSUMER",
            {
                "JMQDestination": "t",
                "JMQDestType": 2,
                "JMQSessionID": session,
                "JMQAckMode": 1,
                "JMQNoLocal": True,
                "JMQReconnect": False,
                "JMQShare": False,
                "JMQSize": 7,
                "JMQSelector": "a > 1",
                "JMQDurableName": "d",
            },
        ),
        ("STOP", {}),
        (
            "DELETE_CONSUMER",
            {
                "JMQConsumerID": consumer,
                "JMQBlock": True,
                "JMQBodyType": 0,
                "JMQRedeliverAll": True,
            },
        ),
        ("DELETE_PRODUCER", {"JMQProducerID": producer}),
        ("DESTROY_SESSION", {"JMQSessionID": session}),
    ]
    assert received_packets[-1][0] == "GOODBYE"
    assert received_packets[-1][1]["JMQBlock"] is True
    # a Long is no Integer to the other side, whatever its value
    assert broker.all(PacketType.DELETE_PRODUCER)[0].block[-10:-8] == b"\0\x05"
    # section 5.2: guest, guest, and this nonce
    expected = b"\0\x05guest\0\x21-4bd2e7a6ba3de828e8bd2740b6419a98"
    assert broker.all(PacketType.AUTHENTICATE)[0].body == expected


def test_basic_login() -> None:
    def basic(packet: Packet) -> bytes | None:
        if packet.type != PacketType.HELLO:
            return None
        return encode_reply(11, packet.consumer_id, 200) + encode_packet(
            PacketType.AUTHENTICATE_REQUEST, 0, packet.consumer_id, {"JMQAuthType": "basic"}
        )

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        pass

    broker = run_scenario(scenario, basic, username="ü", password="secret")
    assert broker.all(PacketType.AUTHENTICATE)[0].body == b"\0\x02\xc3\xbc\0\x08c2VjcmV0"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refusing(PacketType.HELLO, 503, "full"), r"hello reply: 503 UNAVAILABLE \(full\)"),
        (refusing(PacketType.AUTHENTICATE, 413), "authenticate reply: 413 INVALID_LOGIN"),
        (refusing(PacketType.HELLO, 505), "hello: 505 BAD_VERSION"),
    ],
)
def test_client_sends_goodbye_after_refused_login(answer: Answer, message: str) -> None:
    async def main() -> None:
        broker = ScriptedBroker(answer)
        async with broker.listen() as port:
            with pytest.raises(StatusError, match=message):
                await JmqClient.connect(port=port, direct=True)
            await broker.wait_for_packet(PacketType.GOODBYE)
            assert not broker.all(PacketType.GOODBYE)[0].flags & packets.A

    asyncio.run(main())


def test_protocol_level_is_negotiated_on_second_connection() -> None:
    def refuse_current_level(packet: Packet) -> bytes | None:
        if packet.type == PacketType.HELLO and packet.properties["JMQProtocolLevel"] == 500:
            return encode_reply(11, packet.consumer_id, 505, {"JMQProtocolLevel": 410})
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        assert len(broker.connections) == 2
        # properties of the reply at level 450 are not used
        session = await client.session(transacted=True)
        await session.commit()
        assert broker.received_since(PacketType.COMMIT_TRANSACTION)[0][1].keys() == {
            "JMQTransactionID"
        }
        assert names(broker, PacketType.COMMIT_TRANSACTION)[1] == "START_TRANSACTION"

    broker = run_scenario(scenario, refuse_current_level)
    levels = [packet.properties["JMQProtocolLevel"] for packet in broker.all(PacketType.HELLO)]
    assert levels == [500, 410]


def test_goodbye_has_reason_and_reconnect_flag() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        properties = {"JMQExit": True, "JMQGoodbyeReason": 3, "JMQGoodbyeReasonString": "go away"}
        broker.send(encode_packet(PacketType.GOODBYE, properties=properties))
        with pytest.raises(ConnectionLost, match="go away"):
            await consumer.receive()
        with pytest.raises(ConnectionLost, match="go away"):
            await client.ping()
        assert len(broker.connections) == 1

    run_scenario(scenario, reconnect=SHORT_BACKOFF)


def test_pings_are_answered_and_silent_broker_is_disconnected() -> None:
    def send_no_reply(packet: Packet) -> bytes | None:
        return b"" if packet.type == PacketType.PING else None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        broker.send(encode_packet(PacketType.PING, packets.A, -7))
        pong = await broker.wait_for_packet(PacketType.PING_REPLY)
        assert (pong.consumer_id, pong.properties) == (-7, {"JMQStatus": 200})
        consumer = await (await client.session()).consumer("q")
        with pytest.raises(ConnectionLost, match="does not answer"):
            await consumer.receive()

    run_scenario(scenario, send_no_reply, keep_alive=0.05, timeout=2)


def test_malformed_packet_ends_connection() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        broker.send(b"HTTP/1.1 400 Bad Request\r\n" + bytes(72))
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await consumer.receive()

    run_scenario(scenario)


def test_malformed_properties_close_connection() -> None:
    def damaged(packet: Packet) -> bytes | None:
        if packet.type != PacketType.HELLO:
            return None
        welcome = encode_reply(PacketType.HELLO_REPLY, packet.consumer_id, Status.OK)
        request = encode_packet(
            PacketType.AUTHENTICATE_REQUEST, 0, packet.consumer_id, {"JMQAuthType": "digest"}
        )
        version, count_bytes = b"\0\0\0\1", b"\0\0\0\1"
        before, _, after = request.rpartition(version + count_bytes)
        return welcome + before + bytes(4) + count_bytes + after

    async def main() -> None:
        async with ScriptedBroker(damaged).listen() as port:
            with pytest.raises(ConnectionLost, match="unknown version 0 of a property block"):
                await JmqClient.connect(port=port, direct=True, reconnect=None)

    asyncio.run(main())


def test_unanswered_request_times_out() -> None:
    def send_no_reply(packet: Packet) -> bytes | None:
        return b"" if packet.type == PacketType.DELETE_CONSUMER else None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        with pytest.raises(RequestTimeout):
            await (await client.session()).unsubscribe("d")
        await client.ping()

    run_scenario(scenario, send_no_reply, timeout=1)


def test_request_with_status_retry_is_repeated() -> None:
    times = count()

    def reply_with_retry(packet: Packet) -> bytes | None:
        if packet.type == PacketType.ADD_PRODUCER and next(times) == 0:
            return encode_reply(19, packet.consumer_id, 449)
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        await session.producer("q")
        assert len(broker.all(PacketType.ADD_PRODUCER)) == 2

    run_scenario(scenario, reply_with_retry)


# --- sending ------------------------------------------------------------------------------------


def test_messages_have_types_headers_and_properties() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer()
        bodies = ["té", b"\0", {"a": 1}, [1, None], JavaObject.of("x"), None]
        ids = [
            await producer.send(
                body,
                to=Topic("t"),
                properties={"n": number, "l": Long(2), "b": True, "d": 0.5, "s": "ü"},
                correlation_id="c",
                reply_to=Queue("back"),
                type="kind",
                priority=9,
                ttl=10,
                delay=2,
                persistent=False,
            )
            for number, body in enumerate(bodies)
        ]
        await client.ping()
        received_packets = [packet for packet in broker.received if packet.is_message]
        assert [packet.type for packet in received_packets] == [1, 2, 3, 4, 5, 6]
        assert [packet.body for packet in received_packets[:3]] == [
            "té".encode(),
            b"\0",
            dumps_map({"a": 1}),
        ]
        assert received_packets[4].body == dumps("x")
        assert [sysid_text(packet.sysid) for packet in received_packets] == ids
        first = received_packets[0]
        assert first.properties == {"n": 0, "l": 2, "b": True, "d": 0.5, "s": "ü"}
        header = first.variable
        assert (header.destination, header.correlation_id, header.reply_to, header.type) == (
            "t", "c", "back", "kind",
        )  # fmt: skip
        assert header.destination_class == "com.sun.messaging.BasicTopic"
        assert header.reply_to_class == "com.sun.messaging.BasicQueue"
        producer_packets = broker.all(PacketType.ADD_PRODUCER)
        assert len(producer_packets) == 1
        assert header.producer_id > 0
        assert (first.flags, first.consumer_id, first.priority) == (0, 0, 9)
        assert first.expiration == first.timestamp + 10_000
        assert header.delivery_time == first.timestamp + 2_000
        assert len({packet.sysid for packet in received_packets}) == 6

    run_scenario(scenario)


def test_bodies_beyond_limits_of_transcoding_are_read() -> None:
    text = dumps_stream(["a" * 60_000]) + b"\x71\0\x7e\0\0" * 80
    nulls = dumps_stream([None] * (MAX_ENTRIES + 1))

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        for number, body in enumerate((text, nulls)):
            broker.send(deliver(consumer.id, number, 0, PacketType.STREAM_MESSAGE, body=body))
        assert (await consumer.receive()).body == ["a" * 60_000] * 81
        assert (await consumer.receive()).body == [None] * (MAX_ENTRIES + 1)

    run_scenario(scenario)


def test_values_that_cannot_be_encoded_are_refused() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer("q")
        for body in (1, {"a": object()}, {1: 2}, {"a": 1 << 64}, "\ud800"):
            with pytest.raises(MessageFormatError):
                await producer.send(body)
        for properties in ({"a": None}, {"": 1}, {"a": 1 << 64}):
            with pytest.raises(MessageFormatError):
                await producer.send("x", properties=properties)
        with pytest.raises(MessageFormatError):
            await producer.send("x", correlation_id="c" * 40_000)
        with pytest.raises(ValueError, match="priority"):
            await producer.send("x", priority=10)
        with pytest.raises(ValueError, match="this producer sends to"):
            await producer.send("x", to="other")
        await producer.send("x")
        assert len(broker.all(PacketType.TEXT_MESSAGE)) == 1

    run_scenario(scenario)


def test_persistent_message_waits_for_its_confirmation() -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.is_message:
            held_packets.append(packet)
            return b""
        return None

    def confirm(broker: ScriptedBroker, status: int = 200) -> None:
        broker.send(encode_reply(PacketType.SEND_REPLY, held_packets.pop(0).consumer_id, status))

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer("q")
        sending = asyncio.create_task(producer.send("x"))
        await broker.wait_for_packet(PacketType.TEXT_MESSAGE)
        flags = packets.Q | packets.P | packets.A
        assert (held_packets[0].flags, sending.done()) == (flags, False)
        confirm(broker)
        assert re.match(r"ID:\d+-127\.0\.0\.1\(([0-9a-f]+:){5}[0-9a-f]+\)-\d+-\d+", await sending)
        # three may be unconfirmed
        for _ in range(3):
            await producer.send("x", wait=False)
        fourth = asyncio.create_task(producer.send("x", wait=False))
        await broker.wait_for_packet(PacketType.TEXT_MESSAGE, 4)
        await client.ping()
        assert not fourth.done()
        confirm(broker)
        await fourth
        await broker.wait_for_packet(PacketType.TEXT_MESSAGE, 5)
        confirm(broker)
        confirm(broker, 414)
        confirm(broker, 304)
        with pytest.raises(StatusError, match="send reply: 414 RESOURCE_FULL"):
            await producer.confirm()
        await producer.confirm()

    run_scenario(scenario, hold, outstanding=3)


def test_message_is_compressed_when_asked() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        producer, consumer = await session.producer("q"), await session.consumer("q")
        await producer.send("ab" * 21, compress=True)
        [sent] = broker.all(PacketType.TEXT_MESSAGE)
        assert zlib.decompress(sent.body) == b"ab" * 21
        assert sent.properties == {
            "JMS_SUN_COMPRESS": True,
            "JMS_SUN_UNCOMPRESSED_SIZE": 42,
            "JMS_SUN_COMPRESSED_SIZE": len(sent.body),
        }
        assert sent.flags & packets.Z
        fields = {"body": sent.body, "properties": sent.properties}
        broker.send(deliver(consumer.id, 1, packets.Z, **fields))
        broker.send(deliver(consumer.id, 2, packets.Z, body=sent.body))
        assert (await consumer.receive()).body == "ab" * 21
        with pytest.raises(MessageFormatError, match="size of a compressed body is invalid"):
            assert (await consumer.receive()).body

    run_scenario(scenario)


def test_producer_flow() -> None:
    """Section 6.2: the last permitted message requests RESUME_FLOW, and the next one waits."""

    def narrow(packet: Packet) -> bytes | None:
        if packet.type == PacketType.ADD_PRODUCER:
            properties = {"JMQProducerID": Long(77), "JMQSize": 2}
            return encode_reply(19, packet.consumer_id, 200, properties)
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer("q")
        await producer.send("1")
        await producer.send("2")
        third = asyncio.create_task(producer.send("3"))
        await client.ping()
        assert not third.done()
        flags = [bool(packet.flags & packets.C) for packet in broker.all(PacketType.TEXT_MESSAGE)]
        assert flags == [False, True]
        resume = {"JMQProducerID": Long(77), "JMQSize": 1}
        broker.send(encode_packet(PacketType.RESUME_FLOW, properties=resume))
        await third
        assert (await broker.wait_for_packet(PacketType.TEXT_MESSAGE, 3)).flags & packets.C
        with pytest.raises(RequestTimeout, match="has accepted no message"):
            await producer.send("4")

    run_scenario(scenario, narrow, timeout=2)


def test_producer_deletes_its_oldest_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicemq.clients.jmq.producer.MAX_ROUTES", 2)

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer()
        for name in ("a", "b", "c", "c", "a"):
            await producer.send("x", to=name)
        messages = broker.all(PacketType.TEXT_MESSAGE)
        ids = [packet.variable.producer_id for packet in messages]
        assert ids[2] == ids[3]
        deletions = [
            packet.properties["JMQProducerID"] for packet in broker.all(PacketType.DELETE_PRODUCER)
        ]
        assert deletions == ids[:2]

    run_scenario(scenario)


@pytest.mark.parametrize("iterations", range(4))
@pytest.mark.parametrize("transacted", [False, True])
def test_cancelled_session_is_deleted_on_broker(iterations: int, transacted: bool) -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        creating = asyncio.create_task(client.session(transacted=transacted))
        await broker.wait_for_packet(PacketType.CREATE_SESSION)
        for _ in range(iterations):
            await asyncio.sleep(0)
        creating.cancel()
        with suppress(asyncio.CancelledError):
            await creating

    broker = run_scenario(scenario)
    assert len(broker.all(PacketType.DESTROY_SESSION)) == 1


def test_refused_transaction_deletes_its_session_on_broker() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        with pytest.raises(StatusError):
            await client.session(transacted=True)

    broker = run_scenario(scenario, refusing(PacketType.START_TRANSACTION, Status.ERROR))
    assert len(broker.all(PacketType.DESTROY_SESSION)) == 1


def test_concurrent_sends_to_new_destination_add_one_producer() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer()
        await asyncio.gather(*(producer.send("x", to="a") for _ in range(3)))
        assert len(broker.all(PacketType.ADD_PRODUCER)) == 1

    run_scenario(scenario)


def test_producer_closed_while_destination_is_added_sends_nothing() -> None:
    def keep_waiting(packet: Packet) -> bytes | None:
        return b"" if packet.type == PacketType.ADD_PRODUCER else None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer()
        sending = asyncio.create_task(producer.send("x", to="a"))
        request = await broker.wait_for_packet(PacketType.ADD_PRODUCER)
        await producer.close()
        broker.send(broker.default_reply(request))
        with pytest.raises(ConnectionLost, match="the producer is closed"):
            await sending

    broker = run_scenario(scenario, keep_waiting)
    assert len(broker.all(PacketType.DELETE_PRODUCER)) == 1
    assert not broker.all(PacketType.TEXT_MESSAGE)


def test_send_does_not_wait_for_producer_of_another_destination() -> None:
    def keep_waiting(packet: Packet) -> bytes | None:
        is_slow = packet.properties.get("JMQDestination") == "slow"
        return b"" if is_slow and packet.type == PacketType.ADD_PRODUCER else None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer()
        slow = asyncio.create_task(producer.send("x", to="slow"))
        await broker.wait_for_packet(PacketType.ADD_PRODUCER)
        await asyncio.wait_for(producer.send("x", to="other"), 1)
        slow.cancel()

    run_scenario(scenario, keep_waiting)


def test_connection_flow_to_broker() -> None:
    def narrow(packet: Packet) -> bytes | None:
        if packet.type == PacketType.HELLO:
            default_reply = ScriptedBroker().default_reply(packet)
            reply = encode_reply(11, packet.consumer_id, 200, {"JMQSize": 1})
            return reply + default_reply[default_reply.index(packets.MAGIC.to_bytes(4), 4) :]
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        producer = await (await client.session()).producer("q")
        await producer.send("1")
        assert broker.all(PacketType.TEXT_MESSAGE)[0].flags & packets.F
        second = asyncio.create_task(producer.send("2"))
        await client.ping()
        assert not second.done()
        broker.send(encode_packet(PacketType.RESUME_FLOW))
        await second
        await producer.send("3")
        assert not broker.all(PacketType.TEXT_MESSAGE)[2].flags & packets.F

    run_scenario(scenario, narrow)

"""Receiving, acknowledging and returning messages, against a scripted broker."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from sluicemq.clients.jmq import (
    AckMode,
    JavaObject,
    JmqClient,
    MessageFormatError,
    StatusError,
    Topic,
    XaFlag,
    Xid,
)
from sluicemq.model.errors import RequestTimeout
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import decode_blocks, encode_blocks, encode_xid, sysid_text
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import Packet, encode_packet, encode_reply
from tests.clients.jmq.scripted_broker import ScriptedBroker, deliver, refusing, run_scenario, sysid

# --- receiving -----------------------------------------------------------------------------------


def test_consumer_flow() -> None:
    """Section 7.1: the client resumes the flow when half of the messages are taken."""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q", prefetch=4)
        broker.send(*(deliver(consumer.id, n, packets.C if n == 4 else 0) for n in range(1, 5)))
        for expected in ("1", "2"):
            assert not broker.all(PacketType.RESUME_FLOW)
            assert (await consumer.receive()).body == expected
        resume = await broker.wait_for_packet(PacketType.RESUME_FLOW)
        assert resume.properties == {"JMQConsumerID": consumer.id, "JMQSize": 2}

    run_scenario(scenario)


def test_closed_consumer_requests_no_more_messages() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q", prefetch=2)
        broker.send(deliver(consumer.id, 1), deliver(consumer.id, 2, packets.C))
        await client.ping()
        await consumer.close()

    assert not run_scenario(scenario).all(PacketType.RESUME_FLOW)


def test_connection_flow_from_broker() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        assert broker.all(PacketType.HELLO)[0].properties["JMQRBufferSize"] == 2
        session = await client.session()
        first, second = await session.consumer("q"), await session.consumer("r")
        broker.send(deliver(first.id, 1), deliver(second.id, 2, packets.F))
        await first.receive()
        resume = await broker.wait_for_packet(PacketType.RESUME_FLOW)
        assert resume.block == b""
        # messages of unknown consumers count, too
        broker.send(deliver(9, 3), deliver(9, 4, packets.F))
        await second.receive()
        await broker.wait_for_packet(PacketType.RESUME_FLOW, 2)

    run_scenario(scenario, flow=2)


@pytest.mark.parametrize(
    ("durable", "flags", "asks"), [(True, 0, True), (False, 0, False), (False, packets.P, True)]
)
def test_auto_acknowledge_mode_acks_each_message(durable: bool, flags: int, asks: bool) -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        subscription = {"name": "d", "durable": True} if durable else {}
        consumer = await session.consumer(Topic("t"), **subscription)  # type: ignore[arg-type]
        message = encode_packet(1, flags, consumer.id, sysid=sysid(5))
        broker.send(message)
        await consumer.receive()
        acknowledge = await broker.wait_for_packet(PacketType.ACKNOWLEDGE)
        assert bool(acknowledge.flags & packets.A) is asks
        assert list(decode_blocks(acknowledge.body)) == [(consumer.id, sysid(5))]
        assert acknowledge.properties == {}

    run_scenario(scenario)


def test_client_acknowledge_mode_acks_all_or_one() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        consumer = await session.consumer("q")
        broker.send(*(deliver(consumer.id, n) for n in range(1, 5)))
        messages = [await consumer.receive() for _ in range(3)]
        assert not broker.all(PacketType.ACKNOWLEDGE)
        await messages[1].acknowledge(only=True)
        await messages[0].acknowledge()
        await messages[2].acknowledge()
        acks = [list(decode_blocks(packet.body)) for packet in broker.all(PacketType.ACKNOWLEDGE)]
        cid = consumer.id
        assert acks == [[(cid, sysid(2))], [(cid, sysid(1)), (cid, sysid(3))]]

    broker = run_scenario(scenario)
    deletion = broker.all(PacketType.DELETE_CONSUMER)[0]
    assert (deletion.body, deletion.properties["JMQBodyType"]) == (sysid(3), 3)


def test_dups_ok_mode_acks_every_ten_messages_and_on_close() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(AckMode.DUPS_OK)
        consumer = await session.consumer("q")
        broker.send(*(deliver(consumer.id, n) for n in range(1, 14)))
        for _ in range(13):
            await consumer.receive()
        first = await broker.wait_for_packet(PacketType.ACKNOWLEDGE)
        assert len(list(decode_blocks(first.body))) == 10
        assert not first.flags & packets.A

    broker = run_scenario(scenario)
    assert [len(packet.body) // 40 for packet in broker.all(PacketType.ACKNOWLEDGE)] == [10, 3]
    assert broker.received.index(broker.all(PacketType.ACKNOWLEDGE)[1]) < broker.received.index(
        broker.all(PacketType.DELETE_CONSUMER)[0]
    )


def test_dups_ok_mode_acks_after_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicemq.clients.jmq.request_channel.LAZY_SECONDS", 0.01)

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session(AckMode.DUPS_OK)).consumer("q")
        broker.send(deliver(consumer.id, 1))
        await consumer.receive()
        await broker.wait_for_packet(PacketType.ACKNOWLEDGE)

    run_scenario(scenario)


def test_no_acknowledge_mode_sends_no_acks() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(AckMode.NO_ACK)
        assert broker.all(PacketType.CREATE_SESSION)[0].properties == {"JMQAckMode": 32768}
        consumer = await session.consumer("q")
        broker.send(deliver(consumer.id, 1))
        await consumer.receive()

    assert not run_scenario(scenario).all(PacketType.ACKNOWLEDGE)


def test_expired_message_is_declared_dead() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        consumer, dlq_consumer = await session.consumer("q"), await session.consumer("mq.sys.dmq")
        broker.send(deliver(consumer.id, 1, expiration=1), deliver(consumer.id, 2))
        broker.send(deliver(dlq_consumer.id, 3, expiration=1))
        assert (await consumer.receive()).body == "2"
        acknowledge = broker.all(PacketType.ACKNOWLEDGE)[0]
        assert acknowledge.properties == {"JMQAckType": 2, "JMQDeadReason": 1}
        assert acknowledge.body == encode_blocks([(consumer.id, sysid(1))])
        assert (await dlq_consumer.receive()).body == "3"

    run_scenario(scenario)


def test_cancelled_receive_loses_no_message() -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.type == PacketType.ACKNOWLEDGE and not held_packets:
            held_packets.append(packet)
            return b""
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        with pytest.raises(RequestTimeout):
            await consumer.receive(0)
        broker.send(deliver(consumer.id, 1))
        receiving = asyncio.create_task(consumer.receive())
        await broker.wait_for_packet(PacketType.ACKNOWLEDGE)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert (await consumer.receive(0)).body == "1"
        assert len(broker.all(PacketType.ACKNOWLEDGE)) == 1

    run_scenario(scenario, hold)


def test_cancelled_receive_acknowledges_within_transaction() -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.is_message:
            held_packets.append(packet)
            return b""
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        producer, consumer = await session.producer("r"), await session.consumer("q")
        broker.send(deliver(consumer.id, 1))
        await producer.send("x", wait=False)  # as many as may be unconfirmed
        receiving = asyncio.create_task(consumer.receive())
        await broker.wait_until(lambda: bool(held_packets))
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        broker.send(encode_reply(PacketType.SEND_REPLY, held_packets[0].consumer_id, Status.OK))
        assert (await consumer.receive(5)).body == "1"
        await session.commit()
        assert broker.all(PacketType.ACKNOWLEDGE)[0].body == encode_blocks(
            [(consumer.id, sysid(1))]
        )

    run_scenario(scenario, hold, outstanding=1)


def test_refused_acknowledgement_is_reported() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        broker.send(deliver(consumer.id, 1))
        with pytest.raises(StatusError, match="acknowledge reply: 404 NOT_FOUND"):
            await consumer.receive()

    run_scenario(scenario, refusing(PacketType.ACKNOWLEDGE, 404))


def test_broken_messages_can_be_received_and_acknowledged() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        broker.send(
            deliver(consumer.id, 1, body=b"\xff"),
            deliver(consumer.id, 2, kind=PacketType.MAP_MESSAGE),
            deliver(consumer.id, 3, kind=PacketType.OBJECT_MESSAGE, body=b"\xac\xed\0\x05sr"),
        )
        for _ in range(2):
            message = await consumer.receive()
            with pytest.raises(MessageFormatError):
                assert message.body
        third = (await consumer.receive()).body
        assert isinstance(third, JavaObject)
        with pytest.raises(MessageFormatError):
            assert third.value

    run_scenario(scenario)


# --- requeueing ----------------------------------------------------------------------------------


def test_recover_sends_packets_of_java_client() -> None:
    """Section 7.4: STOP, REDELIVER of undelivered and delivered messages, START, RESUME_FLOW."""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        consumer = await session.consumer("q", prefetch=3)
        broker.send(*(deliver(consumer.id, n, packets.C if n == 3 else 0) for n in range(1, 4)))
        await consumer.receive()
        await session.recover()
        await client.ping()
        session_id = {"JMQSessionID": session.id}
        assert broker.received_since(PacketType.STOP)[:5] == [
            ("STOP", session_id),
            ("REDELIVER", {"JMQSetRedelivered": False}),
            ("REDELIVER", {"JMQSetRedelivered": True}),
            ("START", session_id),
            ("RESUME_FLOW", {"JMQConsumerID": consumer.id, "JMQSize": 3}),
        ]
        unseen_packet, seen_packet = broker.all(PacketType.REDELIVER)
        cid = consumer.id
        assert list(decode_blocks(unseen_packet.body)) == [(cid, sysid(2)), (cid, sysid(3))]
        assert list(decode_blocks(seen_packet.body)) == [(cid, sysid(1))]
        broker.send(deliver(cid, 1, packets.R))
        redelivered = await consumer.receive()
        assert (redelivered.body, redelivered.redelivered, redelivered.delivery_count) == (
            "1",
            True,
            1,
        )

    broker = run_scenario(scenario)
    assert broker.all(PacketType.DELETE_CONSUMER)[0].body == sysid(1)


def test_rollback_sends_packets_of_java_client() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        assert broker.all(PacketType.CREATE_SESSION)[0].block == b""
        transaction = session.transaction
        consumer = await session.consumer("q")
        assert "JMQAckMode" not in broker.all(PacketType.ADD_CONSUMER)[0].properties
        producer = await session.producer("q")
        await producer.send("x", wait=False)
        broker.send(deliver(consumer.id, 1), deliver(consumer.id, 2))
        await consumer.receive()
        acknowledge = await broker.wait_for_packet(PacketType.ACKNOWLEDGE)
        assert acknowledge.flags & packets.A
        assert acknowledge.transaction_id == transaction
        assert broker.all(PacketType.TEXT_MESSAGE)[0].transaction_id == transaction
        await session.rollback()
        assert session.transaction not in (0, transaction)
        assert broker.received_since(PacketType.STOP) == [
            ("STOP", {"JMQSessionID": session.id}),
            ("REDELIVER", {"JMQSetRedelivered": False}),
            ("REDELIVER", {"JMQSetRedelivered": True, "JMQTransactionID": transaction}),
            ("START", {"JMQSessionID": session.id}),
            ("ROLLBACK_TRANSACTION", {"JMQTransactionID": transaction}),
            ("START_TRANSACTION", {"JMQSessionID": session.id}),
        ]
        assert broker.all(PacketType.REDELIVER)[1].transaction_id == transaction
        assert not broker.all(PacketType.ROLLBACK_TRANSACTION)[0].flags & packets.A

    broker = run_scenario(scenario)
    rolled_back = broker.all(PacketType.ROLLBACK_TRANSACTION)[-1]
    assert rolled_back.properties["JMQUpdateConsumed"] is True


def test_commit_begins_next_transaction_and_reports_refused_sends() -> None:
    status = 200

    def answer(packet: Packet) -> bytes | None:
        if packet.is_message:
            return encode_reply(PacketType.SEND_REPLY, packet.consumer_id, status)
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        nonlocal status
        session = await client.session(transacted=True)
        producer = await session.producer("q")
        await producer.send("x", wait=False)
        await session.commit()
        assert len(broker.all(PacketType.START_TRANSACTION)) == 1
        assert session.transaction > 0
        status = 414
        await producer.send("x", wait=False)
        with pytest.raises(StatusError, match="414"):
            await session.commit()
        assert len(broker.all(PacketType.COMMIT_TRANSACTION)) == 1
        await session.rollback()
        with pytest.raises(ValueError, match="rolls back"):
            await session.recover()

    run_scenario(scenario, answer)


def test_global_transactions_send_packets_of_java_client() -> None:
    """Section 10: a branch is identified by its Xid; its transaction id is added if known."""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        xa, producer = session.xa, await session.producer("q")
        xid = Xid(77, b"global", b"branch")
        await xa.start(xid)
        transaction = session.transaction
        await producer.send("in it")
        await xa.end(xid, XaFlag.SUSPEND)
        await producer.send("outside")
        await xa.start(xid, XaFlag.RESUME)
        transaction_again = session.transaction
        await xa.end(xid)
        await xa.prepare(xid)
        await xa.rollback(xid)
        await xa.rollback(xid)
        assert [
            name_and_properties(packet)
            for packet in broker.received
            if packet.body == encode_xid(xid)
        ] == [
            ("START_TRANSACTION", {"JMQXAFlags": 0}),
            ("END_TRANSACTION", {"JMQXAFlags": 0x0200_0000}),
            ("START_TRANSACTION", {"JMQXAFlags": 0x0800_0000}),
            ("END_TRANSACTION", {"JMQXAFlags": 0x0400_0000}),
            ("PREPARE_TRANSACTION", {"JMQTransactionID": transaction_again}),
            (
                "ROLLBACK_TRANSACTION",
                {
                    "JMQTransactionID": transaction_again,
                    "JMQXAFlags": 0,
                    "JMQRedeliver": True,
                },
            ),
            ("ROLLBACK_TRANSACTION", {"JMQXAFlags": 0, "JMQRedeliver": True}),
        ]
        sent = [packet.transaction_id for packet in broker.all(PacketType.TEXT_MESSAGE)]
        assert sent == [transaction, 0]

    run_scenario(scenario)


def name_and_properties(packet: Packet) -> tuple[str, dict[str, Any]]:
    return PacketType(packet.type).name, dict(packet.properties)


def test_nothing_is_delivered_during_recover() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        consumer = await session.consumer("q")
        broker.send(deliver(consumer.id, 1), deliver(consumer.id, 2))
        await consumer.receive()
        stop_packets: list[Packet] = []

        def hold(packet: Packet) -> bytes | None:
            if packet.type == PacketType.STOP and not stop_packets:
                stop_packets.append(packet)
                return b""
            return None

        broker.answer = hold
        recovery = asyncio.create_task(session.recover())
        await broker.wait_for_packet(PacketType.STOP)
        receiving = asyncio.create_task(consumer.receive())
        # messages that arrive before STOP_REPLY are returned, too
        broker.send(deliver(consumer.id, 3), encode_reply(23, stop_packets[0].consumer_id, 200))
        await recovery
        await client.ping()
        assert not receiving.done()
        blocks = decode_blocks(broker.all(PacketType.REDELIVER)[0].body)
        assert [block[1] for block in blocks] == [sysid(2), sysid(3)]
        broker.send(deliver(consumer.id, 1, packets.R))
        assert (await receiving).redelivered

    run_scenario(scenario)


# --- browsing and others -------------------------------------------------------------------------


def test_browse_requests_messages_in_batches() -> None:
    """Section 8: in batches of 1,000 up to the L flag; removed messages are omitted."""
    ids = b"".join(number.to_bytes(32) for number in range(1, 1202))

    def answer(packet: Packet) -> bytes | None:
        match packet.type:
            case PacketType.BROWSE:
                return encode_reply(27, packet.consumer_id, 200, {"JMQConsumerID": Long(5)}, ids)
            case PacketType.DELIVER if len(packet.body) == 32_000:
                requested_ids = [packet.body[:32], packet.body[32:64]]
                sent = [
                    encode_packet(1, packets.L if sysid is requested_ids[-1] else 0, 5, sysid=sysid)
                    for sysid in requested_ids
                ]
                return encode_reply(43, packet.consumer_id, 200) + b"".join(sent)
            case PacketType.DELIVER:
                return encode_reply(43, packet.consumer_id, 404)
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        browser = (await client.session()).browser("q", "a = 1")
        ids = [message.id async for message in browser]
        assert ids == [sysid_text(number.to_bytes(32)) for number in (1, 2)]
        requests = broker.all(PacketType.DELIVER)
        assert [len(packet.body) // 32 for packet in requests] == [1000, 201]
        assert requests[0].properties == {"JMQConsumerID": 5}
        properties = {"JMQDestination": "q", "JMQDestType": 1, "JMQSelector": "a = 1"}
        assert broker.all(PacketType.VERIFY_DESTINATION)[0].properties == properties
        assert broker.all(PacketType.BROWSE)[0].properties == properties

    run_scenario(scenario, answer)


def test_browsing_missing_queue() -> None:
    def answer(packet: Packet) -> bytes | None:
        if packet.type == PacketType.VERIFY_DESTINATION:
            can_create = packet.properties["JMQDestination"] == "maybe"
            return encode_reply(41, packet.consumer_id, 404, {"JMQCanCreate": can_create})
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        assert [message async for message in session.browser("maybe")] == []
        with pytest.raises(StatusError, match="404"):
            assert [message async for message in session.browser("never")] == []

    run_scenario(scenario, answer)


def test_shared_subscription_and_unsubscribe() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        await session.consumer(Topic("t"), name="s", shared=True)
        await session.consumer(Topic("t"), name="d", shared=True, durable=True)
        first, second = (packet.properties for packet in broker.all(PacketType.ADD_CONSUMER))
        assert first["JMQJMSShare"] is second["JMQJMSShare"] is True
        assert (first["JMQSharedSubscriptionName"], second["JMQSharedSubscriptionName"]) == (
            "s",
            "d",
        )
        assert ("JMQDurableName" in first, second["JMQDurableName"]) == (False, "d")
        assert "JMQShare" not in first
        await session.unsubscribe("d")
        deletion = broker.all(PacketType.DELETE_CONSUMER)[0]
        assert (deletion.properties, deletion.body) == ({"JMQDurableName": "d"}, b"")
        for arguments in ({"name": "x"}, {"durable": True}, {"shared": True}):
            with pytest.raises(ValueError, match="name"):
                await session.consumer(Topic("t"), **arguments)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="only a topic"):
            await session.consumer("q", name="x", durable=True)
        with pytest.raises(ValueError, match="prefetch is -1"):
            await session.consumer("q", prefetch=-1)

    run_scenario(scenario)


def test_temporary_queue_of_another_connection_is_not_created() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        queue = await session.temporary_queue()
        topic = await session.temporary_topic()
        await session.producer(queue)
        creations = [packet.properties for packet in broker.all(PacketType.CREATE_DESTINATION)]
        assert creations == [
            {"JMQDestination": queue.name, "JMQDestType": 17},
            {"JMQDestination": topic.name, "JMQDestType": 18},
        ]
        assert re.fullmatch(
            r"temporary_destination://queue/127\.0\.0\.1/\d+/[0-9a-f]{32}", queue.name
        )
        await session.delete(queue)
        deletion = broker.all(PacketType.DESTROY_DESTINATION)[0].properties
        assert deletion == {"JMQDestination": queue.name, "JMQDestType": 17}

    run_scenario(scenario)


def test_refused_reply_queue_leaves_no_session() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        for _ in range(2):
            with pytest.raises(StatusError, match="403"):
                await client.request("q")
        assert len(broker.all(PacketType.DESTROY_SESSION)) == 2

    run_scenario(scenario, refusing(PacketType.CREATE_DESTINATION, 403))


def test_refused_request_does_not_fail_another() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        requests = []
        for number in (1, 2):
            requests.append(asyncio.create_task(client.request("q", "x", persistent=True)))
            await broker.wait_for_packet(PacketType.TEXT_MESSAGE, number)
        ids = [packet.consumer_id for packet in broker.all(PacketType.TEXT_MESSAGE)]
        broker.send(
            encode_reply(PacketType.SEND_REPLY, ids[1], Status.RESOURCE_FULL),
            encode_reply(PacketType.SEND_REPLY, ids[0], Status.OK),
        )
        done, waiting = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        await client.ping()
        assert (done, waiting) == ({requests[1]}, {requests[0]})
        with pytest.raises(StatusError, match="414"):
            await requests[1]
        requests[0].cancel()

    run_scenario(scenario, lambda packet: b"" if packet.is_message else None)

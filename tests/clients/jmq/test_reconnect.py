"""Recovery of sessions, producers and consumers after a connection loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.jmq import (
    AckMode,
    Backoff,
    JmqClient,
    Queue,
    Status,
    StatusError,
    Topic,
    TransactionLost,
    Xid,
)
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import decode_xid, encode_header
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import Packet, encode_packet, encode_reply
from tests.clients.jmq.scripted_broker import (
    SHORT_BACKOFF,
    ScriptedBroker,
    deliver,
    refusing,
    run_scenario,
    sysid,
)
from tests.protocols.sockets import unused_port


def drop(broker: ScriptedBroker) -> None:
    """Abort the most recent connection."""
    broker.connections[-1].transport.abort()


async def wait_for_reconnect(broker: ScriptedBroker, connections: int = 2) -> None:
    """Wait until the client has opened `connections` connections."""
    await broker.wait_until(lambda: len(broker.all(PacketType.START)) == connections)


def test_resources_are_recreated_in_order_of_java_client() -> None:
    """Section 11."""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        other_session = await client.session(transacted=True)
        producer = await session.producer("p")
        consumer = await session.consumer("c")
        queue = await other_session.temporary_queue()
        closed_consumer = await other_session.consumer(queue)
        await closed_consumer.close()
        old_session, old_consumer = session.id, consumer.id
        first_hello = broker.all(PacketType.HELLO)[0]
        assert first_hello.properties["JMQReconnectable"] is True
        assert "JMQConnectionID" not in first_hello.properties
        drop(broker)
        await wait_for_reconnect(broker)
        received_packets = broker.received_since(PacketType.HELLO)
        assert received_packets[0][1]["JMQConnectionID"] == 1000
        assert [name for name, _ in received_packets] == [
            "HELLO", "AUTHENTICATE", "SET_CLIENTID", "CREATE_SESSION", "CREATE_SESSION",
            "START_TRANSACTION", "CREATE_DESTINATION", "CREATE_DESTINATION", "ADD_CONSUMER",
            "CREATE_DESTINATION", "ADD_PRODUCER", "START",
        ]  # fmt: skip
        assert received_packets[6][1] == {"JMQDestination": queue.name, "JMQDestType": 17}
        consumer_properties = received_packets[8][1]
        assert consumer_properties["JMQOldConsumerID"] == old_consumer
        assert consumer_properties["JMQSessionID"] != old_session
        broker.send(deliver(consumer_properties["JMQOldConsumerID"], 1))  # it has another id now
        await producer.send("x")
        broker.send(deliver(consumer.id, 2))
        assert (await consumer.receive()).body == "2"
        sent = broker.all(PacketType.TEXT_MESSAGE)[0]
        assert sent.variable.producer_id > consumer_properties["JMQSessionID"]

    run_scenario(scenario, reconnect=SHORT_BACKOFF, client_id="me")


@pytest.mark.parametrize("has_destination", [True, False])
def test_client_reconnects_if_reply_destination_no_longer_exists(has_destination: bool) -> None:
    reply_to = Queue("temporary_destination://queue/requester/1")

    def refuse(packet: Packet) -> bytes | None:
        if packet.properties.get("JMQDestination") == reply_to.name:
            return encode_reply(packet.type + 1, packet.consumer_id, Status.NOT_FOUND)
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        replier = await session.producer(reply_to if has_destination else None)
        to = None if has_destination else reply_to
        await replier.send("a", to=to)
        producer = await session.producer("q")
        broker.answer = refuse
        drop(broker)
        await wait_for_reconnect(broker)
        await producer.send("b")
        with pytest.raises(StatusError, match="404"):
            await replier.send("c", to=to)

    run_scenario(scenario, reconnect=SHORT_BACKOFF)


@pytest.mark.parametrize("status", [Status.BAD_REQUEST, Status.FORBIDDEN, Status.NOT_FOUND])
def test_client_reconnects_without_refused_consumer(status: int) -> None:
    def refuse(packet: Packet) -> bytes | None:
        refused = packet.type == PacketType.ADD_CONSUMER and "JMQSelector" in packet.properties
        return encode_reply(packet.type + 1, packet.consumer_id, status) if refused else None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        refused_consumer = await session.consumer("q", selector="a = 1")
        consumer = await session.consumer("q")
        broker.answer = refuse
        drop(broker)
        await wait_for_reconnect(broker)
        broker.send(deliver(consumer.id, 1))
        assert (await consumer.receive()).body == "1"
        with pytest.raises(ConnectionLost, match=f"refused on reconnect: .* {status}"):
            await refused_consumer.receive()
        await refused_consumer.close()

    run_scenario(scenario, reconnect=SHORT_BACKOFF)


def test_client_reconnects_if_refused_consumer_is_closed_meanwhile() -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.type != PacketType.ADD_CONSUMER or held_packets:
            return None
        held_packets.append(packet)
        return b""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        broker.answer = hold
        drop(broker)
        await broker.wait_until(lambda: bool(held_packets))
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        refusal = held_packets[0]
        broker.send(encode_reply(refusal.type + 1, refusal.consumer_id, Status.NOT_FOUND))
        assert await client.ping() >= 0
        await closing

    run_scenario(scenario, reconnect=SHORT_BACKOFF, timeout=1)


@pytest.mark.parametrize("transacted", [False, True])
def test_session_that_is_closed_during_reconnect_is_deleted_on_broker(transacted: bool) -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.type != PacketType.CREATE_SESSION or held_packets:
            return None
        held_packets.append(packet)
        return b""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=transacted)
        broker.answer = hold
        drop(broker)
        await broker.wait_until(lambda: bool(held_packets))
        await session.close()
        creation = held_packets[0]
        reply = {"JMQSessionID": Long(7)}
        broker.send(encode_reply(creation.type + 1, creation.consumer_id, Status.OK, reply))
        await client.ping()
        destroyed = [
            packet.properties["JMQSessionID"] for packet in broker.all(PacketType.DESTROY_SESSION)
        ]
        assert destroyed == [7]

    run_scenario(scenario, reconnect=SHORT_BACKOFF, timeout=1)


def test_requests_are_answered_after_reply_queue_was_refused_on_reconnect() -> None:
    statuses = [Status.OK, Status.FORBIDDEN, Status.OK]

    def answer(packet: Packet) -> bytes | None:
        if packet.type == PacketType.ADD_CONSUMER:
            properties = {"JMQConsumerID": Long(7), "JMQSize": 1000}
            return encode_reply(packet.type + 1, packet.consumer_id, statuses.pop(0), properties)
        if packet.is_message:
            header = encode_header("q", packet.variable.correlation_id)
            return encode_packet(packet.type, packets.Q, 7, header=header, sysid=sysid(1))
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        await client.request("q", "x", timeout=5)
        drop(broker)
        await wait_for_reconnect(broker)
        await client.request("q", "x", timeout=1)
        assert len(broker.all(PacketType.DESTROY_SESSION)) == 1

    run_scenario(scenario, answer, reconnect=SHORT_BACKOFF)


def test_pending_requests_fail_and_requests_while_disconnected_wait() -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.is_message and not held_packets:
            held_packets.append(packet)
            return b""
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        producer, consumer = await session.producer("q"), await session.consumer("q")
        broker.send(deliver(consumer.id, 1), deliver(consumer.id, 2))
        message = await consumer.receive()
        sending = asyncio.create_task(producer.send("x"))
        await broker.wait_until(lambda: bool(held_packets))
        drop(broker)
        with pytest.raises(ConnectionLost):
            await sending
        assert await client.ping() >= 0
        assert len(broker.connections) == 2
        # it comes again, so that this is no acknowledgement of anything
        with pytest.raises(ConnectionLost):
            await message.acknowledge()
        broker.send(deliver(consumer.id, 1, packets.R))
        redelivered = await consumer.receive()
        assert redelivered.redelivered
        await redelivered.acknowledge()

    broker = run_scenario(scenario, hold, reconnect=SHORT_BACKOFF)
    assert len(broker.all(PacketType.TEXT_MESSAGE)) == 1
    assert len(broker.all(PacketType.ACKNOWLEDGE)) == 1


def test_open_transaction_is_lost_on_reconnect() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        producer, consumer = await session.producer("q"), await session.consumer("q")
        await producer.send("x")
        drop(broker)
        await wait_for_reconnect(broker)
        # a half of it must not be committed
        with pytest.raises(TransactionLost):
            await producer.send("y")
        broker.send(deliver(consumer.id, 1))
        with pytest.raises(TransactionLost):
            await consumer.receive()
        with pytest.raises(TransactionLost):
            await session.commit()
        assert (await consumer.receive()).body == "1"
        await session.commit()
        drop(broker)
        await wait_for_reconnect(broker, 3)
        await session.commit()  # nothing had been done
        await producer.send("x")
        drop(broker)
        await wait_for_reconnect(broker, 4)
        await session.rollback()
        await producer.send("y")
        await session.commit()

    broker = run_scenario(scenario, reconnect=SHORT_BACKOFF)
    assert [packet.body for packet in broker.all(PacketType.TEXT_MESSAGE)] == [b"x", b"x", b"y"]


def test_transaction_is_not_lost_if_connection_ends_with_reply_to_commit() -> None:
    def end(packet: Packet) -> bytes | None:
        if packet.type != PacketType.COMMIT_TRANSACTION:
            return None
        reply = encode_reply(
            packet.type + 1, packet.consumer_id, Status.OK, {"JMQNextTransactionID": Long(9)}
        )
        return reply + encode_packet(PacketType.GOODBYE, properties={"JMQExit": False})

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        producer = await session.producer("q")
        await producer.send("x")
        await session.commit()
        await wait_for_reconnect(broker)
        await producer.send("y")
        await session.commit()

    run_scenario(scenario, end, reconnect=SHORT_BACKOFF)


def test_sends_that_lost_transaction_refuses_use_no_credit() -> None:
    def allow_two(packet: Packet) -> bytes | None:
        if packet.type != PacketType.ADD_PRODUCER:
            return None
        reply = {"JMQProducerID": Long(5), "JMQSize": 2}
        return encode_reply(PacketType.ADD_PRODUCER_REPLY, packet.consumer_id, Status.OK, reply)

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        producer = await session.producer("q")
        await producer.send("x")
        drop(broker)
        await wait_for_reconnect(broker)
        for _ in range(3):
            with pytest.raises(TransactionLost):
                await producer.send("y")
        await session.rollback()
        await producer.send("y")

    run_scenario(scenario, allow_two, reconnect=SHORT_BACKOFF, timeout=1)


def test_sends_of_lost_transaction_do_not_fail_next_commit() -> None:
    held_packets: list[Packet] = []

    def hold(packet: Packet) -> bytes | None:
        if packet.is_message and not held_packets:
            held_packets.append(packet)
            return b""
        return None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        producer = await session.producer("q")
        await producer.send("x", wait=False)
        await broker.wait_until(lambda: bool(held_packets))
        drop(broker)
        await wait_for_reconnect(broker)
        with pytest.raises(TransactionLost):
            await session.commit()
        await producer.send("y")
        await session.commit()

    broker = run_scenario(scenario, hold, reconnect=SHORT_BACKOFF)
    assert len(broker.all(PacketType.COMMIT_TRANSACTION)) == 1


def test_global_transaction_is_identified_by_its_xid_after_reconnect() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer("q")
        first, second = Xid(1, b"t", b"1"), Xid(1, b"t", b"2")
        await session.xa.start(first)
        await session.xa.end(first)
        await session.xa.prepare(first)
        assert broker.all(PacketType.PREPARE_TRANSACTION)[0].properties.keys() == {
            "JMQTransactionID"
        }
        await session.xa.start(second)
        await producer.send("x")
        drop(broker)
        await wait_for_reconnect(broker)
        with pytest.raises(TransactionLost):
            await producer.send("y")
        await session.xa.end(second)
        await producer.send("z")  # in no transaction
        assert broker.all(PacketType.TEXT_MESSAGE)[-1].transaction_id == 0
        await session.xa.commit(first)
        committed = broker.all(PacketType.COMMIT_TRANSACTION)[0]
        assert committed.properties == {"JMQXAFlags": 0}
        assert decode_xid(committed.body) == first

    run_scenario(scenario, reconnect=SHORT_BACKOFF)


def test_start_of_global_transaction_fails_if_connection_ends_with_its_reply() -> None:
    def end(packet: Packet) -> bytes | None:
        if packet.type != PacketType.START_TRANSACTION:
            return None
        reply = encode_reply(
            packet.type + 1, packet.consumer_id, Status.OK, {"JMQTransactionID": Long(9)}
        )
        return reply + encode_packet(PacketType.GOODBYE, properties={"JMQExit": False})

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer("q")
        with pytest.raises(ConnectionLost):
            await session.xa.start(Xid(1, b"t", b"1"))
        await wait_for_reconnect(broker)
        await producer.send("x")
        assert broker.all(PacketType.TEXT_MESSAGE)[0].transaction_id == 0

    run_scenario(scenario, end, reconnect=SHORT_BACKOFF)


def test_nothing_is_sent_outside_of_lost_global_transaction() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer("q")
        xid = Xid(1, b"t", b"1")
        await session.xa.start(xid)
        drop(broker)
        await wait_for_reconnect(broker)
        with pytest.raises(TransactionLost, match="end it"):
            await producer.send("x")
        await session.xa.end(xid)
        await producer.send("y")
        assert [packet.body for packet in broker.all(PacketType.TEXT_MESSAGE)] == [b"y"]

    run_scenario(scenario, reconnect=SHORT_BACKOFF)


def test_unconfirmed_acknowledgement_does_not_hide_its_message() -> None:
    def hang_up(packet: Packet) -> bytes | None:
        return b"" if packet.type == PacketType.ACKNOWLEDGE else None

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        broker.send(deliver(consumer.id, 1))
        receiving = asyncio.create_task(consumer.receive())
        await broker.wait_for_packet(PacketType.ACKNOWLEDGE)
        drop(broker)
        assert (await receiving).body == "1"

    run_scenario(scenario, hang_up, reconnect=SHORT_BACKOFF)


@pytest.mark.parametrize("reconnect", [None, Backoff(60)])
@pytest.mark.parametrize("status", [0, Status.FORBIDDEN])
def test_closing_reports_unconfirmed_messages_of_lost_connection(
    reconnect: Backoff | None, status: int
) -> None:
    def answer(packet: Packet) -> bytes | None:
        if not packet.is_message:
            return None
        return encode_reply(PacketType.SEND_REPLY, packet.consumer_id, status) if status else b""

    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        session, transacted = await client.session(), await client.session(transacted=True)
        for sender in (session, transacted):
            await (await sender.producer("q")).send("x", wait=False)
        await client.ping()
        drop(broker)
        while client._connection is not None:
            await asyncio.sleep(0.001)
        with pytest.raises(StatusError if status else ConnectionLost):
            await client.close()
        await client.close()

    run_scenario(scenario, answer, reconnect=reconnect)


def test_client_reconnects_after_goodbye_of_restarting_broker() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        properties = {"JMQExit": False, "JMQGoodbyeReason": 1, "JMQGoodbyeReasonString": "later"}
        broker.send(encode_packet(PacketType.GOODBYE, properties=properties))
        await wait_for_reconnect(broker)
        broker.send(deliver(consumer.id, 1))
        await consumer.receive()

    run_scenario(scenario, reconnect=SHORT_BACKOFF)


def test_client_gives_up_after_max_attempts() -> None:
    async def scenario(broker: ScriptedBroker, client: JmqClient) -> None:
        consumer = await (await client.session()).consumer("q")
        broker.answer = refusing(PacketType.ADD_CONSUMER, Status.CONFLICT)
        drop(broker)
        with pytest.raises(ConnectionLost, match="gave up after 2 attempts: add consumer"):
            await consumer.receive()
        assert len(broker.connections) == 3

    run_scenario(scenario, reconnect=Backoff(0.01, 0.01, 2))


def test_hosts_are_tried_in_turn() -> None:
    async def main() -> None:
        broker = ScriptedBroker()
        async with broker.listen() as port:
            hosts = [("127.0.0.1", unused_port()), ("127.0.0.1", port)]
            async with await JmqClient.connect(hosts=hosts, direct=True) as client:
                await client.ping()
            broker.answer = refusing(PacketType.HELLO, Status.UNAVAILABLE)
            with pytest.raises(StatusError, match="503"):
                await JmqClient.connect(hosts=hosts, direct=True)

    asyncio.run(main())


def test_client_survives_killed_broker(tmp_path: Path) -> None:
    """No confirmed message is lost, and waiting calls continue."""

    async def main(broker: LocalBroker, port: int) -> None:
        async with (
            await JmqClient.connect(port=port, client_id="me", reconnect=SHORT_BACKOFF) as client,
            asyncio.timeout(60),
        ):
            session = await client.session(AckMode.CLIENT)
            producer = await session.producer(Topic("t"))
            consumer = await session.consumer(Topic("t"), name="d", durable=True)
            await producer.send_all(f"{number}" for number in range(100))
            for _ in range(50):
                message = await consumer.receive()
            await message.acknowledge()
            await consumer.receive()  # not acknowledged
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, broker.kill)
            receiving = asyncio.create_task(consumer.receive())
            await loop.run_in_executor(None, broker.start)
            bodies = [(await receiving).body]
            await producer.send("after")
            while bodies[-1] != "after":
                bodies.append((message := await consumer.receive()).body)
            assert bodies == [f"{number}" for number in range(50, 100)] + ["after"]
            await message.acknowledge()
            await consumer.close()
            await session.unsubscribe("d")

    port = unused_port()
    with LocalBroker(tmp_path / "data", [f"jmq://127.0.0.1:{port}"]) as broker:
        asyncio.run(main(broker, port))

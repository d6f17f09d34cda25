"""JMQ: messages in transactions, for `compare.py`."""

from __future__ import annotations

import select

from benchmarks.load.jmq import GuestChannel, Jmq
from benchmarks.load.meter import Meter
from benchmarks.load.result import TransferResult
from benchmarks.load.server import BenchmarkBroker
from benchmarks.load.sockets import receive, wait

from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.packets import A, PacketType, Status
from sluicemq.protocols.jmq.wire import Decoder, Packet, encode_packet

READ = 1 << 18
TIMESTAMP_AT = 20
TRANSACTION_AT = 76


def transactions(server: BenchmarkBroker, *, messages: int, size: int, each: int) -> TransferResult:
    """Measure consecutive transactions of `each` messages; committed messages are received."""
    messages -= messages % each
    client_dialect = Jmq(size, queue=server.queue)
    with server.target.connect() as producer, server.target.connect() as receiving:
        consumer = client_dialect.receiver(receiving)
        consumer.handshake()
        channel = GuestChannel(producer)
        session = channel.request(PacketType.CREATE_SESSION).properties["JMQSessionID"]
        reply = channel.request(
            PacketType.START_TRANSACTION, {"JMQSessionID": Long(int(session or 0))}
        )
        transaction = int(reply.properties["JMQTransactionID"] or 0)
        sample = [
            client_dialect.message(number, bytes(size), transaction=1) for number in range(each)
        ]
        block, stride = bytearray(b"".join(sample)), len(sample[0])
        consumer.start()
        poll = select.epoll()
        for connection in (producer, receiving):
            poll.register(connection, select.EPOLLIN)
        decoder = Decoder()
        sent = received = 0
        under_way = False
        meter = Meter(server.pid)
        while received < messages:
            if not under_way and sent < messages:
                number, name = sent.to_bytes(8), transaction.to_bytes(8)
                for position in range(0, len(block), stride):
                    block[position + TIMESTAMP_AT : position + TIMESTAMP_AT + 8] = number
                    block[position + TRANSACTION_AT : position + TRANSACTION_AT + 8] = name
                producer.sendall(block + _commit(transaction))
                sent += each
                under_way = True
            for descriptor, _ in wait(poll):
                if descriptor == receiving.fileno():
                    received += consumer.read()
                    continue
                for packet in decoder.feed(receive(producer, READ)):
                    assert type(packet) is Packet
                    assert packet.properties["JMQStatus"] == Status.OK, packet.properties
                    if packet.type == PacketType.COMMIT_TRANSACTION_REPLY:
                        transaction = int(packet.properties["JMQNextTransactionID"] or 0)
                        under_way = False
        poll.close()
        return meter.read(received)


def _commit(transaction: int) -> bytes:
    properties = {"JMQTransactionID": Long(transaction), "JMQStartNextTransaction": True}
    return encode_packet(PacketType.COMMIT_TRANSACTION, A, -1, properties)

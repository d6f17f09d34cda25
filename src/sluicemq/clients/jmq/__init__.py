"""JMQ client.

    async with await JmqClient.connect("127.0.0.1", 7676) as client:
        session = await client.session()
        producer = await session.producer("orders")
        await producer.send({"pizza": "margherita", "count": 2}, properties={"city": "Oslo"})
        async for message in await session.consumer("orders", selector="city = 'Oslo'"):
            print(message.body)

    async with await JmqClient.open("jmq://127.0.0.1") as client:
        session = await client.session(transacted=True)
        await (await session.producer(Topic("news"))).send("hello")
        await session.commit()

The client follows the JMS API with Python names: a client is a started JMS connection. A
destination is an `Address`, made by `Queue` or `Topic`, or the name of a queue. `messages` maps
Python values to message types; `StatusError.status` is the status code of the broker's reply.

`JmqClient` reconnects automatically: it tries its hosts in turn and recreates its sessions,
temporary destinations, consumers and producers. A consumer that the broker refuses for good then,
with status 400, 403 or 404, raises ConnectionLost. The broker redelivers unacked messages. Requests
without a reply fail with ConnectionLost and are never retried, because the broker may have
processed them; requests made while disconnected wait for the new connection. An open transaction
fails with TransactionLost; the next one begins after `rollback`, or with the `commit` that raises.
In a global transaction, sends and receives raise TransactionLost until `XaResource.end`.
"""

from __future__ import annotations

from sluicemq.clients.jmq.connection import JmqClient
from sluicemq.clients.jmq.consumer import Browser, Consumer, JmqMessage
from sluicemq.clients.jmq.messages import (
    JavaObject,
    Message,
    MessageFormatError,
    Queue,
    Topic,
)
from sluicemq.clients.jmq.producer import Producer
from sluicemq.clients.jmq.request_channel import StatusError, TransactionLost
from sluicemq.clients.jmq.session import Session, XaResource
from sluicemq.clients.transport import ALWAYS, Backoff
from sluicemq.model.destination import Address
from sluicemq.protocols.java import Byte, Char, Float, Long, Short
from sluicemq.protocols.jmq.fields import Xid
from sluicemq.protocols.jmq.packets import AckMode, PacketType, Status, XaFlag

__all__ = [
    "ALWAYS",
    "AckMode",
    "Address",
    "Backoff",
    "Browser",
    "Byte",
    "Char",
    "Consumer",
    "Float",
    "JavaObject",
    "JmqClient",
    "JmqMessage",
    "Long",
    "Message",
    "MessageFormatError",
    "PacketType",
    "Producer",
    "Queue",
    "Session",
    "Short",
    "Status",
    "StatusError",
    "Topic",
    "TransactionLost",
    "XaFlag",
    "XaResource",
    "Xid",
]

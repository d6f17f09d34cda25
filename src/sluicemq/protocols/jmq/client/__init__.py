"""JMQ clients: one for asyncio, one that blocks. Public.

    async with await JmqClient.connect("127.0.0.1", 7676) as client:
        session = await client.session()
        producer = await session.producer("orders")
        await producer.send({"pizza": "margherita", "count": 2}, properties={"city": "Oslo"})
        async for message in await session.consumer("orders", selector="city = 'Oslo'"):
            print(message.body)

    with BlockingJmqClient.connect("127.0.0.1", 7676) as client:
        session = client.session(transacted=True)
        session.producer(Topic("news")).send("hello")
        session.commit()

They do what a JMS client does, under Python's names: a client is a JMS connection, and it is
started. A destination is a `Queue`, a `Topic`, or a name, which means a queue. `messages` tells
what bodies are in Python; `Refused.status` is what the broker says of what it does not do.

`JmqClient` connects again when its connection breaks, by itself: it tries its hosts in turn and
makes its sessions, temporary destinations, consumers and producers anew. What was received and not
acknowledged comes again. What was not answered fails with ConnectionLost and is never repeated,
because the broker may have done it; what is asked meanwhile waits for the new connection. A
transaction that was under way fails with TransactionLost, and the next one begins after `rollback`
or with the `commit` that tells it.
"""

from __future__ import annotations

from sluicemq.protocols.client_transport import ALWAYS, Backoff
from sluicemq.protocols.java import Byte, Char, Float, Long, Short
from sluicemq.protocols.jmq.client.blocking import (
    BlockingBrowser,
    BlockingConsumer,
    BlockingJmqClient,
    BlockingJmqMessage,
    BlockingProducer,
    BlockingSession,
    BlockingXaResource,
)
from sluicemq.protocols.jmq.client.browser import Browser
from sluicemq.protocols.jmq.client.connection import JmqClient
from sluicemq.protocols.jmq.client.consumer import Consumer, JmqMessage
from sluicemq.protocols.jmq.client.destinations import (
    Destination,
    Queue,
    TemporaryQueue,
    TemporaryTopic,
    Topic,
)
from sluicemq.protocols.jmq.client.messages import JavaObject, Message, MessageFormatError
from sluicemq.protocols.jmq.client.producer import Producer
from sluicemq.protocols.jmq.client.request_channel import Refused
from sluicemq.protocols.jmq.client.session import Session, TransactionLost
from sluicemq.protocols.jmq.client.xa import XaResource
from sluicemq.protocols.jmq.ids import Xid
from sluicemq.protocols.jmq.packets import AckMode, PacketType, Status, XaFlag

__all__ = [
    "ALWAYS",
    "AckMode",
    "Backoff",
    "BlockingBrowser",
    "BlockingConsumer",
    "BlockingJmqClient",
    "BlockingJmqMessage",
    "BlockingProducer",
    "BlockingSession",
    "BlockingXaResource",
    "Browser",
    "Byte",
    "Char",
    "Consumer",
    "Destination",
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
    "Refused",
    "Session",
    "Short",
    "Status",
    "TemporaryQueue",
    "TemporaryTopic",
    "Topic",
    "TransactionLost",
    "XaFlag",
    "XaResource",
    "Xid",
]

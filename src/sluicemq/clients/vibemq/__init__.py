"""VibeMQ client.

    async with await VibeMQClient.connect("127.0.0.1", 2925) as client:
        await client.publish("orders", {"pizza": 1}, {"priority": "High"})
        async with await client.subscribe("orders") as messages:
            async for message in messages:
                print(message.json())
                await message.ack()

A payload is any value that msgspec can encode as JSON; encoded JSON is passed as `msgspec.Raw`.
`publish` returns once the broker has confirmed the message.

The protocol has no command to reject a message. The broker redelivers an unacked message when its
acknowledgement timeout expires, or when its subscription or the connection ends, as often as the
queue allows; then it dead-letters it. To requeue a message, do not acknowledge it.

The protocol has no credit either: the broker decides how many unacked messages it sends. A client
with `prefetch` received messages stops reading until the application takes one, except while it
waits for a response.

`VibeMQClient` reconnects when its connection breaks: it tries its hosts in turn, declares its
queues again and restores its subscriptions. The broker redelivers unacked messages. A request
without a response fails with ConnectionLost and is never repeated, because the broker may have
processed it; a request made meanwhile waits for the new connection.
"""

from __future__ import annotations

from sluicemq.clients.transport import ALWAYS, Backoff
from sluicemq.clients.vibemq.client import Subscription, VibeMQClient, VibeMQMessage
from sluicemq.clients.vibemq.commands import (
    ABSENT,
    CommandRefused,
    Conflict,
    Declaration,
    QueueInfo,
)
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.queues import Mode, QueueOptions, Strategy

__all__ = [
    "ABSENT",
    "ALWAYS",
    "Backoff",
    "CommandRefused",
    "Compression",
    "Conflict",
    "Declaration",
    "Mode",
    "QueueInfo",
    "QueueOptions",
    "Strategy",
    "Subscription",
    "VibeMQClient",
    "VibeMQMessage",
]

"""Destination classes of the client API. Public through `client`.

A plain `str` names a queue.
"""

from __future__ import annotations

import secrets
from typing import Final

from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.jmq.fields import (
    QUEUE_CLASS,
    TEMPORARY_QUEUE,
    TEMPORARY_QUEUE_CLASS,
    TEMPORARY_TOPIC,
    TEMPORARY_TOPIC_CLASS,
    TOPIC_CLASS,
)
from sluicemq.protocols.jmq.packets import DestType

DEAD_MESSAGES: Final = "mq.sys.dmq"
"""Name of the dead message queue."""


class Destination:
    """Queue or topic, possibly temporary. Creating the object does not contact the broker.
    Hashable."""

    __slots__ = ("name",)

    type: int = 0
    """JMQDestType."""
    java_class: str = ""
    """Java class name, sent with messages (section 9.4)."""

    def __init__(self, name: str) -> None:
        """`name` is one or more Java identifiers joined by `.`; a topic name may contain the
        wildcards `*`, `**` and `>`. The broker refuses invalid names."""
        if not name:
            raise ValueError("a destination has a name")
        self.name = name

    @property
    def is_queue(self) -> bool:
        return bool(self.type & DestType.QUEUE)

    @property
    def is_temporary(self) -> bool:
        return bool(self.type & DestType.TEMP)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Destination)
            and other.name == self.name
            and other.is_queue == self.is_queue
        )

    def __hash__(self) -> int:
        return hash((self.name, self.is_queue))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Queue(Destination):
    """Destination that delivers each message to one consumer."""

    __slots__ = ()
    type = DestType.QUEUE
    java_class = QUEUE_CLASS


class Topic(Destination):
    """Destination that delivers each message to every subscription."""

    __slots__ = ()
    type = DestType.TOPIC
    java_class = TOPIC_CLASS


class TemporaryQueue(Queue):
    """Temporary queue: any connection may send to it, only its creator may receive.

    Made by `Session.temporary_queue`.
    """

    __slots__ = ()
    type = DestType.QUEUE | DestType.TEMP
    java_class = TEMPORARY_QUEUE_CLASS


class TemporaryTopic(Topic):
    """Temporary topic. Made by `Session.temporary_topic`."""

    __slots__ = ()
    type = DestType.TOPIC | DestType.TEMP
    java_class = TEMPORARY_TOPIC_CLASS


def named(name: str | Destination) -> Destination:
    """Return the destination; a plain name becomes a queue."""
    return Queue(name) if isinstance(name, str) else name


def temporary_name(queue: bool, origin: str, port: int) -> str:
    """Make a name for a temporary destination, in the form that the Java client uses (section 6).

    The name ends with 128 random bits instead of the Java client's number, so that only clients
    that receive the name can send to the destination.
    """
    prefix = TEMPORARY_QUEUE if queue else TEMPORARY_TOPIC
    return f"{prefix}{origin}/{port}/{secrets.token_hex(16)}"


def destination(address: Address) -> Destination:
    """Return the client-side destination for an address in a message."""
    kind, name = address
    temporary = name.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC))
    if kind is Kind.QUEUE:
        return TemporaryQueue(name) if temporary else Queue(name)
    return TemporaryTopic(name) if temporary else Topic(name)

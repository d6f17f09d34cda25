"""Destinations as an application names them. Public through `client`.

A name alone, a `str`, means a queue.
"""

from __future__ import annotations

import secrets
from typing import Final

from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.jmq.header import (
    QUEUE_CLASS,
    TEMPORARY_QUEUE,
    TEMPORARY_QUEUE_CLASS,
    TEMPORARY_TOPIC,
    TEMPORARY_TOPIC_CLASS,
    TOPIC_CLASS,
)
from sluicemq.protocols.jmq.packets import DestType

DEAD_MESSAGES: Final = "mq.sys.dmq"
"""The queue of dead messages."""


class Destination:
    """A queue or a topic, perhaps a temporary one; of no effect by itself. Hashable."""

    __slots__ = ("name",)

    type: int = 0
    """JMQDestType."""
    java_class: str = ""
    """What the Java client calls it; carried along by messages (section 9.4)."""

    def __init__(self, name: str) -> None:
        """`name` is a Java identifier, parts of which may be joined by `.`; a topic's may have the
        wildcards `*`, `**` and `>`. What the broker does not take it refuses."""
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
    """One of its consumers gets a message."""

    __slots__ = ()
    type = DestType.QUEUE
    java_class = QUEUE_CLASS


class Topic(Destination):
    """Each of its subscriptions gets a message."""

    __slots__ = ()
    type = DestType.TOPIC
    java_class = TOPIC_CLASS


class TemporaryQueue(Queue):
    """Made by `Session.temporary_queue`: any connection may send to it, only that one receive."""

    __slots__ = ()
    type = DestType.QUEUE | DestType.TEMP
    java_class = TEMPORARY_QUEUE_CLASS


class TemporaryTopic(Topic):
    """Made by `Session.temporary_topic`."""

    __slots__ = ()
    type = DestType.TOPIC | DestType.TEMP
    java_class = TEMPORARY_TOPIC_CLASS


def named(name: str | Destination) -> Destination:
    """What a caller gives: a name means a queue."""
    return Queue(name) if isinstance(name, str) else name


def temporary_name(queue: bool, origin: str, port: int) -> str:
    """Make a name for a temporary destination, in the form that the Java client uses (section 6).

    In place of the Java client's number it ends with 128 random bits, so that only who is given the
    name can send there.
    """
    prefix = TEMPORARY_QUEUE if queue else TEMPORARY_TOPIC
    return f"{prefix}{origin}/{port}/{secrets.token_hex(16)}"


def destination(address: Address) -> Destination:
    """What a message names, as an application sees it."""
    kind, name = address
    temporary = name.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC))
    if kind is Kind.QUEUE:
        return TemporaryQueue(name) if temporary else Queue(name)
    return TemporaryTopic(name) if temporary else Topic(name)

"""Access to the value of an identifier in a message.

Header fields follow JMS 1.1 section 3.8.1.1: six of them may be used. JMSMessageID,
JMSCorrelationID and JMSType are NULL if the message has none. Every other identifier is a property;
names that begin with JMS must begin with JMSX or JMS_. A property that does not exist, or has bytes
for a value, is NULL. `content_HYPHEN_type` is also the header `content-type` of another protocol
(model/identifiers.py). A dead letter has Open MQ's properties, JMS_SUN_DMQ_..., which are derived
(model/dead_letters.py).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from sluicemq.broker.selectors.nodes import Value
from sluicemq.model.dead_letters import DMQ_PROPERTIES, dmq_property
from sluicemq.model.identifiers import from_identifier

if TYPE_CHECKING:
    from sluicemq.model.message import Message

Read = Callable[["Message"], Value]


HEADER: Final[dict[str, Read]] = {
    "JMSDeliveryMode": lambda message: (
        "PERSISTENT" if message.durability.survives else "NON_PERSISTENT"
    ),
    "JMSPriority": attrgetter("priority"),
    "JMSTimestamp": attrgetter("timestamp"),
    "JMSMessageID": lambda message: message.message_id or None,
    "JMSCorrelationID": lambda message: message.correlation_id or None,
    "JMSType": lambda message: message.type or None,
}


def reserved(name: str) -> bool:
    """Return whether the name is reserved by JMS and not permitted in selectors."""
    return name.startswith("JMS") and not (name in HEADER or name.startswith(("JMSX", "JMS_")))


def reader(name: str) -> Read:
    """Return a function that reads the field or property of that name."""
    if name in DMQ_PROPERTIES:
        return _dead_letter_property(name)
    return HEADER.get(name) or _property(name)


def is_field(name: str) -> bool:
    """Return whether reading the name takes more than a lookup of one property."""
    return name in HEADER or name in DMQ_PROPERTIES or from_identifier(name) != name


def _dead_letter_property(name: str) -> Read:
    def read(message: Message) -> Value:
        value = dmq_property(message.properties, name)
        return None if isinstance(value, bytes) else value

    return read


def _property(name: str) -> Read:
    foreign = from_identifier(name)
    if foreign != name:
        return _either(name, foreign)

    def read(message: Message) -> Value:
        properties = message.properties
        if properties is None:
            return None
        value = properties.get(name)
        return None if isinstance(value, bytes) else value

    return read


def _either(name: str, foreign: str) -> Read:
    def read(message: Message) -> Value:
        properties = message.properties
        if properties is None:
            return None
        value = properties.get(name, properties.get(foreign))
        return None if isinstance(value, bytes) else value

    return read

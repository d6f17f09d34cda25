"""INFO_REQUEST: information about the broker and its cluster (protocol specification, section
9.3)."""

from __future__ import annotations

from typing import Final

from sluicemq.protocols.java import dumps_map
from sluicemq.protocols.jmq.connection import JmqConnection, number
from sluicemq.protocols.jmq.packets import RejectedRequest, Status
from sluicemq.protocols.jmq.wire import Packet

STATUS: Final = 1
CLUSTER: Final = 2
CONSUMERS: Final = 3
"""JMQRequestType. CONSUMERS (notifications of added and removed consumers) is not supported."""

_OPERATING: Final = 1


def reply_info(connection: JmqConnection, packet: Packet) -> None:
    """Answer with INFO. Raises Refused."""
    requested = number(packet, "JMQRequestType")
    properties: dict[str, object] = {"JMQRequestType": requested}
    broker_list = connection.options.broker_list
    if broker_list:
        properties["JMQBrokerList"] = broker_list
    name = connection.broker.identity.hex()
    about: dict[str, object] = {
        "BrokerID": name,
        "brokerURL": broker_list.partition(",")[0],
        "State": _OPERATING,
        "StateString": "OPERATING",
        "isLocal": True,
    }
    if requested == CLUSTER:
        about = {name: about, "BrokerIDs": name}
    elif requested == CONSUMERS:
        why = "news of consumers (JMQRequestType 3) is not available"
        raise RejectedRequest(Status.NOT_IMPLEMENTED, why, properties)
    elif requested != STATUS:
        why = f"JMQRequestType {requested} is unknown; use 1 (this broker) or 2 (cluster)"
        raise RejectedRequest(Status.BAD_REQUEST, why, properties)
    connection.reply(packet, properties=properties, body=dumps_map(about, hashtable=True))

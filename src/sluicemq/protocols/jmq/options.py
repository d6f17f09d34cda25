"""What a listener says about its JMQ connections."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sluicemq.model.message import Durability
from sluicemq.protocols.jmq.wire import MAX_PACKET

MISSED_PINGS: Final = 6
"""Pings without a sign of life after which a connection is given up."""


class Options(NamedTuple):
    """The defaults are Open MQ's where it has them (protocol specification, sections 5 to 7).

    durability           of all messages; None = persistent ones SYNC, the others NONE
    packet               bytes of the largest packet
    login_bytes          the same before the login
    authentication       what clients are asked for; "digest" needs users that have such a form
    service              JMQService: "jms", or "ssljms" with TLS
    broker_list          JMQBrokerList: URLs of the brokers that a client may go to instead, as
                         mq://host:port/, separated by commas; "" = not sent
    prefetch             messages a consumer is sent before it asks for more, at most
    shared_prefetch      the same for consumers that share a subscription of a topic
    held                 messages that a consumer may have without acknowledging them: more are not
                         sent, however much it asks for
    producer_flow        messages after which a producer waits for RESUME_FLOW; 0 = never
    connection_flow      heed what a client says about messages to its whole connection
    most                 sessions, producers, consumers or transactions of a connection, of each;
                         also transactions of a user without a connection
    browsed              messages of a queue that BROWSE lists, at most
    ping_interval        seconds after which an idle client is pinged; 0 = never
    transaction_timeout  ms after its first message or acknowledgement until a transaction that is
                         not prepared is rolled back; 0 = never
    detached_timeout     ms without a connection until a transaction that is not prepared is rolled
                         back; 0 = never
    refusal              why HELLO is answered with 503 UNAVAILABLE; "" = it is not
    """

    durability: Durability | None = None
    packet: int = MAX_PACKET
    login_bytes: int = 64 * 1024
    authentication: Literal["basic", "digest"] = "digest"
    service: str = "jms"
    broker_list: str = ""
    prefetch: int = 1000
    shared_prefetch: int = 5
    held: int = 100_000
    producer_flow: int = 1000
    connection_flow: bool = True
    most: int = 10_000
    browsed: int = 1_000_000
    ping_interval: float = 120.0
    transaction_timeout: int = 0
    detached_timeout: int = 600_000
    refusal: str = ""

"""Listener options of JMQ connections."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sluicemq.model.message import Durability
from sluicemq.protocols.jmq.wire import MAX_PACKET

MISSED_PINGS: Final = 6
"""Number of consecutive unanswered pings after which the session closes the connection."""


class SessionOptions(NamedTuple):
    """Options of a JMQ listener.

    Defaults follow Open MQ where it has the option (protocol specification, sections 5 to 7).

    durability           of all messages; None = SYNC for persistent messages, NONE for others
    packet               maximum packet size in bytes
    login_bytes          maximum packet size before the login, in bytes
    authentication       login type requested; "digest" requires users with a digest password
    service              JMQService: "jms", or "ssljms" with TLS
    broker_list          JMQBrokerList: URLs of alternative brokers as mq://host:port/, separated
                         by commas; "" = not sent
    prefetch             maximum number of messages sent to a consumer before it requests more
    shared_prefetch      the same for consumers of a shared topic subscription
    held                 maximum number of unacked messages per consumer, regardless of its credit
    producer_flow        messages after which a producer waits for RESUME_FLOW; 0 = never
    connection_flow      apply the flow limit that a client sets for its whole connection
    most                 maximum number of sessions, of producers, of consumers and of transactions
                         per connection; also of transactions of a user without a connection
    browsed              maximum number of messages that BROWSE lists
    ping_interval        idle seconds before the broker pings a client; 0 = never
    transaction_timeout  ms from its first message or acknowledgement until the broker rolls back
                         an unprepared transaction; 0 = never
    detached_timeout     ms without a connection until the broker rolls back an unprepared
                         transaction; 0 = never
    refusal              reason for answering HELLO with 503 UNAVAILABLE; "" = accept
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

"""How a connection begins: HELLO says who speaks what, and AUTHENTICATE who it is.

    client  HELLO                                  broker  HELLO_REPLY, AUTHENTICATE_REQUEST
    client  AUTHENTICATE: user, password or digest  broker  AUTHENTICATE_REPLY

Any level from 100 on is answered with OK, and spoken up to 500; clients that ask for more could not
all ask again. Refused are, and the connection is closed after that:

    505 BAD_VERSION     a level below 100, or none
    400 BAD_REQUEST     JMQClusterID: this broker is not in a cluster
    415 UNSUPPORTED     JMQDestinationProvider other than Open MQ's own
    503 UNAVAILABLE     too many connections, or (AUTHENTICATE_REPLY) too many logins that wait
    413 INVALID_LOGIN   a wrong user name or password (AUTHENTICATE_REPLY)
    403 FORBIDDEN       a login that is denied without a look at the password: too many have failed
                        before (AUTHENTICATE_REPLY)

A client that asks for a store session (JMQStoreSession), which only brokers of a cluster have, is
told so (404) and may go on. A client that was connected before says JMQConnectionID: if the old
connection of the same user is still there, it is ended. (Protocol specification, section 5.)
"""

from __future__ import annotations

import secrets
from typing import Final

from sluicemq import __version__
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.connection import (
    JmqConnection,
    byte_limit,
    max_packet,
    number,
    text,
    truth,
)
from sluicemq.protocols.jmq.packets import Level, PacketType, RejectedRequest, Status
from sluicemq.protocols.jmq.wire import Packet, encode_packet
from sluicemq.security.access import Credentials

DESTINATION_PROVIDER: Final = "GLASSFISH_MQ"
"""JMQDestinationProvider of clients that want Open MQ's own destinations."""


def answer_hello(connection: JmqConnection, packet: Packet) -> Status:
    """Answer HELLO and return the status: OK and NOT_FOUND let the client log in."""
    options = connection.options
    coordinator = connection.coordinator
    level = _level(packet)
    properties: dict[str, object] = {"JMQVersion": __version__, "JMQService": options.service}
    if level < Level.LOWEST:
        properties["JMQProtocolLevel"] = Level.LOWEST
        properties["JMQReason"] = f"levels {Level.LOWEST} to {Level.HIGHEST} are spoken here"
        connection.reply(packet, Status.BAD_VERSION, properties)
        return Status.BAD_VERSION
    connection.level = min(level, Level.HIGHEST)
    properties["JMQProtocolLevel"] = connection.level
    if options.refusal:
        properties["JMQReason"] = options.refusal
        connection.reply(packet, Status.UNAVAILABLE, properties)
        return Status.UNAVAILABLE
    provider = text(packet, "JMQDestinationProvider")
    if provider and provider != DESTINATION_PROVIDER:
        properties["JMQReason"] = f"JMQDestinationProvider {provider[:80]} is not available here"
        connection.reply(packet, Status.UNSUPPORTED_TYPE, properties)
        return Status.UNSUPPORTED_TYPE
    if text(packet, "JMQClusterID"):
        properties["JMQReason"] = "this broker is not in a cluster"
        connection.reply(packet, Status.BAD_REQUEST, properties)
        return Status.BAD_REQUEST
    status = Status.OK
    store = number(packet, "JMQStoreSession", 0)
    if store:
        status = Status.NOT_FOUND
        properties["JMQReason"] = f"store session {store} is not here"
    outbound = connection.outbound
    outbound.safe = truth(packet, "JMQSafeMode")
    outbound.limit_packets(max_packet(packet))
    if options.connection_flow:
        size = number(packet, "JMQSize", number(packet, "JMQRBufferSize", 0))
        outbound.resume(size, byte_limit(packet))
    properties |= {
        "JMQConnectionID": Long(connection.number),
        "JMQMaxMsgBytes": Long(options.packet),
        "JMQBrokerSessionID": Long(coordinator.session),
        "JMQHA": False,
    }
    if options.broker_list:
        properties["JMQBrokerList"] = options.broker_list
    connection.reply(packet, status, properties)
    return status


def _level(packet: Packet) -> int:
    """0 for what is none."""
    level = packet.properties.get("JMQProtocolLevel")
    return level if isinstance(level, int) and not isinstance(level, bool) else 0


class Challenge:
    """What a client is asked for, once for each login. `before` is the JMQConnectionID that it had
    before, or 0."""

    __slots__ = ("before", "nonce", "way")

    def __init__(self, connection: JmqConnection, before: int) -> None:
        self.way = connection.options.authentication
        self.before = before
        self.nonce = secrets.token_hex(16) if self.way == fields.DIGEST else ""

    def request(self, hello: Packet) -> bytes:
        """AUTHENTICATE_REQUEST, which goes to whoever waits for the answer to HELLO."""
        properties: dict[str, object] = {
            "JMQAuthType": self.way,
            "JMQChallenge": True,
            "JMQSequence": hello.sequence,
            "JMQStatus": Status.OK.value,
        }
        return encode_packet(
            PacketType.AUTHENTICATE_REQUEST,
            consumer_id=hello.consumer_id,
            properties=properties,
            body=self.nonce.encode(),
        )

    def credentials(self, packet: Packet) -> Credentials:
        """Return the credentials in AUTHENTICATE. Refused: INVALID_LOGIN."""
        try:
            given = text(packet, "JMQAuthType") or self.way
            given = fields.PAGE_SPELLINGS.get(given, given)
            if given != self.way:
                raise RejectedRequest(Status.INVALID_LOGIN, f"log in by {self.way}")
            user, secret = fields.read_login(packet.body)
            if self.way == fields.DIGEST:
                return Credentials(user, digest=secret, nonce=self.nonce)
            return Credentials(user, fields.login_password(secret))
        except ProtocolError as error:
            why = f"this is no user name and password: {error}"
            raise RejectedRequest(Status.INVALID_LOGIN, why) from None

    def nothing(self) -> Credentials:
        """For a client that shows nothing that can be read, where nothing needs to be shown."""
        return Credentials(nonce=self.nonce)

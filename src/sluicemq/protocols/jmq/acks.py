"""ACKNOWLEDGE and REDELIVER requests for unacked messages.

A request identifies a message by its consumer and its SysMessageID. The consumer may be closed;
messages that are not unacked there are ignored. A transaction keeps acknowledgements by these
keys so that REDELIVER, which precedes the ROLLBACK, can revoke them. (Protocol specification,
section 7.)

The session sends a requested reply when the acknowledgement is in the journal, so that it survives
the end of this process. The replies to the packets of one read are sent together.
"""

from __future__ import annotations

from typing import Final

from sluicemq.broker import Delivery
from sluicemq.protocols.jmq.connection import JmqConnection, number, truth
from sluicemq.protocols.jmq.consumers import GIVEN_UP, JmsConsumer, reroute
from sluicemq.protocols.jmq.fields import INT_BLOCK, LONG_BLOCK, decode_blocks
from sluicemq.protocols.jmq.packets import (
    A,
    AckType,
    BodyType,
    DeadReason,
    I,
    Level,
    PacketType,
    RejectedRequest,
    Status,
)
from sluicemq.protocols.jmq.wire import Packet, encode_reply

_REPLY: Final = PacketType.ACKNOWLEDGE_REPLY.value
_OK: Final = Status.OK.value


class AckCommands:
    """Handlers of ACKNOWLEDGE and REDELIVER."""

    __slots__ = ("_broker", "_connection", "_consumers", "_pending")

    def __init__(self, connection: JmqConnection) -> None:
        self._connection = connection
        self._pending: list[bytes] = []
        """Replies to the packets of the current read."""
        self._broker = connection.broker
        self._consumers = connection.consumers

    def acknowledge(self, packet: Packet) -> None:
        """Handle ACKNOWLEDGE. Raises Refused.

        With the I bit it is BAD_REQUEST: the session cannot detect a repeated acknowledgement.
        """
        if packet.flags & I:
            raise RejectedRequest(
                Status.BAD_REQUEST, "ACKNOWLEDGE cannot be sent again with the I bit"
            )
        blocks = self._blocks(packet)
        transaction = packet.transaction_id
        if packet.block:
            kind = number(packet, "JMQAckType", AckType.CONSUMED)
            if truth(packet, "JMQValidate"):
                self._validate(transaction, blocks)
                self._connection.reply(packet)
                return
            if kind != AckType.CONSUMED:
                self._give_up(packet, kind, blocks)
                self._connection.reply(packet)
                return
        if transaction:
            self._acknowledge_in(transaction, blocks)
        elif self._consume(blocks) and packet.flags & A:
            self._pending.append(encode_reply(_REPLY, packet.consumer_id, _OK))
            return
        self._connection.reply(packet)

    def _consume(self, blocks: list[tuple[int, bytes]]) -> bool:
        """Acknowledge messages; return whether the journal records it. Raises Refused."""
        consumers = self._consumers
        recorded = False
        for consumer_id, sysid in blocks:
            consumer = consumers.get(consumer_id)
            if consumer is None or not consumer.holds:
                self._find(consumer_id)
                continue
            if consumer.acknowledge(sysid):
                recorded = True
            if consumer.closed:
                self._forget(consumer)
        return recorded

    def confirm(self) -> None:
        """Send the pending replies, after all packets of one read are processed."""
        pending = self._pending
        if pending:
            self._pending = []
            data = b"".join(pending)
            self._broker.when_completed(lambda: self._connection.write(data))

    def _blocks(self, packet: Packet) -> list[tuple[int, bytes]]:
        """Return consumer id and SysMessageID of each block. Raises Refused."""
        body = packet.body
        width = LONG_BLOCK
        if packet.block and "JMQBodyType" in packet.properties:
            if number(packet, "JMQBodyType") == BodyType.CONSUMERID_I_SYSMESSAGEID:
                width = INT_BLOCK
        elif self._connection.level < Level.MQ_3_0:
            width = INT_BLOCK
        if len(body) % width:
            raise RejectedRequest(Status.ERROR, f"{len(body)} bytes are no blocks of {width}")
        return decode_blocks(body, width)

    def _find(self, consumer_id: int) -> JmsConsumer | None:
        """Return the consumer; None if it is closed without unacked messages. Raises Refused."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            for session in self._connection.sessions.values():
                if consumer_id in session.known:
                    return None
            raise RejectedRequest(Status.NOT_FOUND, f"there is no consumer {consumer_id} here")
        if not consumer.holds:
            raise RejectedRequest(Status.NOT_ALLOWED, "this session does not acknowledge")
        return consumer

    def _forget(self, consumer: JmsConsumer) -> None:
        """Remove a closed consumer that has no unacked messages."""
        if consumer.closed and not consumer.held:
            self._consumers.pop(consumer.number, None)
            consumer.session.consumers.pop(consumer.number, None)

    # --- transactions ------------------------------------------------------------------------

    def _acknowledge_in(self, transaction: int, blocks: list[tuple[int, bytes]]) -> None:
        branch = self._connection.coordinator.branches.active(transaction, self._connection)
        settle = self._broker.transactions.settle
        for consumer_id, sysid in blocks:
            consumer = self._find(consumer_id)
            taken = consumer.take(sysid) if consumer is not None else None
            if consumer is None or taken is None:
                continue
            holder, delivery = taken
            if settle(branch.transaction, holder, delivery.sequence):
                branch.acked[consumer_id, sysid] = (consumer, holder, delivery)
            self._forget(consumer)

    def _validate(self, transaction: int, blocks: list[tuple[int, bytes]]) -> None:
        """Raise Refused unless the transaction contains all these acknowledgements."""
        if not transaction:
            raise RejectedRequest(Status.BAD_REQUEST, "JMQValidate is about a transaction")
        branch = self._connection.coordinator.branches.active(transaction, self._connection)
        if not all(block in branch.acked for block in blocks):
            raise RejectedRequest(Status.NOT_FOUND, "not all of these belong to the transaction")

    # --- undeliverable messages --------------------------------------------------------------

    def _give_up(self, packet: Packet, kind: int, blocks: list[tuple[int, bytes]]) -> None:
        """Reroute or dead-letter messages that the client cannot process. Raises Refused."""
        if kind not in (AckType.UNDELIVERABLE, AckType.DEAD):
            raise RejectedRequest(Status.BAD_REQUEST, f"there is no JMQAckType {kind}")
        expired = number(packet, "JMQDeadReason", DeadReason.UNDELIVERABLE) == DeadReason.EXPIRED
        for consumer_id, sysid in blocks:
            consumer = self._find(consumer_id)
            taken = consumer.take(sysid) if consumer is not None else None
            if consumer is None or taken is None:
                continue
            holder, delivery = taken
            if kind == AckType.UNDELIVERABLE:
                reroute(self._broker, holder, delivery)
            else:
                self._move_to_dead_letters(delivery, "expired" if expired else GIVEN_UP)
            self._forget(consumer)

    def _move_to_dead_letters(self, delivery: Delivery, reason: str) -> None:
        self._broker.dead_letter(delivery.subscription, delivery.sequence, reason)

    # --- REDELIVER ---------------------------------------------------------------------------

    def redeliver(self, packet: Packet) -> None:
        """Handle REDELIVER, which has no reply."""
        attempted = truth(packet, "JMQSetRedelivered")
        transaction = packet.transaction_id or number(packet, "JMQTransactionID", 0)
        blocks = self._blocks(packet)
        requested: dict[JmsConsumer, list[bytes]] = {}
        if transaction:
            branches = self._connection.coordinator.branches
            branch = branches.by_number(transaction)
            if branch is not None and self._connection.number in branch.joined:
                for consumer, sysid in branches.take_back(branch, blocks):
                    requested.setdefault(consumer, []).append(sysid)
        for consumer_id, sysid in blocks:
            found = self._consumers.get(consumer_id)
            if found is not None and found.holds:
                requested.setdefault(found, []).append(sysid)
        for consumer, sysids in requested.items():
            consumer.send_again(sysids, attempted)
            consumer.level()
            self._forget(consumer)

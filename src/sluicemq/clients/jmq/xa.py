"""Global transactions controlled by a transaction manager (JTA's XAResource). Public through
`client`.

    await session.xa.start(xid)
    …                                    send and receive with the session
    await session.xa.end(xid)
    await session.xa.prepare(xid)
    await session.xa.commit(xid)         from any connection, also after a broker restart
"""

from __future__ import annotations

from sluicemq.clients.jmq.confirmations import SessionPort
from sluicemq.clients.jmq.request_channel import number
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.fields import XID_SIZE, Xid, decode_xid, encode_xid
from sluicemq.protocols.jmq.packets import PacketType, XaFlag
from sluicemq.protocols.jmq.wire import Packet


class XaResource:
    """XA resource of a session: `Session.xa`.

    All methods raise Refused (404 for an unknown Xid, 500 if the transaction's state does not allow
    the operation, …), ConnectionLost, RequestTimeout; ProtocolError for an Xid with a part of more
    than 64 bytes.
    """

    def __init__(self, session: SessionPort) -> None:
        self._session = session
        self._started: dict[Xid, int] = {}

    async def start(self, xid: Xid, flags: int = XaFlag.NOFLAGS) -> None:
        """Associate the session's following work with `xid`. Flags: JOIN, RESUME.

        Raises ValueError for a transacted session, or if another transaction has not been ended.
        """
        session = self._session
        if session.transacted:
            raise ValueError("the session has transactions of its own")
        if session.transaction:
            raise ValueError("a transaction has been started and not ended")
        reply = await self._ask(PacketType.START_TRANSACTION, xid, flags)
        self._started[xid] = number(reply, "JMQTransactionID")
        session.enter(self._started[xid])

    async def end(self, xid: Xid, flags: int = XaFlag.SUCCESS) -> None:
        """End the session's association with `xid`. Flags: SUSPEND, FAIL.

        Also raises Refused if the broker refused a message sent without waiting.
        """
        session = self._session
        channel = await session.ready()
        try:
            await session.confirmations.wait_for_all(channel.timeout)
        finally:
            if session.transaction == self._started.get(xid, 0):
                session.enter(0)
        await self._ask(PacketType.END_TRANSACTION, xid, flags)

    async def prepare(self, xid: Xid) -> None:
        """Prepare the transaction: the broker stores it so that it survives a restart."""
        await self._ask(PacketType.PREPARE_TRANSACTION, xid)

    async def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        """Commit a prepared transaction or, with `one_phase`, an ended one."""
        flags = XaFlag.ONEPHASE if one_phase else XaFlag.NOFLAGS
        await self._ask(PacketType.COMMIT_TRANSACTION, xid, flags)
        self._started.pop(xid, None)

    async def rollback(self, xid: Xid) -> None:
        """Roll back an ended or prepared transaction. Its received messages are redelivered."""
        await self._ask(
            PacketType.ROLLBACK_TRANSACTION, xid, XaFlag.NOFLAGS, {"JMQRedeliver": True}
        )
        self._started.pop(xid, None)

    def forget(self) -> None:
        """Drop the transaction ids: they are valid only on the lost connection."""
        self._started.clear()

    async def recover(self) -> list[Xid]:
        """Return the Xids of the prepared transactions."""
        channel = await self._session.ready()
        reply = await channel.request(
            PacketType.RECOVER_TRANSACTION, {"JMQXAFlags": XaFlag.STARTRSCAN}
        )
        body = reply.body
        return [decode_xid(body[at : at + XID_SIZE]) for at in range(0, len(body), XID_SIZE)]

    async def _ask(
        self,
        kind: PacketType,
        xid: Xid,
        flags: int | None = None,
        more: dict[str, object] | None = None,
    ) -> Packet:
        """Send an XA request: START and END carry only the Xid, others also the transaction id."""
        body = encode_xid(xid)
        properties = dict(more or {})
        if flags is not None:
            properties["JMQXAFlags"] = flags
        known = self._started.get(xid)
        if known and kind not in (PacketType.START_TRANSACTION, PacketType.END_TRANSACTION):
            properties["JMQTransactionID"] = Long(known)
        channel = await self._session.ready()
        return await channel.request(kind, properties, body)

"""Global transactions, as a transaction manager drives them (JTA's XAResource). Public through
`client`.

    await session.xa.start(xid)
    …                                    send and receive with the session
    await session.xa.end(xid)
    await session.xa.prepare(xid)
    await session.xa.commit(xid)         by any connection, also after the broker's restart
"""

from __future__ import annotations

from typing import Protocol

from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.client.confirmations import Confirmations
from sluicemq.protocols.jmq.client.request_channel import RequestChannel, number
from sluicemq.protocols.jmq.ids import XID_SIZE, Xid, decode_xid, encode_xid
from sluicemq.protocols.jmq.packets import PacketType, XaFlag
from sluicemq.protocols.jmq.wire import Packet


class Branching(Protocol):
    """What a resource needs of its session."""

    transacted: bool
    transaction: int
    confirmations: Confirmations

    async def ready(self) -> RequestChannel:
        """The connection. Raises ConnectionLost, RequestTimeout."""

    def enter(self, transaction: int) -> None:
        """What follows belongs to it; 0 = to none."""


class XaResource:
    """The session's part in global transactions: `Session.xa`.

    All methods raise Refused (404 for an Xid that is not known, 500 for a state that does not allow
    it, …), ConnectionLost, RequestTimeout; ProtocolError for an Xid with a part of more than 64
    bytes.
    """

    def __init__(self, session: Branching) -> None:
        self._session = session
        self._started: dict[Xid, int] = {}

    async def start(self, xid: Xid, flags: int = XaFlag.NOFLAGS) -> None:
        """What the session does from now on belongs to `xid`. Flags: JOIN, RESUME.

        Raises ValueError for a transacted session, or if another one has not been ended.
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
        """What the session does from now on does not belong to `xid` any more. Flags: SUSPEND,
        FAIL. Raises Refused for what was sent without waiting and refused, too."""
        session = self._session
        channel = await session.ready()
        try:
            await session.confirmations.settled(channel.timeout)
        finally:
            if session.transaction == self._started.get(xid, 0):
                session.enter(0)
        await self._ask(PacketType.END_TRANSACTION, xid, flags)

    async def prepare(self, xid: Xid) -> None:
        """From now on it can be committed whatever happens."""
        await self._ask(PacketType.PREPARE_TRANSACTION, xid)

    async def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        """Of a prepared one, or, `one_phase`, of one that has been ended."""
        flags = XaFlag.ONEPHASE if one_phase else XaFlag.NOFLAGS
        await self._ask(PacketType.COMMIT_TRANSACTION, xid, flags)
        self._started.pop(xid, None)

    async def rollback(self, xid: Xid) -> None:
        """Of one that has been ended or prepared. What was received comes again."""
        await self._ask(
            PacketType.ROLLBACK_TRANSACTION, xid, XaFlag.NOFLAGS, {"JMQRedeliver": True}
        )
        self._started.pop(xid, None)

    def forget(self) -> None:
        """The connection is lost: what it was known by there means nothing to another."""
        self._started.clear()

    async def recover(self) -> list[Xid]:
        """Those that are prepared and wait to be completed."""
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
        """START and END name the Xid alone; the others also what this session knows it by."""
        body = encode_xid(xid)
        properties = dict(more or {})
        if flags is not None:
            properties["JMQXAFlags"] = flags
        known = self._started.get(xid)
        if known and kind not in (PacketType.START_TRANSACTION, PacketType.END_TRANSACTION):
            properties["JMQTransactionID"] = Long(known)
        channel = await self._session.ready()
        return await channel.request(kind, properties, body)

"""Every command of the protocols without logins: PHPMQ, its maintenance port, msglite and its HTTP
gateway. The listener or the certificate determines the user of a connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sluicemq.model.access import Operation
from sluicemq.protocols.msglite import http as gateway
from sluicemq.protocols.msglite import wire as msglite
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.session import MsgliteSession
from sluicemq.protocols.phpmq import screen
from sluicemq.protocols.phpmq import wire as phpmq
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, QueueLists
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.phpmq.wire import MessageIds
from sluicemq.protocols.transport import Session
from tests.authorization.fixture import QUEUE, BrokerFixture
from tests.authorization.matrix import (
    ALL_ACTORS,
    ALLOWED,
    DENIED,
    NO_ACTOR,
    OWNER_ONLY,
    PERMITTED,
    Actor,
    Cell,
    Row,
    Table,
    check_cell,
    check_complete,
    parametrize_cells,
)
from tests.support.broker import purge
from tests.support.offload import idle_offload
from tests.support.sessions import RecordedTransport, SessionPeer

RAW: Final = QUEUE.encode()
MEMORY: Final = 54_321
"""Memory of the process on the maintenance port, in bytes."""


class FixedProcess:
    """Statistics of an idle process."""

    version = "0"

    def uptime(self) -> float:
        return 0.0

    def memory(self) -> int:
        return MEMORY

    def clients(self) -> int:
        return 0


class PlainCell(Cell):
    """A connection of the actor to a listener for `protocol`, and the queue of the owner."""

    def __init__(self, fixture: BrokerFixture, protocol: str, actor: Actor) -> None:
        super().__init__(actor)
        self.fixture = fixture
        self.protocol = protocol
        fixture.create_owned()
        self.peer = self.connect(actor)

    def connect(self, actor: Actor) -> SessionPeer:
        """Connect as the actor."""
        transport = self.fixture.transport()
        return SessionPeer(self.fixture, transport, self._session(transport, actor))

    def _session(self, transport: RecordedTransport, actor: Actor) -> Session:
        fixture = self.fixture
        broker, replies = fixture.broker, fixture.replies
        access = fixture.open_without_login(transport, self.protocol, actor)
        if self.protocol == "phpmq":
            return PhpmqSession(transport, broker, idle_offload(), access=access)
        if self.protocol == "phpmq-maintenance":
            return MaintenanceSession(
                transport, broker, FixedProcess(), QueueLists(broker), access=access
            )
        if self.protocol == "msglite":
            return MsgliteSession(transport, broker, replies, idle_offload(), access=access)
        return GatewaySession(
            transport, broker, replies, idle_offload(), access=access, address=QUEUE
        )

    def issue(self, data: bytes, error: bytes = b"") -> None:
        """Issue a command.

        It is denied if the response contains `error`, or, for protocols without error
        responses, if the connection is closed.
        """
        transport = self.peer.transport
        self.fixture.run_event_loop()
        transport.take_written()
        self.before = self.fixture.snapshot()
        self.peer.send_bytes(data)
        self.received = transport.take_written()
        self.after = self.fixture.snapshot()
        denied = error in self.received if error else not transport.open
        if denied and self.protocol != "phpmq-maintenance":
            assert not transport.open
        self.outcome = DENIED if denied else ALLOWED

    def open_owners_connection(self) -> SessionPeer:
        """Open a connection of the owner, which no other actor may close."""
        owner = self.connect(Actor.OWNER)
        self.fixture.owner_transports.append(owner.transport)
        if self.actor is Actor.OWNER:
            self.peer = owner
        return owner

    def reply_address(self) -> bytes:
        """Return the reply address of a query of the owner."""
        return self.fixture.open_query()[1].encode()

    def message_id(self) -> bytes:
        """Return the PHPMQ id of the owner's message, unacked on a connection of the owner."""
        owner = self.open_owners_connection()
        owner.send_bytes(phpmq.encode_consume(RAW, 1))
        queue = self.fixture.queue(QUEUE)
        [delivery] = queue.queue.browse()
        return MessageIds(self.fixture.broker.identity).encode(delivery.sequence)


# --- PHPMQ ---------------------------------------------------------------------------------------

PHPMQ: Final[Table[PlainCell]] = Table()
PHPMQ_NAMES: Final = {
    phpmq.SEND: "send",
    phpmq.CONSUME: "consume",
    phpmq.ACKNOWLEDGE: "acknowledge",
    phpmq.REQUEUE: "requeue",
    phpmq.DEAD_LETTER: "dead letter",
}


@PHPMQ.row("send", "to a queue", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _send(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_send(RAW, b"x"))


@PHPMQ.row("send", "to a reply address", ALL_ACTORS, changes=True)
def _send_reply(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_send(cell.reply_address(), b"x"))


@PHPMQ.row("send", "as a reply to a message", OWNER_ONLY, changes=True, has_response=False)
def _send_reply_to_message(cell: PlainCell) -> None:
    purge(cell.fixture.broker, cell.fixture.queue(QUEUE))
    cell.reply_address()
    cell.issue(phpmq.encode_send(b"reply:" + cell.message_id(), b"x"))


@PHPMQ.row("consume", "", PERMITTED, permission=Operation.CONSUME, changes=True, reveals=PERMITTED)
def _consume(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_consume(RAW, 1))


@PHPMQ.row("consume", "from a reply address", NO_ACTOR)
def _consume_reply(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_consume(cell.reply_address(), 1))


@PHPMQ.row("acknowledge", "", PERMITTED, permission=Operation.CONSUME, changes=True)
def _acknowledge(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_acknowledge(RAW, cell.message_id()))


@PHPMQ.row("requeue", "", PERMITTED, permission=Operation.CONSUME, changes=True)
def _requeue(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_requeue(RAW, cell.message_id()))


@PHPMQ.row("dead letter", "", PERMITTED, permission=Operation.CONSUME, changes=True)
def _dead_letter(cell: PlainCell) -> None:
    cell.issue(phpmq.encode_dead_letter(RAW, cell.message_id()))


# --- the maintenance port ------------------------------------------------------------------------

MAINTENANCE: Final[Table[PlainCell]] = Table()
NOT_PERMITTED: Final = b"Not permitted"


def _line(
    line: str,
    target: str = "",
    allowed: frozenset[Actor] = ALL_ACTORS,
    reveals: frozenset[Actor] = NO_ACTOR,
    **fields: Any,
) -> None:
    """Add a row for a line of input."""

    def issue(cell: PlainCell) -> None:
        cell.issue(f"{line}\n".encode(), NOT_PERMITTED)

    command = line.split()[0]
    MAINTENANCE.row(command, target, allowed, reveals=reveals, **fields)(issue)


_line("help", marker=QUEUE)
_line("clear", marker=QUEUE)
_line("search *", reveals=PERMITTED, marker=QUEUE)
_line("monitor", reveals=PERMITTED, marker=QUEUE)
_line("show", "all", reveals=PERMITTED, marker=QUEUE)
_line(
    f"show {QUEUE}", "a queue", PERMITTED, PERMITTED, permission=Operation.BROWSE, marker="00000000"
)
_line(f"flush {QUEUE}", "", PERMITTED, permission=Operation.MANAGE, changes=True)
_line("flushall", changes=PERMITTED, permission=Operation.MANAGE)
_line("q", marker=QUEUE)
_line("quit", marker=QUEUE)
_line("exit", marker=QUEUE)


# --- msglite -------------------------------------------------------------------------------------

MSGLITE: Final[Table[PlainCell]] = Table()
MSGLITE_NAMES: Final = {
    msglite.MESSAGE: "message",
    msglite.READY: "ready",
    msglite.QUERY: "query",
    msglite.QUIT: "quit",
}
ERROR: Final = b"- "


def _issue_msglite(cell: PlainCell, data: bytes) -> None:
    cell.issue(data, ERROR)


@MSGLITE.row("message", "to a queue", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _message(cell: PlainCell) -> None:
    _issue_msglite(cell, b"> 1 9 %b\r\nx\r\n" % RAW)


@MSGLITE.row(
    "message", "to a waiting consumer", PERMITTED, permission=Operation.PRODUCE, changes=True
)
def _message_now(cell: PlainCell) -> None:
    purge(cell.fixture.broker, cell.fixture.queue(QUEUE))
    cell.open_owners_connection().send_bytes(b"< 9 %b\r\n" % RAW)
    cell.peer = cell.connect(cell.actor)
    _issue_msglite(cell, b"> 1 0 %b\r\nx\r\n" % RAW)


@MSGLITE.row("message", "to a reply address", ALL_ACTORS, changes=True)
def _message_reply(cell: PlainCell) -> None:
    _issue_msglite(cell, b"> 1 9 %b\r\nx\r\n" % cell.reply_address())


@MSGLITE.row("ready", "", PERMITTED, permission=Operation.CONSUME, changes=True, reveals=PERMITTED)
def _ready(cell: PlainCell) -> None:
    _issue_msglite(cell, b"< 9 %b\r\n" % RAW)


@MSGLITE.row("ready", "for the reply of another's query", NO_ACTOR)
def _ready_reply(cell: PlainCell) -> None:
    _issue_msglite(cell, b"< 9 %b\r\n" % cell.reply_address())


@MSGLITE.row("query", "", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _query(cell: PlainCell) -> None:
    _issue_msglite(cell, b"? 1 9 %b\r\nx\r\n" % RAW)


@MSGLITE.row("quit", "", ALL_ACTORS, reveals=NO_ACTOR)
def _quit(cell: PlainCell) -> None:
    _issue_msglite(cell, b".\r\n")


# --- the HTTP gateway ----------------------------------------------------------------------------

GATEWAY: Final[Table[PlainCell]] = Table()


def _request(method: str) -> None:
    def issue(cell: PlainCell) -> None:
        data = f"{method} / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        cell.issue(data.encode(), b" 403 ")

    GATEWAY.row(method, "", PERMITTED, permission=Operation.PRODUCE, changes=True)(issue)


for _method in sorted(gateway.METHODS):
    _request(_method.decode())


# --- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFixture]:
    fixture = BrokerFixture(Path(tmp_path_factory.mktemp("plain")))
    yield fixture
    fixture.close()


def _check(broker: BrokerFixture, protocol: str, row: Row[PlainCell], actor: Actor) -> None:
    broker.reset(row.permission)
    cell = PlainCell(broker, protocol, actor)
    row.issue(cell)
    check_cell(row, cell)


@parametrize_cells(PHPMQ.rows)
def test_phpmq_command_is_permitted_to_its_actors(
    broker: BrokerFixture, row: Row[PlainCell], actor: Actor
) -> None:
    _check(broker, "phpmq", row, actor)


@parametrize_cells(MAINTENANCE.rows)
def test_maintenance_command_is_permitted_to_its_actors(
    broker: BrokerFixture, row: Row[PlainCell], actor: Actor
) -> None:
    _check(broker, "phpmq-maintenance", row, actor)


@parametrize_cells(MSGLITE.rows)
def test_msglite_command_is_permitted_to_its_actors(
    broker: BrokerFixture, row: Row[PlainCell], actor: Actor
) -> None:
    _check(broker, "msglite", row, actor)


@parametrize_cells(GATEWAY.rows)
def test_gateway_request_is_permitted_to_its_actors(
    broker: BrokerFixture, row: Row[PlainCell], actor: Actor
) -> None:
    _check(broker, "msglite-http", row, actor)


def test_every_command_has_a_row() -> None:
    check_complete(PHPMQ.rows, {PHPMQ_NAMES[kind] for kind in phpmq.FROM_CLIENT})
    check_complete(MAINTENANCE.rows, {usage.split()[0] for usage in screen.COMMANDS})
    check_complete(MSGLITE.rows, {MSGLITE_NAMES[kind] for kind in msglite.FROM_CLIENT})
    check_complete(GATEWAY.rows, {method.decode() for method in gateway.METHODS})

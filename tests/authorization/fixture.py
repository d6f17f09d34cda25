"""A broker with the users of the matrix, and snapshots of its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from pathlib import Path
from typing import Any, Final

from sluicemq.broker import Broker, Destination, Subscription
from sluicemq.model.access import Operation
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
)
from sluicemq.model.message import BodyKind, Durability, Message
from sluicemq.model.url import Url
from sluicemq.protocols.jmq.session import Coordinator
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.security.authenticator import ConnectionAccess
from sluicemq.server.listener_settings import Listener
from tests.authorization.matrix import SECRET, Actor
from tests.protocols.jmq import harness as jmq
from tests.support.api import ApiFixture
from tests.support.sessions import RecordedTransport, SessionPeer

QUEUE: Final = "own.queue"
"""The owner's queue, which holds one message: SECRET."""
TOPIC: Final = "own.topic"
WRONG_TOKEN: Final = "slq_" + "x" * 43


class Users:
    """The users of the matrix.

    names   by actor that has logged in
    tokens  of the same
    """

    def __init__(self, api_fixture: ApiFixture) -> None:
        """Add them to the users of a broker."""
        all_operations = " ".join(Operation)
        api_fixture.add("norights")
        api_fixture.add("other", f"other.*: {all_operations}")
        api_fixture.add("owner", f"own.*: {all_operations}")
        api_fixture.add("root", superuser=True)
        for right in Operation:
            api_fixture.add(f"only-{right}", f"own.*: {right}")
            rest = " ".join(operation for operation in Operation if operation is not right)
            api_fixture.add(f"not-{right}", f"own.*: {rest}")
        self._tokens = {name: api_fixture.token(name) for name in api_fixture.store.read().users}
        self.choose(None)

    def choose(self, right: Operation | None) -> None:
        """Choose the users of the actors that are about a right."""
        self.names = {
            Actor.NO_RIGHTS: "norights",
            Actor.OTHER: "other",
            Actor.OWNER: "owner",
            Actor.ROOT: "root",
        }
        if right is not None:
            self.names |= {
                Actor.THAT_RIGHT: f"only-{right}",
                Actor.OTHER_RIGHTS: f"not-{right}",
            }
        self.tokens = {actor: self._tokens[name] for actor, name in self.names.items()}


def publish(broker: Broker, destination: Destination, body: str = SECRET) -> Message:
    """Publish a text, without a flush."""
    message = Message(
        destination.address,
        body.encode(),
        durability=Durability.LAZY,
        kind=BodyKind.TEXT,
        timestamp=broker.clock.wall,
    )
    broker.publish(destination, message)
    return message


def reset(broker: Broker) -> None:
    """End all transactions, and remove all destinations but those of the broker itself."""
    transactions = broker.transactions
    for transaction in (*transactions.prepared.values(), *transactions.open.values()):
        transactions.rollback(transaction)
    for destination in list(broker.destinations.values()):
        if not destination.name.startswith("mq."):
            broker.remove(destination, force=True)


def snapshot_destinations(broker: Broker) -> dict[str, Any]:
    """Return every destination with its settings, subscriptions, consumers and messages."""
    return {
        str(destination.address): _destination(destination)
        for destination in broker.destinations.values()
    }


def snapshot_transactions(broker: Broker) -> list[Any]:
    """Return all transactions that have not ended: their states and how much they hold."""
    transactions = broker.transactions
    return [
        (transaction.xid, transaction.state, len(transaction.sends), len(transaction.acks))
        for transaction in (*transactions.prepared.values(), *transactions.open.values())
    ]


def _destination(destination: Destination) -> Any:
    subscriptions = {"": destination.queue, **destination.subscriptions}
    return (
        destination.settings,
        destination.automatic,
        destination.paused,
        destination.temporary,
        destination.statistics.published,
        {name: _subscription(subscription) for name, subscription in subscriptions.items()},
    )


def _subscription(subscription: Subscription) -> Any:
    messages = [
        (delivery.sequence, delivery.state, delivery.attempts) for delivery in subscription.browse()
    ]
    return (messages, len(subscription.consumers), subscription.selector)


def check_logins_at_once(api_fixture: ApiFixture) -> None:
    """Answer wrong logins without a thread, and without the time that argon2 takes.

    All right logins of the matrix are by token, which needs no check.
    """
    queue: Any = api_fixture.authenticator.logins.queue
    queue._pool.shutdown()
    queue._pool = _ImmediateExecutor()
    queue._call_soon = lambda call, *arguments: call(*arguments)
    queue._verify = lambda stored, password: False


class _ImmediateExecutor(Executor):
    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args, **kwargs))
        return future


class BrokerFixture(jmq.Harness):
    """A broker in memory with the users of the matrix: what sessions of all protocols need."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.api_fixture = self.loop.run_until_complete(self._open(directory))
        self.clock = self.api_fixture.clock
        self.broker = self.api_fixture.broker
        self.broker.on_flush_needed(self._schedule_flush)
        self.users = Users(self.api_fixture)
        self.users_file = directory / "users.json"
        self.database = self.users_file.read_bytes()
        self.owners: list[RecordedTransport] = []
        """Connections of the owner: no other actor may end them."""
        self._peers = count(1)

    @staticmethod
    async def _open(directory: Path) -> ApiFixture:
        api_fixture = ApiFixture(directory, required="always")
        check_logins_at_once(api_fixture)
        return api_fixture

    def close(self) -> None:
        """Stop the threads and the event loop."""
        self.api_fixture.authenticator.close()
        self.loop.close()

    def begin(self, right: Operation | None = None) -> None:
        """Forget all connections, users and destinations of the cell before."""
        self.users.choose(right)
        for transport in list(self.transports):
            transport.session.closed()
        self.transports.clear()
        self.owners.clear()
        self.timers.clear()
        reset(self.broker)
        self.run_event_loop()
        self.coordinator = Coordinator(self.broker)
        self.replies = ReplyAddresses(self.broker.clock.wall)
        if self.users_file.read_bytes() != self.database:
            self.users_file.write_bytes(self.database)

    def owned(
        self,
        name: str = QUEUE,
        kind: Kind = Kind.QUEUE,
        by: CreatedBy = CreatedBy.BROKER,
        **settings: Any,
    ) -> Destination:
        """Return a destination of the owner, created by a protocol; a queue is given its
        message."""
        destination = self.broker.destinations.declare(
            Address(kind, name), DestinationSettings(**settings), provenance=Provenance(by)
        )
        if kind is Kind.QUEUE:
            publish(self.broker, destination)
        self.run_event_loop()
        return destination

    def ask_query(self) -> tuple[SessionPeer, str]:
        """Let a msglite client of the owner send a query to QUEUE, which it creates if needed.

        Return the client and its reply address.
        """
        transport = self.transport()
        access = self.without_login(transport, "msglite", Actor.OWNER)
        peer = SessionPeer(
            self, transport, MsgliteSession(transport, self.broker, self.replies, access=access)
        )
        self.owners.append(transport)
        peer.send_bytes(f"? 1 9 {QUEUE}\r\nx\r\n".encode())
        [reply] = [
            destination
            for destination in self.broker.destinations.values()
            if destination.temporary
        ]
        return peer, reply.name

    def transport(self) -> RecordedTransport:
        """Return a new connection, of an address that no other has."""
        transport = RecordedTransport(self)
        number = next(self._peers)
        transport.peer = f"10.1.{number // 250}.{number % 250 + 1}:1"
        return transport

    def with_login(self, transport: RecordedTransport, protocol: str) -> ConnectionAccess:
        """Return the access of a connection whose client logs in."""
        listener: Any = Listener(url=Url(protocol))
        return self.api_fixture.authenticator.open(transport, listener, logs_in=True)

    def without_login(
        self, transport: RecordedTransport, protocol: str, actor: Actor
    ) -> ConnectionAccess:
        """Return the access of a connection to a listener that acts as the actor's user.

        Without one, it is a listener that has no user, or a certificate that names no user.
        """
        if actor is Actor.REJECTED:
            transport.peer_user = "stranger"
        listener = Listener(url=Url(protocol), user=self.users.names.get(actor, ""))
        return self.api_fixture.authenticator.open(transport, listener, logs_in=False)

    def wait(self, done: Callable[[], bool]) -> None:
        """Run the event loop, for changes of users, until that is so."""

        async def waiting() -> None:
            async with asyncio.timeout(30):
                while not done():
                    await asyncio.sleep(0)
                    self.run_event_loop()

        self.loop.run_until_complete(waiting())

    def snapshot(self) -> Any:
        """Return the state that no command may change unless its sender has the right."""
        branches = {
            branch.number: (branch.state, sorted(branch.connection_numbers), len(branch.acked))
            for branch in self.coordinator.branches._open.values()
        }
        return (
            snapshot_destinations(self.broker),
            snapshot_transactions(self.broker),
            branches,
            [transport.open for transport in self.owners],
            self.users_file.read_bytes(),
        )

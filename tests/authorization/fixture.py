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
from tests.support.offload import idle_offload
from tests.support.sessions import RecordedTransport, SessionPeer

QUEUE: Final = "own.queue"
"""The owner's queue, which contains one message with the body SECRET."""
TOPIC: Final = "own.topic"
WRONG_TOKEN: Final = "slq_" + "x" * 43


class Users:
    """The users of the matrix.

    names   user names by actor, of actors that log in
    tokens  tokens of the same actors
    """

    def __init__(self, api_fixture: ApiFixture) -> None:
        """Add the users to a broker."""
        all_operations = " ".join(Operation)
        api_fixture.add("norights")
        api_fixture.add("other", f"other.*: {all_operations}")
        api_fixture.add("owner", f"own.*: {all_operations}")
        api_fixture.add("root", superuser=True)
        for permission in Operation:
            api_fixture.add(f"only-{permission}", f"own.*: {permission}")
            rest = " ".join(operation for operation in Operation if operation is not permission)
            api_fixture.add(f"not-{permission}", f"own.*: {rest}")
        self._tokens = {name: api_fixture.token(name) for name in api_fixture.store.read().users}
        self.select_permission(None)

    def select_permission(self, permission: Operation | None) -> None:
        """Select the users of ONLY_PERMISSION and OTHER_PERMISSIONS."""
        self.names = {
            Actor.NO_PERMISSIONS: "norights",
            Actor.OTHER: "other",
            Actor.OWNER: "owner",
            Actor.ROOT: "root",
        }
        if permission is not None:
            self.names |= {
                Actor.ONLY_PERMISSION: f"only-{permission}",
                Actor.OTHER_PERMISSIONS: f"not-{permission}",
            }
        self.tokens = {actor: self._tokens[name] for actor, name in self.names.items()}


def publish(broker: Broker, destination: Destination, body: str = SECRET) -> Message:
    """Publish a text message; does not flush."""
    message = Message(
        destination.address,
        body.encode(),
        durability=Durability.LAZY,
        kind=BodyKind.TEXT,
        timestamp=broker.clock.wall,
    )
    broker.publish(destination, message)
    return message


def reset_broker(broker: Broker) -> None:
    """Roll back all transactions, and remove all destinations except those of the broker itself."""
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
    """Return the open and prepared transactions, with the numbers of their operations."""
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


def verify_logins_at_once(api_fixture: ApiFixture) -> None:
    """Reject passwords without a thread and without the duration of argon2.

    All successful logins of the matrix use tokens, which are not hashed.
    """
    queue: Any = api_fixture.authenticator.logins.queue
    queue._pool.shutdown()
    queue._pool = _ImmediateExecutor()
    queue._call_soon = lambda call, *arguments: call(*arguments)
    queue._verify = lambda stored, password, highest: False


class _ImmediateExecutor(Executor):
    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args, **kwargs))
        return future


class BrokerFixture(jmq.Harness):
    """A broker in memory with the users of the matrix, for sessions of all protocols."""

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
        self.owner_transports: list[RecordedTransport] = []
        """Connections of the owner, which no other actor may close."""
        self._peers = count(1)

    @staticmethod
    async def _open(directory: Path) -> ApiFixture:
        api_fixture = ApiFixture(directory, required="always")
        verify_logins_at_once(api_fixture)
        return api_fixture

    def close(self) -> None:
        """Stop the threads and the event loop."""
        self.api_fixture.authenticator.close()
        self.loop.close()

    def reset(self, permission: Operation | None = None) -> None:
        """Remove the connections, users and destinations of the previous cell."""
        self.users.select_permission(permission)
        for transport in list(self.transports):
            transport.session.closed()
        self.transports.clear()
        self.owner_transports.clear()
        self.timers.clear()
        reset_broker(self.broker)
        self.run_event_loop()
        self.coordinator = Coordinator(self.broker)
        self.replies = ReplyAddresses(self.broker.clock.wall)
        if self.users_file.read_bytes() != self.database:
            self.users_file.write_bytes(self.database)

    def create_owned(
        self,
        name: str = QUEUE,
        kind: Kind = Kind.QUEUE,
        by: CreatedBy = CreatedBy.BROKER,
        **settings: Any,
    ) -> Destination:
        """Create a destination of the owner as `by`; a queue contains one message."""
        destination = self.broker.destinations.declare(
            Address(kind, name), DestinationSettings(**settings), provenance=Provenance(by)
        )
        if kind is Kind.QUEUE:
            publish(self.broker, destination)
        self.run_event_loop()
        return destination

    def open_query(self) -> tuple[SessionPeer, str]:
        """Send a query to QUEUE as a msglite client of the owner; create the queue if needed.

        Return the client and its reply address.
        """
        transport = self.transport()
        access = self.open_without_login(transport, "msglite", Actor.OWNER)
        peer = SessionPeer(
            self,
            transport,
            MsgliteSession(transport, self.broker, self.replies, idle_offload(), access=access),
        )
        self.owner_transports.append(transport)
        peer.send_bytes(f"? 1 9 {QUEUE}\r\nx\r\n".encode())
        [reply] = [
            destination
            for destination in self.broker.destinations.values()
            if destination.temporary
        ]
        return peer, reply.name

    def transport(self) -> RecordedTransport:
        """Return a new connection with a unique address."""
        transport = RecordedTransport(self)
        number = next(self._peers)
        transport.peer = f"10.1.{number // 250}.{number % 250 + 1}:1"
        return transport

    def open_with_login(self, transport: RecordedTransport, protocol: str) -> ConnectionAccess:
        """Open the access of a connection whose client logs in."""
        listener: Any = Listener(url=Url(protocol))
        return self.api_fixture.authenticator.open(
            transport, listener.url, listener.user, logs_in=True
        )

    def open_without_login(
        self, transport: RecordedTransport, protocol: str, actor: Actor
    ) -> ConnectionAccess:
        """Open the access of a connection whose listener has the actor's user.

        For actors without a user, the listener has none, or the certificate is of no user.
        """
        if actor is Actor.REJECTED:
            transport.peer_user = "stranger"
        listener = Listener(url=Url(protocol), user=self.users.names.get(actor, ""))
        return self.api_fixture.authenticator.open(
            transport, listener.url, listener.user, logs_in=False
        )

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run the event loop, which changes of users need, until the condition is met."""

        async def run() -> None:
            async with asyncio.timeout(30):
                while not condition():
                    await asyncio.sleep(0)
                    self.run_event_loop()

        self.loop.run_until_complete(run())

    def snapshot(self) -> Any:
        """Return the state that commands without permission must not change."""
        branches = {
            branch.number: (branch.state, sorted(branch.connection_numbers), len(branch.acked))
            for branch in self.coordinator.branches._open.values()
        }
        return (
            snapshot_destinations(self.broker),
            snapshot_transactions(self.broker),
            branches,
            [transport.open for transport in self.owner_transports],
            self.users_file.read_bytes(),
        )

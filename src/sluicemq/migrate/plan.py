"""Plan of a migration: the contents of a source in SluiceMQ's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicemq.migrate.source_files import ChangeDetector
from sluicemq.model.destination import (
    DEFAULT_SETTINGS,
    Address,
    DestinationSettings,
    Provenance,
    encode_name,
)
from sluicemq.model.message import Message
from sluicemq.security.records import UserRecord

KEY_BYTES: Final = 16
Key = bytes
"""KEY_BYTES bytes that identify a source's message uniquely, independent of the source's path."""


def key_of(kind: str, address: Address, identity: bytes) -> Key:
    """Return the key of a message; `identity` is the source's own id of the message."""
    name = encode_name(str(address))
    data = len(name).to_bytes(4, "big") + name + identity
    return blake2b(data, digest_size=KEY_BYTES, person=kind.encode()).digest()


class SkippedItem(NamedTuple):
    """An item that is not migrated.

    what    type: setting, listener, user, messages, subscription ...
    name    name in the source
    reason  reason, and what to do instead
    """

    what: str
    name: str
    reason: str


class SourceMessage(NamedTuple):
    """A ready message of the source.

    delivery_counts  of a topic, the subscriptions that have not acknowledged it, by name, with the
                     number of past deliveries; of a queue "" alone. None: the present subscriptions
                     receive it
    """

    message: Message
    key: Key
    delivery_counts: dict[str, int] | None


class PreparedTransaction(NamedTuple):
    """A prepared transaction.

    xid    136 bytes, in the encoding of our JMQ clients
    sends  messages that it publishes on commit
    acks   messages that it acknowledges on commit, each with the name of the subscription as in
           `SourceMessage`; two transactions may acknowledge a message for two subscriptions
    """

    xid: bytes
    sends: list[Message]
    acks: list[tuple[SourceMessage, str]]


class PlannedSubscription(NamedTuple):
    """A durable subscription of a topic, under the name that our JMQ clients use for it."""

    topic: str
    name: str
    selector: str = ""
    exclude: str = ""


class NewListener(NamedTuple):
    """A listener for clients. `options` as in the configuration file; `comment`: its origin."""

    url: str
    options: dict[str, str | int | bool]
    comment: str


class SetAsideRow(NamedTuple):
    """A row of the source that is written to a file instead of being imported.

    category  a key of SET_ASIDE
    reason    why it is not imported
    row       values by column
    """

    category: str
    reason: str
    row: dict[str, object]


SET_ASIDE: Final = {
    "dropped": "dropped by its full queue, and still in the store",
    "delivered": "of FanOutWithoutAck queues, which keep delivered messages",
    "undeliverable": "no VibeMQ client could receive",
    "unreadable": "not readable",
}
"""Categories of rows that are set aside, with their description."""


class Plan(msgspec.Struct, kw_only=True):
    """Contents of a source and the changes that the migration will make.

    kind            openmq, vibemq or phpmq
    source_path     path of the source
    settings        values and their origins, by their paths in the configuration file, in its units
    defaults        of destinations created on first use
    destinations    to be declared
    origins         of those: details of their creation besides the kind of the source, and its
                    time in ms since the epoch, 0 = unknown
    counts          number of ready messages by destination
    read_messages   returns these messages; those of a destination in order
    set_aside       number of rows that are written to a file instead of imported, by type
    read_set_aside  returns these rows
    expired_count   messages older than their queue's time to live, which restarts
    has_shared_namespace   True if a name stands for a queue or a topic, never for both
    users           to be added, unless there is one of that name
    prepared_transactions  prepared transactions; `read_messages` omits what they acknowledge
    skipped         items that are not migrated
    notes           other information for the operator
    change_detector detects changes of the source
    """

    kind: str
    source_path: Path
    settings: dict[str, tuple[object, str]] = msgspec.field(default_factory=dict)
    listeners: list[NewListener] = msgspec.field(default_factory=list)
    defaults: DestinationSettings = DEFAULT_SETTINGS
    destinations: dict[Address, DestinationSettings] = msgspec.field(default_factory=dict)
    origins: dict[Address, tuple[Provenance, int]] = msgspec.field(default_factory=dict)
    subscriptions: list[PlannedSubscription] = msgspec.field(default_factory=list)
    users: dict[str, UserRecord] = msgspec.field(default_factory=dict)
    counts: Counter[Address] = msgspec.field(default_factory=Counter)
    read_messages: Callable[[], Iterable[SourceMessage]] = tuple
    set_aside: Counter[str] = msgspec.field(default_factory=Counter)
    read_set_aside: Callable[[], Iterable[SetAsideRow]] = tuple
    expired_count: int = 0
    has_shared_namespace: bool = False
    prepared_transactions: list[PreparedTransaction] = msgspec.field(default_factory=list)
    skipped: list[SkippedItem] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    change_detector: ChangeDetector = msgspec.field(default_factory=ChangeDetector)

    def skip(self, what: str, name: str, reason: str) -> None:
        """Add an item that is not migrated."""
        self.skipped.append(SkippedItem(what, name, reason))

    def listen(self, url: str, comment: str, **options: str | int | bool) -> None:
        """Add a listener."""
        self.listeners.append(NewListener(url, options, comment))

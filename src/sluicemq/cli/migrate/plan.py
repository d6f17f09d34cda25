"""What a source holds, in our terms: everything a migration is going to do, before it does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicemq.cli.migrate.source_files import ChangeDetector
from sluicemq.model.destination import Address, DestinationSettings, Provenance, encode_name
from sluicemq.model.message import Message
from sluicemq.server.identity.records import UserRecord

KEY_BYTES: Final = 16
Key = bytes
"""KEY_BYTES that tell a source's message from all others, in whatever place the source lies."""


def key_of(kind: str, address: Address, identity: bytes) -> Key:
    """`identity` is what the source itself calls the message."""
    name = encode_name(str(address))
    digest = blake2b(digest_size=KEY_BYTES, person=kind.encode())
    digest.update(len(name).to_bytes(4, "big") + name + identity)
    return digest.digest()


class SkippedItem(NamedTuple):
    """Something that is not carried over.

    what    its sort: setting, listener, user, messages, subscription ...
    name    what its source calls it
    reason  and what to do instead
    """

    what: str
    name: str
    reason: str


class SourceMessage(NamedTuple):
    """A message that waits in the source.

    takers  of a topic, the subscriptions it still has to be delivered to, by name, with the number
            of deliveries there were before; of a queue "" alone. None: who is there now takes it
    """

    message: Message
    key: Key
    takers: dict[str, int] | None


class PreparedTransaction(NamedTuple):
    """A prepared transaction.

    xid    136 bytes, as our JMQ clients say it
    sends  messages that it will publish
    acks   messages that it will settle, by key, with the name of the subscription as in
           `SourceMessage`
    """

    xid: bytes
    sends: list[Message]
    acks: list[tuple[Key, str]]


class PlannedSubscription(NamedTuple):
    """A durable subscription of a topic, named as our JMQ clients will ask for it."""

    topic: str
    name: str
    selector: str = ""
    exclude: str = ""


class NewListener(msgspec.Struct):
    """Where clients will connect. `options` as in the configuration file."""

    url: str
    options: dict[str, str | int | bool] = {}


class NewUser(NamedTuple):
    """A user, to be added if there is none of that name."""

    name: str
    record: UserRecord


class SetAsideRow(NamedTuple):
    """A row of the source that is written into a file instead of being imported.

    sort    a key of ASIDE
    reason  why
    row     what the source has, by column
    """

    sort: str
    reason: str
    row: dict[str, object]


ASIDE: Final = {
    "dropped": "dropped by its full queue, and still in the store",
    "delivered": "of FanOutWithoutAck queues, which keep what they have delivered",
    "undeliverable": "no VibeMQ client could receive",
    "unreadable": "not readable",
}
"""Sorts of rows that are set aside, and what they are."""


def _no_messages() -> Iterator[SourceMessage]:
    return iter(())


def _nothing_aside() -> Iterator[SetAsideRow]:
    return iter(())


class Plan(msgspec.Struct, kw_only=True):
    """See the module.

    kind           openmq, vibemq or phpmq
    place          of the source
    settings       values by section and name of the configuration file, in its units
    comments       for settings and listeners (by their URL): where they come from
    defaults       of destinations that come into being by use; None = ours
    destinations   to be declared
    origins        of those: what is known of their creation beside the kind of the source, and its
                   time in ms since the epoch, 0 = not known
    counts         of waiting messages by destination
    waiting        the messages, read when they are asked for; those of a destination in order
    set_aside      number of rows that are not imported but written into a file, by sort
    aside          these rows, read when they are asked for
    late           messages older than their queue's time to live, which begins anew
    one_name       a name stands for a queue or a topic, never for both
    branches       prepared transactions; `held` are the messages that they have acknowledged
    left           what is not carried over
    notes          what the person should know besides
    witness        sees changes of the source
    """

    kind: str
    place: Path
    settings: dict[tuple[str, ...], object] = msgspec.field(default_factory=dict)
    listeners: list[NewListener] = msgspec.field(default_factory=list)
    comments: dict[str, str] = msgspec.field(default_factory=dict)
    defaults: DestinationSettings | None = None
    destinations: dict[Address, DestinationSettings] = msgspec.field(default_factory=dict)
    origins: dict[Address, tuple[Provenance, int]] = msgspec.field(default_factory=dict)
    subscriptions: list[PlannedSubscription] = msgspec.field(default_factory=list)
    users: list[NewUser] = msgspec.field(default_factory=list)
    counts: Counter[Address] = msgspec.field(default_factory=Counter)
    waiting: Callable[[], Iterator[SourceMessage]] = _no_messages
    set_aside: Counter[str] = msgspec.field(default_factory=Counter)
    aside: Callable[[], Iterator[SetAsideRow]] = _nothing_aside
    late: int = 0
    one_name: bool = False
    branches: list[PreparedTransaction] = msgspec.field(default_factory=list)
    held: list[SourceMessage] = msgspec.field(default_factory=list)
    left: list[SkippedItem] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    change_detector: ChangeDetector = msgspec.field(default_factory=ChangeDetector)

    def leave(self, what: str, name: str, reason: str) -> None:
        """See `left`."""
        self.left.append(SkippedItem(what, name, reason))

    def set(self, path: str, value: object, comment: str = "") -> None:
        """A value for the configuration file; `path` is dotted."""
        self.settings[tuple(path.split("."))] = value
        if comment:
            self.comments[path] = comment

    def listen(self, url: str, comment: str = "", **options: str | int | bool) -> None:
        """Another listener."""
        self.listeners.append(NewListener(url, options))
        if comment:
            self.comments[url] = comment

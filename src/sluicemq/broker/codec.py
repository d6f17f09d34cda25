"""The payloads of the journal entries that only the engine understands, as MessagePack arrays.

New fields go to the end and get a default, so that an older journal stays readable. Text that
is not UTF-8 (surrogate escapes, see model/destination.py) is written as in the messages' own meta
data (journal/meta.py), except where another way is older than that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.msgpack import Ext

from sluicemq.journal.meta import decode_meta, encode_meta, escape_text, unescape
from sluicemq.model.destination import (
    Address,
    DestinationSettings,
    Kind,
    Provenance,
    decode_name,
    encode_name,
)
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import BodyKind, Durability, Message, Origin

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.subscription import Subscription


Text = str | Ext
"""See the module."""


class Attempts(msgspec.Struct, array_like=True):
    """RecordType.ATTEMPTED: failed deliveries so far, as (sequence, attempts)."""

    subscription: int
    counts: list[tuple[int, int]]


class Requeue(msgspec.Struct, array_like=True):
    """RecordType.REQUEUED: `reference` goes to the tail with a new expiration (wall ms), after
    so many attempts."""

    subscription: int
    expiration: int
    attempts: int = 0


class StoredSettings(msgspec.Struct, array_like=True):
    """RecordType.SETTINGS: a destination was declared with these settings, or is temporary and
    so not to be seen again after a restart, or came into being by use. `created` is in wall ms,
    0 = not known. A name that is not UTF-8 is in `raw_name`. One that is `paused` delivers nothing
    until it is told to. `creator` is the user whose quota it counts against, "" = any without a
    name; None = nobody's. One with `default_settings` has the broker's defaults, whatever they are
    after a restart. `grouped` as in Destination."""

    kind: Kind
    name: str
    settings: DestinationSettings
    temporary: bool = False
    automatic: bool = False
    created: int = 0
    raw_name: bytes = b""
    paused: bool = False
    creator: str | None = None
    provenance: Provenance = Provenance()
    default_settings: bool = False
    grouped: bool = False

    @classmethod
    def of(cls, destination: Destination, defaults: DestinationSettings) -> StoredSettings:
        """How the journal knows a destination; `defaults` are the broker's."""
        name = destination.name
        is_text = _is_utf8(name)
        return cls(
            destination.address.kind,
            name if is_text else "",
            destination.settings,
            destination.temporary,
            destination.automatic,
            destination.created,
            b"" if is_text else encode_name(name),
            destination.paused,
            destination.creator,
            destination.provenance,
            destination.automatic and destination.settings == defaults,
            destination.grouped,
        )

    @property
    def address(self) -> Address:
        """Of the destination."""
        return Address(self.kind, decode_name(self.raw_name) if self.raw_name else self.name)


class SubscriptionEntry(msgspec.Struct, array_like=True):
    """RecordType.SUBSCRIPTION and SUBSCRIPTION_GONE: a durable subscription of a topic.

    A later record of the same number replaces the earlier one. `owner` is the user it belongs to,
    "" = nobody yet: it was created before there were users, or by a migration.
    """

    number: int
    topic: Text
    name: Text
    selector: Text = ""
    exclude: Text = ""
    shared: bool = False
    owner: str = ""

    @classmethod
    def of(cls, subscription: Subscription) -> SubscriptionEntry:
        """How the journal knows a durable subscription."""
        return cls(
            subscription.number,
            escape_text(subscription.destination.name),
            escape_text(subscription.name),
            escape_text(subscription.selector.text if subscription.selector else ""),
            escape_text(str(subscription.exclude) if subscription.exclude is not None else ""),
            subscription.shared,
            subscription.owner,
        )

    @property
    def address(self) -> Address:
        """Of the topic."""
        return Address(Kind.TOPIC, as_text(self.topic))


class StoredMessage(msgspec.Struct, array_like=True):
    """A message inside a prepared transaction.

    meta    message_id to native as the journal's messages have them; older journals have them here
    sender  the text of the token that no-local goes by; None = none
    """

    kind: Kind
    destination: Text
    body: bytes
    body_kind: BodyKind
    origin: Origin
    durability: Durability
    timestamp: int
    expiration: int
    priority: int
    deliver_at: int
    message_id: str = ""
    correlation_id: str = ""
    reply_to: tuple[Kind, str] | None = None
    type: str = ""
    properties: dict[str, Any] | None = None
    native: bytes = b""
    meta: bytes = b""
    sender: Text | None = None

    @classmethod
    def of(cls, message: Message) -> StoredMessage:
        """Pack a message that is to be published when the transaction commits."""
        return cls(
            message.destination.kind,
            escape_text(message.destination.name),
            message.body,
            message.kind,
            message.origin,
            message.durability,
            message.timestamp,
            message.expiration,
            message.priority,
            message.deliver_at,
            meta=encode_meta(message),
            sender=escape_text(str(message.sender)) if message.sender is not None else None,
        )

    def message(self, record: int) -> Message:
        """The message as it was sent. Raises JournalDamaged, which names the PREPARED record."""
        message = Message(
            Address(self.kind, as_text(self.destination)),
            self.body,
            self.body_kind,
            self.origin,
            self.durability,
            self.timestamp,
            self.expiration,
            self.priority,
            self.deliver_at,
            self.message_id,
            self.correlation_id,
            Address(*self.reply_to) if self.reply_to else None,
            self.type,
            self.properties,
            self.native,
            as_text(self.sender) if self.sender is not None else None,
        )
        if self.meta:
            decode_meta(message, self.meta, record)
        return message


class Prepared(msgspec.Struct, array_like=True):
    """RecordType.PREPARED: what the transaction will do, acks as (subscription, sequences).

    xid      b"" for a part of a large transaction (commits.py), and for the decision to commit one
    parts    PREPARED records without an xid that hold sends and acks before these, in order
    decided  the parts are committed, and applied unless they are resolved
    owner    user that began it, "" = nobody, as in SubscriptionEntry
    """

    xid: bytes
    sends: list[StoredMessage]
    acks: list[tuple[int, list[int]]]
    owner: str = ""
    parts: list[int] = []
    decided: bool = False


class Resolved(msgspec.Struct, array_like=True):
    """RecordType.RESOLVED: the end of the prepared transaction at `reference`."""

    xid: bytes
    committed: bool


class BatchPart(msgspec.Struct, array_like=True, frozen=True):
    """RecordType.BATCH: the messages before it in its unit are this part of a batch (batches.py).

    writer     who writes: 1-255 characters
    batch      its number, ascending for each writer
    partition  below 2^20
    part       its place in the partition, from 0
    final      the last of its partition
    digest     of the rows, 64 bits: the sum of their digests, so that their order does not matter
    rows       how many
    owner      user that the writer belongs to; "" = nobody yet: there were no users
    """

    writer: str
    batch: int
    partition: int
    part: int
    final: bool
    digest: int
    rows: int
    owner: str = ""


class WriterState(msgspec.Struct, array_like=True):
    """What is remembered of a writer of batches.

    seen     wall ms of its last part
    done     complete partitions as packed u32, ascending
    rows     of each of them in all, as packed u64
    digests  of each of them, as packed u64
    partial  of the others: number, and digest and rows of each part
    owner    as in BatchPart
    """

    name: str
    batch: int
    seen: int
    done: bytes
    rows: bytes
    digests: bytes
    partial: list[tuple[int, list[tuple[int, int]]]]
    owner: str = ""


class State(msgspec.Struct, array_like=True):
    """The engine's part of a snapshot: everything that the live messages do not tell.

    pending    (subscription, sequences as packed u64) of each durable subscription of a topic, and
               of each topic's group
    attempts   (subscription, [(sequence, attempts)])
    requeued   (subscription, sequence, order, expiration)
    prepared   (sequence of the PREPARED record, its payload); b"" = read the record
    next_subscription   number for the next durable subscription; none is given twice
    delivered  (subscription, sequences as packed u64, deliveries of each as packed u32) of what is
               in flight
    writers    of batches, the one that wrote last at the end
    clock_steps  (sequence of the CLOCK record, ms), see clocklog.py
    """

    settings: list[StoredSettings]
    subscriptions: list[SubscriptionEntry]
    pending: list[tuple[int, bytes]]
    attempts: list[Attempts]
    requeued: list[tuple[int, int, int, int]]
    prepared: list[tuple[int, bytes]]
    next_subscription: int = 1
    delivered: list[tuple[int, bytes, bytes]] = []
    writers: list[WriterState] = []
    clock_steps: list[tuple[int, int]] = []


def as_text(written: Text) -> str:
    """Text as it was before it was written. Raises JournalDamaged."""
    if isinstance(written, str):
        return written
    try:
        return str(unescape(written.code, bytes(written.data)))
    except ValueError as error:
        raise JournalDamaged(f"the journal holds text that cannot be read: {error}") from error


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_StructT = TypeVar("_StructT", bound=msgspec.Struct)


def _decoder(struct: type[_StructT]) -> Callable[[bytes], _StructT]:
    """Reads payloads of one kind. What it returns raises JournalDamaged."""
    decode = msgspec.msgpack.Decoder(struct).decode

    def read(payload: bytes) -> _StructT:
        try:
            return decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise JournalDamaged(
                f"the journal holds {struct.__name__} that cannot be read: {error}"
            ) from error

    return read


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_attempts = _decoder(Attempts)
decode_requeue = _decoder(Requeue)
decode_settings = _decoder(StoredSettings)
decode_subscription = _decoder(SubscriptionEntry)
decode_prepared = _decoder(Prepared)
decode_resolved = _decoder(Resolved)
decode_batch = _decoder(BatchPart)


def decode_state(payload: bytes) -> State:
    """The engine's part of a snapshot. Raises JournalDamaged."""
    state = _decode_state(payload)
    if (
        any(len(sequences) % 8 for _, sequences in state.pending)
        or any(
            len(sequences) % 8 or 2 * len(attempts) != len(sequences)
            for _, sequences, attempts in state.delivered
        )
        or any(
            len(w.done) % 4 or not 2 * len(w.done) == len(w.rows) == len(w.digests)
            for w in state.writers
        )
    ):
        raise JournalDamaged("the journal holds State that ends within a number")
    return state


_decode_state = _decoder(State)


def encode_attempts(subscription: int, counts: list[tuple[int, int]]) -> bytes:
    """Payload of an ATTEMPTED entry."""
    return encode(Attempts(subscription, counts))


def encode_requeue(subscription: int, expiration: int, attempts: int) -> bytes:
    """Payload of a REQUEUED entry."""
    return encode(Requeue(subscription, expiration, attempts))

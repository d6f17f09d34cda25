"""Payloads of the journal records that only the engine decodes, as MessagePack arrays.

Text that is not UTF-8 (surrogate escapes, see model/destination.py) is encoded as in the messages'
metadata (journal/format.py), except in names of destinations.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeVar

import msgspec
from msgspec.msgpack import Ext

from sluicemq.journal.format import (
    RecordType,
    decode_meta,
    encode_meta,
    escape_text,
    unescape,
)
from sluicemq.model.destination import (
    Address,
    DestinationSettings,
    Kind,
    Provenance,
    decode_name,
)
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import BodyKind, Durability, Message, Origin

Text = str | Ext
"""Text of an entry; an extension type if it is not UTF-8."""


class Attempts(msgspec.Struct, array_like=True):
    """RecordType.DELIVERY_ATTEMPTS: failed deliveries so far, as (sequence, attempts)."""

    subscription: int
    counts: list[tuple[int, int]]


class Requeue(msgspec.Struct, array_like=True):
    """RecordType.REQUEUED: requeue of `reference` at the tail.

    `expiration` is the new expiration in wall ms, `attempts` the number of attempts so far.
    """

    subscription: int
    expiration: int
    attempts: int = 0


class StoredSettings(msgspec.Struct, array_like=True):
    """RecordType.DESTINATION_SETTINGS: settings of a destination that was declared or created by
    use.

    Temporary destinations are recorded so that recovery deletes them. `created` is in wall ms, 0 =
    unknown. A name that is not UTF-8 is in `raw_name`. A `paused` destination delivers nothing
    until it is resumed. `creator` is the user whose quota it counts against, "" = anonymous users;
    None = no quota. A destination with `default_settings` gets the broker's defaults as configured
    after a restart. `grouped` as in Destination.
    """

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

    @property
    def address(self) -> Address:
        """Address of the destination."""
        return Address(self.kind, decode_name(self.raw_name) if self.raw_name else self.name)


class SubscriptionEntry(msgspec.Struct, array_like=True):
    """RecordType.SUBSCRIPTION_CREATED and SUBSCRIPTION_DELETED: a durable subscription of a topic.

    A later record of the same number replaces the earlier one. `owner` is the user that owns it, ""
    = no owner yet: it was created before there were users, or by a migration.
    """

    number: int
    topic: Text
    name: Text
    selector: Text = ""
    exclude: Text = ""
    shared: bool = False
    owner: str = ""

    @property
    def address(self) -> Address:
        """Address of the topic."""
        return Address(Kind.TOPIC, as_text(self.topic))


class PreparedMessage(msgspec.Struct, array_like=True):
    """Message inside a prepared transaction.

    meta    other fields, encoded as in the journal's messages
    sender  text of the sender's no-local token; None = none
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
    meta: bytes = b""
    sender: Text | None = None

    @classmethod
    def of(cls, message: Message) -> PreparedMessage:
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
            encode_meta(message),
            escape_text(str(message.sender)) if message.sender is not None else None,
        )

    def message(self, record: int) -> Message:
        """Return the message as it was sent. Raises JournalDamaged with the PREPARED record's
        sequence.
        """
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
            sender=as_text(self.sender) if self.sender is not None else None,
        )
        if self.meta:
            decode_meta(message, self.meta, record)
        return message


class PreparedTransaction(msgspec.Struct, array_like=True):
    """RecordType.TRANSACTION_PREPARED: the operations of a transaction, acks as (subscription,
    sequences).

    xid      b"" for a part of a large transaction, and for the decision to commit one
    parts    PREPARED records without an xid that hold sends and acks before these, in order
    decided  True if the parts are committed; they are applied unless they are resolved
    owner    user that began the transaction, "" = no owner, as in SubscriptionEntry
    """

    xid: bytes
    sends: list[PreparedMessage]
    acks: list[tuple[int, list[int]]]
    owner: str = ""
    parts: list[int] = []
    decided: bool = False


class ResolvedTransaction(msgspec.Struct, array_like=True):
    """RecordType.TRANSACTION_RESOLVED: end of the prepared transaction at `reference`."""

    xid: bytes
    committed: bool


class BatchPart(msgspec.Struct, array_like=True, frozen=True):
    """RecordType.BATCH_PART: the messages before it in its unit are this part of a batch
    (batches.py).

    writer     name of the writer, 1-255 characters
    batch      number of the batch, ascending for each writer
    partition  number of the partition, below 2^20
    part       index of the part in the partition, from 0
    final      True for the last part of the partition
    digest     64-bit sum of the rows' digests, independent of their order
    rows       number of rows
    owner      user that owns the writer; "" = none yet: there were no users
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
    """State of a writer of batches in a snapshot.

    seen     wall ms of its last part
    done     complete partitions as packed u32, ascending
    rows     number of rows of each complete partition, as packed u64
    digests  digest of each complete partition, as packed u64
    partial  incomplete partitions: number, and digest and rows of each part
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


class EngineState(msgspec.Struct, array_like=True):
    """Engine's part of a snapshot: all state that the live messages do not contain.

    pending    (subscription, sequences as packed u64) of each durable subscription of a topic, and
               of each topic's group
    attempts   (subscription, [(sequence, attempts)])
    requeued   (subscription, sequence, order, expiration)
    prepared   sequences of the unresolved PREPARED records
    next_subscription   number of the next durable subscription; numbers are never reused
    delivered  (subscription, sequences as packed u64, deliveries of each as packed u32) of unacked
               messages
    writers    writers of batches, ordered by their last write, the latest at the end
    clock_steps  (sequence of the CLOCK record, ms), see records.py
    """

    settings: list[StoredSettings]
    subscriptions: list[SubscriptionEntry]
    pending: list[tuple[int, bytes]]
    attempts: list[Attempts]
    requeued: list[tuple[int, int, int, int]]
    prepared: list[int]
    next_subscription: int = 1
    delivered: list[tuple[int, bytes, bytes]] = []
    writers: list[WriterState] = []
    clock_steps: list[tuple[int, int]] = []


def as_text(written: Text) -> str:
    """Return the text that was encoded. Raises JournalDamaged."""
    if isinstance(written, str):
        return written
    try:
        return str(unescape(written.code, bytes(written.data)))
    except ValueError as error:
        raise JournalDamaged(f"the journal holds text that cannot be read: {error}") from error


_StructT = TypeVar("_StructT", bound=msgspec.Struct)


def _decoder(struct: type[_StructT]) -> Callable[[bytes], _StructT]:
    """Return a decoder for payloads of one type; the decoder raises JournalDamaged."""
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
decode_prepared = _decoder(PreparedTransaction)
decode_batch = _decoder(BatchPart)


def decode_state(payload: bytes) -> EngineState:
    """Decode the engine's part of a snapshot. Raises JournalDamaged."""
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


_decode_state = _decoder(EngineState)


CLOCK_STEP: Final = Struct("<q")


def decode_clock_step(payload: bytes) -> int:
    """Return the step of a CLOCK_STEP record in ms."""
    return int(CLOCK_STEP.unpack(payload)[0])


def describe(type: int, payload: bytes) -> dict[str, Any]:
    """Return the fields of a CLOCK_STEP or BATCH_PART record for display; none of other types.

    Raises JournalDamaged.
    """
    if type == RecordType.CLOCK_STEP:
        return {"step_ms": decode_clock_step(payload)}
    if type == RecordType.BATCH_PART:
        part = decode_batch(payload)
        names = ("writer", "batch", "partition", "part", "final", "rows")
        return {name: getattr(part, name) for name in names}
    return {}

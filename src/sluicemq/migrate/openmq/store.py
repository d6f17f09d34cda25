"""The file store: destinations, durable subscriptions and the messages that Open MQ would recover
from it at its start.

destination, interest ──┐
message/…  ─────────────┼─> index of the messages ──> plan
txnlog, …  ─────────────┘

The index holds positions, not messages: a packet is read when it is imported. The data of an item
is a packet, and attached are the consumers that it was routed to:

    count:i32 (consumer:i64 state:i32) *

The states are 0 to be delivered, 1 delivered, 2 acknowledged; a queue's consumer is number 0.

The packets have the format that our JMQ clients send, so the same code decodes them. The history of
dead letters is in properties; it is also converted to this broker's properties, so that its
dead-letter commands and pages show it. The expiration of a dead letter stays in the packet and has
no effect, as in Open MQ.

The transactions are applied to the index as Open MQ does at its start: first the incomplete ones
saved by a checkpoint, then the log; or the state files of stores without that log.

| attribute of a destination    | here                                                             |
|-------------------------------|------------------------------------------------------------------|
| countLimit, memoryLimit       | max_messages, max_bytes                                          |
| msgSizeLimit                  | max_message_bytes                                                |
| limit (behaviour)             | overflow                                                         |
| maxActiveCount,               | active_consumers; max_consumers, if there may not be any number  |
| maxFailoverCount              | that stand by                                                    |
| useDMQ                        | dead letters go to mq.sys.dmq                                    |
| maxPrefetch                   | reported; see `prefetch` of the listener                         |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import iter_unpack, unpack_from
from typing import Final, TypeVar

import msgspec

from sluicemq.migrate.openmq.records import (
    DamageHandler,
    MapEntry,
    StoredItem,
    handle_damage,
    read_items,
    read_map,
    uid_number,
)
from sluicemq.migrate.openmq.transactions import (
    COMMITTED,
    LOCAL,
    PREPARED,
    Event,
    LoggedAck,
    LoggedTransaction,
    MessageRemoved,
    read_incomplete,
    read_log,
    read_states,
)
from sluicemq.migrate.plan import (
    Plan,
    PlannedSubscription,
    PreparedTransaction,
    SourceMessage,
    key_of,
)
from sluicemq.migrate.source_files import Damage, SourceError, SourceFile
from sluicemq.model.dead_letters import DMQ_PREFIX, DMQ_TIMESTAMP, dead_letter_of
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.jmq.destinations import Pattern, is_wildcard
from sluicemq.protocols.jmq.fields import DEAD_MESSAGES, SYSID_SIZE, XID_SIZE
from sluicemq.protocols.jmq.mapping import message_of
from sluicemq.protocols.jmq.packets import MAGIC, DestType
from sluicemq.protocols.jmq.subscriptions import (
    DURABLE,
    SHARED_DURABLE,
    WILDCARD_TOPIC,
    pattern_name,
    subscription_name,
)
from sluicemq.protocols.jmq.wire import FIXED_SIZE, MAX_PACKET, Decoder, Limits, Packet

KIND: Final = "openmq"
MESSAGES: Final = "message"
"""Directory within the store, with one subdirectory per destination."""
DELIVERED: Final = 1
ACKNOWLEDGED: Final = 2
QUEUE: Final = 0
"""Consumer number of a queue."""

BEHAVIORS: Final = {
    "FLOW_CONTROL": Overflow.BLOCK,
    "REMOVE_OLDEST": Overflow.DROP_OLDEST,
    "REJECT_NEWEST": Overflow.REJECT,
    "REMOVE_LOW_PRIORITY": Overflow.DROP_LOWEST,
}
"""Open MQ's limit behaviours, in the order of their numbers."""
DEFAULT_PRODUCERS: Final = (100, -1, 0)
DEFAULT_PREFETCH: Final = (1000, -1, 0)

_MAX_INTERESTS: Final = 1_000_000
_FIXED: Final = ">Ihhiq32s"
"""Layout: magic, version, type, size, expiration, SysMessageID; all versions but the oldest."""
_OLDEST: Final = 103
_OLDEST_SYSID: Final = 24
_LOG: Final = "transaction log"

_REASONS: Final = {
    "EXPIRED": "expired",
    "OLDEST": "overflow",
    "LOW_PRIORITY": "overflow",
    "UNDELIVERABLE": "max-attempts",
}

StoredT = TypeVar("StoredT", bound=msgspec.Struct)
StoreKey = tuple[str, bytes]
"""Key of a message in the store: its destination's unique name and its SysMessageID."""
DIRECTORIES: Final = ("fs370", "fs350")
"""Directories of the store within an instance, newest first."""
OLDEST_DIRECTORY: Final = "filestore"

_UNROUTED: Final = (
    "the broker ended before it had routed them to consumers; Open MQ drops them when it starts"
)
_UNSUBSCRIBED: Final = "their subscriptions no longer exist"
_FOREIGN: Final = (
    "it spans several brokers of a cluster; commit it or roll it back before the migration"
)
_UNCOMMITTED: Final = "they were sent in transactions that were never committed"


# --- objects of the store, with the names of their Java fields ---------------------------------


class DestinationUid(msgspec.Struct, rename="camel"):
    """A DestinationUID: kind and name of a destination."""

    is_queue: bool
    name: str


class SizeString(msgspec.Struct):
    """A SizeString: a limit in bytes, -1 = none."""

    bytes: int = -1


class StoredDestination(msgspec.Struct, rename="camel"):
    """A Queue or a Topic."""

    uid: DestinationUid
    type: int = 0
    count_limit: int = 0
    memory_limit: SizeString | None = None
    msg_size_limit: SizeString | None = None
    limit: int = 0
    max_active_count: int = 0
    max_failover_count: int = 0
    use_dmq: bool = msgspec.field(name="useDMQ", default=False)
    max_producer_limit: int = 0
    max_prefetch: int = 0
    validate_xml_schema: bool = msgspec.field(name="validateXMLSchemaEnabled", default=False)
    override_ttl: bool = msgspec.field(name="overrideTTL", default=False)
    override_priority: bool = msgspec.field(name="overrideP", default=False)


class StoredSubscription(msgspec.Struct, rename="camel"):
    """A Subscription, which is durable; its topic may be a wildcard."""

    dest: DestinationUid
    durable_name: str
    client_id: str | None = msgspec.field(name="clientID", default=None)
    selstr: str | None = None
    no_local: bool = False
    jmsshared: bool = False


def _convert(entry: MapEntry, record_class: type[StoredT], record_name: str) -> StoredT:
    try:
        return msgspec.convert(entry.value, record_class)
    except msgspec.ValidationError:
        raise Damage(f"{entry.location}: the record is not a {record_name}") from None


# --- destinations ------------------------------------------------------------------------------


def unique_name(address: Address) -> str:
    """Return the name of a destination in the store, such as `Q:orders`, without slashes."""
    return f"{address.kind.name[0]}:{address.name.replace('/', '_')}"


def consumer_limits(active: int, backup: int) -> tuple[int, int]:
    """Return active_consumers and max_consumers for numbers of active and of backup consumers;
    -1 = unlimited."""
    return max(0, active), active + backup if active > 0 and backup >= 0 else 0


def read_destination(plan: Plan, entry: MapEntry) -> Address | None:
    """Read an entry of the list of destinations, and add it to the plan if an administrator created
    it. Returns None for a temporary destination, whose messages are not migrated. Raises Damage."""
    record = _convert(entry, StoredDestination, "destination")
    if not record.uid.name:
        raise Damage(f"{entry.location}: a destination has no name")
    address = Address(Kind.QUEUE if record.uid.is_queue else Kind.TOPIC, record.uid.name)
    if record.type & DestType.TEMP:
        plan.skip("destination", str(address), "it is temporary, and its connection is closed")
        return None
    if not record.type & DestType.INTERNAL:
        _report_unsupported(plan, address, record)
    if not record.type & (DestType.AUTO | DestType.INTERNAL):
        active_consumers, max_consumers = consumer_limits(
            record.max_active_count, record.max_failover_count
        )
        plan.destinations[address] = DestinationSettings(
            max_messages=max(0, record.count_limit),
            max_bytes=_byte_limit(record.memory_limit),
            max_message_bytes=_byte_limit(record.msg_size_limit),
            overflow=dict(enumerate(BEHAVIORS.values())).get(record.limit, Overflow.REJECT),
            active_consumers=active_consumers,
            max_consumers=max_consumers,
            dead_letter=record.use_dmq,
            dead_letter_queue=DEAD_MESSAGES.name if record.use_dmq else "",
        )
    return address


def _byte_limit(limit: SizeString | None) -> int:
    return max(0, limit.bytes) if limit is not None else 0


def _report_unsupported(plan: Plan, address: Address, record: StoredDestination) -> None:
    """Report the settings of a destination that have no equivalent."""
    producers, prefetch = record.max_producer_limit, record.max_prefetch
    overriding = record.override_ttl or record.override_priority
    for is_unsupported, setting, reason in (
        (
            producers not in DEFAULT_PRODUCERS,
            f"maxNumProducers={producers}",
            "producers are not limited",
        ),
        (
            prefetch not in DEFAULT_PREFETCH,
            f"consumerFlowLimit={prefetch}",
            "see `prefetch` of a listener",
        ),
        (record.validate_xml_schema, "validateXMLSchemaEnabled", "bodies are not validated"),
        (overriding, "overriding of headers", "see message_ttl"),
    ):
        if is_unsupported:
            plan.skip("setting", f"{address}: {setting}", reason)


# --- durable subscriptions ---------------------------------------------------------------------


def read_subscription(
    plan: Plan, entry: MapEntry, topics: list[str]
) -> tuple[int, list[PlannedSubscription]]:
    """Read an entry of the list of interests. Returns the number by which messages refer to it, and
    its equivalents: for a wildcard, one of the topic that keeps wildcards and one of each topic
    that it matches. Raises Damage."""
    record = _convert(entry, StoredSubscription, "durable subscription")
    number = uid_number(entry.key, entry.location)
    if record.dest.is_queue or not record.dest.name or not record.durable_name:
        raise Damage(f"{entry.location}: the record is not a durable subscription")
    client_id = record.client_id or ""
    topic = record.dest.name
    name = subscription_name(
        SHARED_DURABLE if record.jmsshared else DURABLE, client_id, record.durable_name
    )
    exclude = client_id if record.no_local else ""
    names = {topic: name}
    if is_wildcard(Address(Kind.TOPIC, topic)):
        own_name = pattern_name(name, topic)
        try:
            matches = Pattern(topic).matches
            matching_topics = [topic_name for topic_name in topics if matches(topic_name)]
            names = dict.fromkeys([WILDCARD_TOPIC.name, *matching_topics], own_name)
        except ValueError as error:
            names = {}
            plan.skip("subscription", f"{name} of topic {topic}", str(error))
    return number, [
        PlannedSubscription(topic_name, own_name, record.selstr or "", exclude)
        for topic_name, own_name in names.items()
    ]


# --- messages ----------------------------------------------------------------------------------


@dataclass(slots=True)
class StoredMessage:
    """A message of the index.

    address  the destination that holds it
    states  by consumer number
    raw     the packet, or None while it is in a file: there at `position`
    """

    address: Address
    sysid: bytes
    states: dict[int, int]
    raw: bytes | None = None
    path: Path = Path()
    position: int = 0
    size: int = 0

    def packet(self) -> bytes:
        """Return the packet. Raises SourceError."""
        if self.raw is not None:
            return self.raw
        with SourceFile.open(self.path) as data:
            return data.read(self.position, self.size)

    def message(self) -> tuple[Message, Packet]:
        """Decode the packet. Raises SourceError."""
        location = _LOG if self.raw else f"{self.path}, byte {self.position}"
        return message_of_packet(self.packet(), location, self.address)


def read_store(plan: Plan, instance: Path, on_damage: DamageHandler) -> None:
    """Add the contents of the instance's store to the plan. Raises SourceError."""
    directory = next((instance / name for name in DIRECTORIES if (instance / name).is_dir()), None)
    if directory is not None:
        _Store(plan, directory, on_damage).read()
    elif (instance / OLDEST_DIRECTORY).is_dir():
        raise SourceError(
            f"{instance / OLDEST_DIRECTORY}: this is the store of a version before 3.5; let Open "
            "MQ 4 or 5 upgrade it first"
        )
    else:
        plan.skip("messages", "all", f"there is no {DIRECTORIES[0]} in {instance}: no file store")


@dataclass(slots=True, eq=False)
class _Store:
    """Reader of one store.

    _addresses  of destinations by unique name; the transaction log adds more
    _names      of subscriptions, by number and topic
    """

    _plan: Plan
    _directory: Path
    _on_damage: DamageHandler
    _addresses: dict[str, Address] = field(default_factory=dict)
    _messages: dict[StoreKey, StoredMessage] = field(default_factory=dict)
    _names: dict[int, dict[str, str]] = field(default_factory=dict)

    def read(self) -> None:
        plan, root = self._plan, self._directory
        # a directory may be a link to another disk
        for path in (root, *root.glob("*"), *root.glob("*/*"), *root.glob("*/*/*")):
            plan.change_detector.record_state(path)
        self._read_destinations()
        self._read_subscriptions()
        directory_names = {_directory_name(key) for key in self._addresses}
        for directory in sorted((root / MESSAGES).glob("*/")):
            if directory.name not in directory_names and directory.is_dir():
                plan.skip(
                    "messages",
                    f"in {directory}",
                    "no destination of the store has them: Open MQ would not deliver them either",
                )
        transactions = [*self._replay(), *self._apply_states()]
        self._add_prepared(transactions)
        self._fill_plan()

    # --- destinations and subscriptions --------------------------------------------------------

    def _read_destinations(self) -> None:
        for entry in read_map(self._directory / "destination", self._on_damage):
            with handle_damage(self._on_damage):
                address = read_destination(self._plan, entry)
                if address is not None:
                    self._addresses[unique_name(address)] = address
        for key, address in self._addresses.items():
            items = self._directory / MESSAGES / _directory_name(key)
            for item in read_items(items, self._on_damage):
                with handle_damage(self._on_damage):
                    self._index_message(address, item)

    def _index_message(self, address: Address, item: StoredItem) -> None:
        file = item.file
        position, size = item.data
        if size < FIXED_SIZE:
            raise file.damage(position, f"a packet cannot have {size} bytes")
        magic, version, _, declared_size, _, sysid = file.unpack(_FIXED, position)
        if magic != MAGIC or declared_size != size or size > MAX_PACKET:
            raise file.damage(position, "there is no packet of that size")
        if version == _OLDEST:
            sysid = file.read(position + _OLDEST_SYSID, SYSID_SIZE)
        states: dict[int, int] = {}
        attachment = item.attachment
        if attachment.size:
            (count,) = file.unpack(">i", attachment.position)
            length = count * 12
            if not (0 <= count <= _MAX_INTERESTS and length <= attachment.size - 4):
                raise file.damage(attachment.position, f"{count} consumers are announced")
            states.update(iter_unpack(">qi", file.read(attachment.position + 4, length)))
        self._messages[unique_name(address), sysid] = StoredMessage(
            address, sysid, states, None, file.path, position, size
        )

    def _read_subscriptions(self) -> None:
        topics = [
            address.name for address in self._addresses.values() if address.kind is Kind.TOPIC
        ]
        for entry in read_map(self._directory / "interest", self._on_damage):
            with handle_damage(self._on_damage):
                number, subscriptions = read_subscription(self._plan, entry, topics)
                self._plan.subscriptions += subscriptions
                self._names[number] = {
                    subscription.topic: subscription.name for subscription in subscriptions
                }

    # --- transactions --------------------------------------------------------------------------

    def _replay(self) -> list[LoggedTransaction]:
        """Apply the log. Returns the transactions that are prepared."""
        open_transactions: dict[int, LoggedTransaction] = {}
        for transaction in read_incomplete(self._directory, self._on_damage):
            if transaction.kind != LOCAL:
                self._plan.skip("transaction", str(transaction.number), _FOREIGN)
            elif transaction.state == PREPARED:
                open_transactions[transaction.number] = transaction
        with handle_damage(self._on_damage):
            events, foreign_count = read_log(self._directory)
            if foreign_count:
                self._plan.skip("transaction", f"{foreign_count} records of the log", _FOREIGN)
            for event in events:
                with handle_damage(self._on_damage):
                    self._apply(event, open_transactions)
        return list(open_transactions.values())

    def _apply(self, event: Event, open_transactions: dict[int, LoggedTransaction]) -> None:
        match event:
            case MessageRemoved(destination, sysid):
                self._messages.pop((destination, sysid), None)
            case LoggedTransaction(number=number, state=state) if state == PREPARED:
                open_transactions.setdefault(number, event)
            case LoggedTransaction(number=number, state=state):
                transaction = open_transactions.pop(number, event)
                if state == COMMITTED:
                    for raw in transaction.sends:
                        self._add_sent(raw)
                    for ack in transaction.acks:
                        self._apply_ack(ack)

    def _apply_states(self) -> list[LoggedTransaction]:
        """Apply the state files; in this format messages are stored before they are committed.
        Returns the transactions that are prepared."""
        transactions = read_states(self._directory, self._on_damage)
        messages = self._messages
        dropped_counts: Counter[str] = Counter()
        for identity, stored_message in list(messages.items()) if transactions else ():
            with handle_damage(self._on_damage):
                transaction = transactions.get(stored_message.message()[1].transaction_id)
                if transaction is None or transaction.state == COMMITTED:
                    continue
                del messages[identity]
                if transaction.state == PREPARED:
                    transaction.sends.append(stored_message.packet())
                else:
                    dropped_counts[str(stored_message.address)] += 1
        for name, count in dropped_counts.items():
            self._plan.skip("messages", f"{count} of {name}", _UNCOMMITTED)
        destinations = {sysid: destination for destination, sysid in messages}
        for transaction in transactions.values():
            acks = transaction.acks
            acks[:] = [ack._replace(destination=destinations.get(ack.sysid, "")) for ack in acks]
            if transaction.state == COMMITTED:
                for ack in acks:
                    self._apply_ack(ack)
        return [branch for branch in transactions.values() if branch.state == PREPARED]

    def _add_sent(self, raw: bytes) -> None:
        """Add a message that the store may or may not contain yet. Raises Damage."""
        message, packet = message_of_packet(raw, _LOG)
        key = unique_name(message.destination)
        address = self._addresses.setdefault(key, message.destination)
        # routed again, as Open MQ does
        stored_message = StoredMessage(address, packet.sysid, {}, raw)
        self._messages.setdefault((key, packet.sysid), stored_message)

    def _apply_ack(self, ack: LoggedAck) -> None:
        """Apply a consumer's acknowledgement; the message may have been removed already."""
        stored_message = self._messages.get((ack.destination, ack.sysid))
        if stored_message is not None:
            consumer = QUEUE if ack.destination.startswith("Q:") else ack.consumer
            stored_message.states[consumer] = ACKNOWLEDGED

    # --- the plan ------------------------------------------------------------------------------

    def _fill_plan(self) -> None:
        plan = self._plan
        messages: list[tuple[StoredMessage, dict[str, int] | None]] = []
        skipped_counts: Counter[tuple[str, str]] = Counter()
        for stored_message in self._messages.values():
            with handle_damage(self._on_damage):
                delivery_counts, reason = self._choose_delivery(stored_message)
                if delivery_counts is None or delivery_counts:
                    messages.append((stored_message, delivery_counts))
                    plan.counts[stored_message.address] += 1
                elif reason:
                    skipped_counts[str(stored_message.address), reason] += 1
        messages.sort(
            key=lambda pair: (unique_name(pair[0].address), _sending_order(pair[0].sysid))
        )
        plan.read_messages = lambda: self._imports(messages)
        for (name, reason), count in skipped_counts.items():
            plan.skip("messages", f"{count} of {name}", reason)

    def _imports(
        self, messages: list[tuple[StoredMessage, dict[str, int] | None]]
    ) -> Iterator[SourceMessage]:
        for stored_message, delivery_counts in messages:
            with handle_damage(self._on_damage):
                yield _source_message(stored_message, delivery_counts)

    def _choose_delivery(self, stored_message: StoredMessage) -> tuple[dict[str, int] | None, str]:
        """Decide how a message is delivered. Returns its delivery counts as in SourceMessage; {} if
        it is not imported, and then the reason for the report, "" for none. Raises Damage."""
        states = stored_message.states
        address = stored_message.address
        if not states:
            # the broker ended before the message was routed
            if stored_message.raw is None and not stored_message.message()[0].deliver_at:
                return {}, _UNROUTED
            return ({"": 0} if address.kind is Kind.QUEUE else None), ""
        if all(state == ACKNOWLEDGED for state in states.values()):
            return {}, ""  # only its removal was missing
        # Open MQ stores only whether there was a delivery
        if address.kind is Kind.QUEUE:
            return {"": int(states.get(QUEUE) == DELIVERED)}, ""
        delivery_counts = {}
        for number, state in states.items():
            name = self._names.get(number, {}).get(address.name)
            if state != ACKNOWLEDGED and name is not None:
                delivery_counts[name] = int(state == DELIVERED)
        return delivery_counts, _UNSUBSCRIBED

    # --- prepared transactions -----------------------------------------------------------------

    def _add_prepared(self, transactions: list[LoggedTransaction]) -> None:
        """Add the transactions, and remove the messages they have acknowledged from the others."""
        plan = self._plan
        acked_messages: dict[StoreKey, SourceMessage] = {}
        for transaction in transactions:
            if len(transaction.xid) != XID_SIZE:
                plan.skip(
                    "transaction",
                    str(transaction.number),
                    "it is prepared without a Xid, so no coordinator can end it: it is rolled back",
                )
                continue
            with handle_damage(self._on_damage):
                sends = [message_of_packet(raw, _LOG)[0] for raw in transaction.sends]
                acks = list(self._read_acked(transaction.acks))
                plan.prepared_transactions.append(
                    PreparedTransaction(
                        transaction.xid, sends, [(message, name) for _, message, name in acks]
                    )
                )
                acked_messages.update((identity, message) for identity, message, _ in acks)
        plan.counts.update(
            source_message.message.destination for source_message in acked_messages.values()
        )
        for identity in acked_messages:
            del self._messages[identity]

    def _read_acked(self, acks: list[LoggedAck]) -> Iterator[tuple[StoreKey, SourceMessage, str]]:
        """Yield the acknowledged messages that exist, each with its key and the name of the
        subscription. Raises Damage."""
        for ack in acks:
            identity = (ack.destination, ack.sysid)
            stored_message = self._messages.get(identity)
            if stored_message is None:
                continue
            address = stored_message.address
            name: str | None = ""
            if address.kind is Kind.TOPIC:
                name = self._names.get(ack.consumer, {}).get(address.name)
            delivery_counts, _ = self._choose_delivery(stored_message)
            if name is not None and delivery_counts and name in delivery_counts:
                yield identity, _source_message(stored_message, delivery_counts), name


def _directory_name(key: str) -> str:
    return key.replace(":", "")


def _source_message(
    stored_message: StoredMessage, delivery_counts: dict[str, int] | None
) -> SourceMessage:
    message, _ = stored_message.message()
    return SourceMessage(
        message, key_of(KIND, stored_message.address, stored_message.sysid), delivery_counts
    )


def _sending_order(sysid: bytes) -> tuple[int, int, bytes]:
    timestamp, sequence = unpack_from(">q20xi", sysid)
    return timestamp, sequence, sysid


# --- packets -----------------------------------------------------------------------------------


def message_of_packet(
    raw: bytes, location: str, destination: Address | None = None
) -> tuple[Message, Packet]:
    """Decode the message, for `destination` if it is not where it was sent. Raises Damage."""
    decoder = Decoder(Limits(packet=len(raw), header=len(raw), properties=len(raw)))
    packets = decoder.feed(raw)
    if decoder.error is not None or len(packets) != 1 or not isinstance(packets[0], Packet):
        problem = decoder.error or "it is incomplete"
        raise Damage(f"{location}: the bytes are not a packet: {problem}")
    packet = packets[0]
    if not packet.is_message:
        raise Damage(f"{location}: the packet is not a message but of type {packet.type}")
    try:
        message = message_of(packet, None, Durability.SYNC, Durability.SYNC)
    except ProtocolError as error:
        raise Damage(f"{location}: {error}") from None
    if destination == DEAD_MESSAGES != message.destination:
        message = _dead_letter_of(message)
    if destination is not None:
        message.destination = destination
    return message, packet


def _dead_letter_of(message: Message) -> Message:
    """Return a dead letter with this broker's properties besides those of Open MQ."""
    history = message.properties or {}
    attempts = history.get(f"{DMQ_PREFIX}DELIVERY_COUNT")
    failure_time = history.get(DMQ_TIMESTAMP)
    convert = partial(
        dead_letter_of,
        message,
        message.destination.name,
        _REASONS.get(str(history.get(f"{DMQ_PREFIX}UNDELIVERED_REASON")), "client"),
        attempts if isinstance(attempts, int) else 0,
    )
    try:
        dead_letter = convert(failure_time if isinstance(failure_time, int) else 0)
    except (ValueError, OverflowError, OSError):
        dead_letter = convert(0)
    dead_letter.properties = {**history, **(dead_letter.properties or {})}
    return dead_letter

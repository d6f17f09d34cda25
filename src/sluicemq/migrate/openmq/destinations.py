"""Open MQ's destinations and durable subscriptions, as stored, and their equivalents in SluiceMQ.

| attribute of a destination    | here                                                             |
|-------------------------------|------------------------------------------------------------------|
| countLimit, memoryLimit       | max_messages, max_bytes                                          |
| msgSizeLimit                  | max_message_bytes                                                |
| limit (behaviour)             | overflow                                                         |
| maxActiveCount,               | active_consumers; max_consumers, if there may not be any number  |
| maxFailoverCount              | that stand by                                                    |
| useDMQ                        | dead letters go to mq.sys.dmq                                    |
| maxPrefetch                   | how much a consumer asks for is the listener's `prefetch`        |
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from sluicemq.migrate.openmq.records import MapEntry, ParsedObject
from sluicemq.migrate.plan import Plan, PlannedSubscription
from sluicemq.migrate.source_files import Damage
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.protocols.jmq.destinations import DEAD_MESSAGES, Pattern, is_wildcard
from sluicemq.protocols.jmq.subscriptions import (
    DURABLE,
    SHARED_DURABLE,
    pattern_name,
    subscription_name,
)

TEMPORARY: Final = 0x10
AUTOMATIC: Final = 0x20
INTERNAL: Final = 0x40

OVERFLOW: Final = {
    0: Overflow.BLOCK,
    1: Overflow.DROP_OLDEST,
    2: Overflow.REJECT,
    3: Overflow.DROP_LOWEST,
}
"""Open MQ's limit behaviours: FLOW_CONTROL, REMOVE_OLDEST, REJECT_NEWEST, REMOVE_LOW_PRIORITY."""
USUAL_PRODUCERS: Final = (100, -1, 0)
USUAL_PREFETCH: Final = (1000, -1, 0)

StoredT = TypeVar("StoredT", bound=msgspec.Struct)


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


def _stored(entry: MapEntry, expected: type[StoredT], what: str) -> StoredT:
    try:
        return msgspec.convert(entry.value, expected)
    except msgspec.ValidationError:
        raise Damage(f"{entry.where}: this is no {what}") from None


# --- destinations ------------------------------------------------------------------------------


def unique_name(address: Address) -> str:
    """Return the name of a destination in the store, such as `Q:orders`, without slashes."""
    return f"{address.kind.name[0]}:{address.name.replace('/', '_')}"


def consumer_limits(active: int, standing_by: int) -> tuple[int, int]:
    """Return active_consumers and max_consumers for numbers of active and of backup consumers;
    -1 = unlimited."""
    return max(0, active), active + standing_by if active > 0 and standing_by >= 0 else 0


def read_destination(plan: Plan, entry: MapEntry) -> Address | None:
    """Read an entry of the list of destinations, and add it to the plan if an administrator created
    it. Returns None for a temporary destination, whose messages are not migrated. Raises Damage."""
    stored = _stored(entry, StoredDestination, "destination")
    if not stored.uid.name:
        raise Damage(f"{entry.where}: a destination has no name")
    address = Address(Kind.QUEUE if stored.uid.is_queue else Kind.TOPIC, stored.uid.name)
    if stored.type & TEMPORARY:
        plan.leave("destination", str(address), "it is temporary, and its connection has gone")
        return None
    if not stored.type & INTERNAL:
        _report_unsupported(plan, address, stored)
    if not stored.type & (AUTOMATIC | INTERNAL):
        active, most = consumer_limits(stored.max_active_count, stored.max_failover_count)
        plan.destinations[address] = DestinationSettings(
            max_messages=max(0, stored.count_limit),
            max_bytes=_bytes(stored.memory_limit),
            max_message_bytes=_bytes(stored.msg_size_limit),
            overflow=OVERFLOW.get(stored.limit, Overflow.REJECT),
            active_consumers=active,
            max_consumers=most,
            dead_letter=stored.use_dmq,
            dead_letter_queue=DEAD_MESSAGES.name if stored.use_dmq else "",
        )
    return address


def _bytes(limit: SizeString | None) -> int:
    return max(0, limit.bytes) if limit is not None else 0


def _report_unsupported(plan: Plan, address: Address, stored: StoredDestination) -> None:
    """Report the settings of a destination that have no equivalent."""
    producers, prefetch = stored.max_producer_limit, stored.max_prefetch
    overriding = stored.override_ttl or stored.override_priority
    for applies, setting, reason in (
        (
            producers not in USUAL_PRODUCERS,
            f"maxNumProducers={producers}",
            "producers are not limited",
        ),
        (
            prefetch not in USUAL_PREFETCH,
            f"consumerFlowLimit={prefetch}",
            "see `prefetch` of a listener",
        ),
        (stored.validate_xml_schema, "validateXMLSchemaEnabled", "bodies are not validated"),
        (overriding, "overriding of headers", "see message_ttl"),
    ):
        if applies:
            plan.leave("setting", f"{address}: {setting}", reason)


# --- durable subscriptions ---------------------------------------------------------------------


def uid_number(value: object, where: str) -> int:
    """Parse the number of a ConsumerUID, or of a TransactionUID. Raises Damage."""
    if not isinstance(value, ParsedObject) or len(value.written) < 8:
        raise Damage(f"{where}: a consumer or a transaction has no number")
    return int.from_bytes(value.written[:8], "big", signed=True)


def read_subscription(
    plan: Plan, entry: MapEntry, topics: list[str]
) -> tuple[int, list[PlannedSubscription]]:
    """Read an entry of the list of interests. Returns the number by which messages refer to it, and
    its equivalents: one for each topic that a wildcard matches. Raises Damage."""
    stored = _stored(entry, StoredSubscription, "durable subscription")
    number = uid_number(entry.key, entry.where)
    if stored.dest.is_queue or not stored.dest.name or not stored.durable_name:
        raise Damage(f"{entry.where}: this is no durable subscription")
    client_id = stored.client_id or ""
    topic = stored.dest.name
    name = subscription_name(
        SHARED_DURABLE if stored.jmsshared else DURABLE, client_id, stored.durable_name
    )
    exclude = client_id if stored.no_local else ""
    names = {topic: name}
    if is_wildcard(topic):
        reason = "the wildcard stands for no topic that there is; its client subscribes again"
        try:
            matches = Pattern(topic).matches
            names = {each: pattern_name(name, topic) for each in topics if matches(each)}
        except ValueError as fault:
            names, reason = {}, str(fault)
        if not names:
            plan.leave("subscription", f"{name} of topic {topic}", reason)
    return number, [
        PlannedSubscription(each, own, stored.selstr or "", exclude) for each, own in names.items()
    ]

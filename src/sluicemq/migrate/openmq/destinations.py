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

from struct import Struct
from typing import Any, Final, NamedTuple

from sluicemq.migrate.openmq.records import MapEntry
from sluicemq.migrate.openmq.serial import ParsedObject
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

_i64: Final = Struct(">q")


class OpenmqDestination(NamedTuple):
    """A destination of the store. `unique` is its name in the store: Q: or T:, and the name without
    slashes."""

    address: Address
    unique: str
    type: int
    settings: DestinationSettings

    @property
    def directory(self) -> str:
        """Return the directory name of its messages."""
        return self.unique.replace(":", "")


def unique_name(queue: bool, name: str) -> str:
    """Return the name of a destination in the store, such as `Q:orders`."""
    return ("Q:" if queue else "T:") + name.replace("/", "_")


def destination_of(plan: Plan, entry: MapEntry) -> OpenmqDestination:
    """Read an entry of the list of destinations. Raises Damage."""
    value = entry.value
    if not isinstance(value, ParsedObject) or "uid" not in value.fields:
        raise Damage(f"{entry.where}: this is no destination")
    fields = value.fields
    queue, name = _identity(fields["uid"], entry.where)
    address = Address(Kind.QUEUE if queue else Kind.TOPIC, name)
    kind = _number(fields.get("type"))
    if not kind & (TEMPORARY | INTERNAL):
        _report_unsupported(plan, address, fields)
    return OpenmqDestination(address, unique_name(queue, name), kind, _settings(fields))


def _identity(uid: object, where: str) -> tuple[bool, str]:
    """Parse a DestinationUID: return whether it is a queue, and its name."""
    if isinstance(uid, ParsedObject):
        queue, name = uid.fields.get("isQueue"), uid.fields.get("name")
        if isinstance(queue, bool) and isinstance(name, str) and name:
            return queue, name
    raise Damage(f"{where}: a destination has no name")


def _settings(fields: dict[str, Any]) -> DestinationSettings:
    active = max(0, _number(fields.get("maxActiveCount")))
    standing_by = _number(fields.get("maxFailoverCount"))
    dead_letter = fields.get("useDMQ") is True
    return DestinationSettings(
        max_messages=max(0, _number(fields.get("countLimit"))),
        max_bytes=_size(fields.get("memoryLimit")),
        max_message_bytes=_size(fields.get("msgSizeLimit")),
        overflow=OVERFLOW.get(_number(fields.get("limit")), Overflow.REJECT),
        active_consumers=active,
        max_consumers=active + standing_by if active and standing_by >= 0 else 0,
        dead_letter=dead_letter,
        dead_letter_queue=DEAD_MESSAGES.name if dead_letter else "",
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _size(value: object) -> int:
    return max(0, _number(value.fields.get("bytes"))) if isinstance(value, ParsedObject) else 0


def _report_unsupported(plan: Plan, address: Address, fields: dict[str, Any]) -> None:
    """Report the settings of a destination that have no equivalent."""
    name = str(address)
    if _number(fields.get("maxProducerLimit")) not in USUAL_PRODUCERS:
        limit = fields["maxProducerLimit"]
        plan.leave("setting", f"{name}: maxNumProducers={limit}", "producers are not limited")
    if _number(fields.get("maxPrefetch")) not in USUAL_PREFETCH:
        limit = fields["maxPrefetch"]
        plan.leave("setting", f"{name}: consumerFlowLimit={limit}", "see `prefetch` of a listener")
    if fields.get("validateXMLSchemaEnabled") is True:
        plan.leave("setting", f"{name}: validateXMLSchemaEnabled", "bodies are not validated")
    if fields.get("overrideTTL") is True or fields.get("overrideP") is True:
        plan.leave("setting", f"{name}: overriding of headers", "see message_ttl")


class StoredSubscription(NamedTuple):
    """A durable subscription of the store. `number` is how messages refer to it; `topic` may be a
    wildcard."""

    number: int
    topic: str
    sort: str
    client_id: str
    durable: str
    selector: str
    no_local: bool

    def name(self) -> str:
        """Return its name as our JMQ clients write it."""
        return subscription_name(self.sort, self.client_id, self.durable)


def consumer_number(value: object) -> int | None:
    """Parse the number of a ConsumerUID."""
    if not isinstance(value, ParsedObject):
        return None
    if len(value.written) >= _i64.size:
        return int(_i64.unpack_from(value.written)[0])
    number = value.fields.get("id")  # format of versions before 3.5
    return number if isinstance(number, int) else None


def interest_of(entry: MapEntry) -> StoredSubscription:
    """Read an entry of the list of interests. Raises Damage."""
    value = entry.value
    number = consumer_number(entry.key)
    if number is None or not isinstance(value, ParsedObject):
        raise Damage(f"{entry.where}: this is no durable subscription")
    fields = value.fields
    queue, topic = _identity(fields.get("dest"), entry.where)
    durable = fields.get("durableName")
    if queue or not isinstance(durable, str) or not durable:
        raise Damage(f"{entry.where}: a durable subscription has no name")
    client = fields.get("clientID")
    selector = fields.get("selstr")
    return StoredSubscription(
        number,
        topic,
        SHARED_DURABLE if fields.get("jmsshared") is True else DURABLE,
        client if isinstance(client, str) else "",
        durable,
        selector if isinstance(selector, str) else "",
        fields.get("noLocal") is True,
    )


def subscriptions_of(interest: StoredSubscription, topics: list[str]) -> list[PlannedSubscription]:
    """Return the equivalent subscriptions: one for each topic that a wildcard matches. Raises
    ValueError for an invalid wildcard."""
    name = interest.name()
    exclude = interest.client_id if interest.no_local else ""
    if not is_wildcard(interest.topic):
        return [PlannedSubscription(interest.topic, name, interest.selector, exclude)]
    pattern = Pattern(interest.topic)
    return [
        PlannedSubscription(topic, pattern_name(name, interest.topic), interest.selector, exclude)
        for topic in topics
        if pattern.matches(topic)
    ]

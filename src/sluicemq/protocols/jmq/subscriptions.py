"""Subscriptions of consumers: the subscriptions of the engine to which a consumer is attached; the
messages that return to them because a client cannot process them; and the client ids of durable
ones.

| consumer of                             | subscription                                           |
|-----------------------------------------|--------------------------------------------------------|
| a queue                                 | that of the queue; the consumer has the selector       |
| a topic                                 | one of its own                                         |
| a topic, JMQDurableName                 | durable, by client id and name; one consumer at a time |
| the same, JMQShare                      | durable; several consumers, all with JMQShare          |
| a topic, JMQShare                       | one for all of this client id, topic and selector      |
| a topic, JMQJMSShare                    | one for all of this client id (or none) and            |
|                                         | JMQSharedSubscriptionName; durable with JMQDurableName |
| a wildcard                              | each of these once for every topic that it matches,    |
|                                         | and for topics that are created later                  |

A client id belongs to one connection, or to several connections that all set JMQShare; with a
JMQNamespace it is shared between namespaces, but unique within each. (Protocol specification,
SET_CLIENTID.) Connections that share one belong to the same user, superusers excepted. While no
connection has it, it belongs to the user who owns its durable subscriptions. `${u}` at the
beginning is replaced by the user's name.

A durable or shared subscription belongs to the user who created it (protocols/ownership.py), as
does a client id while it has durable subscriptions: those created with it later belong to that user
too, regardless of their creator.

Names of subscriptions are `<type>:<client id>/<name>`, quoted as in URLs; the name of a durable
subscription of a wildcard is followed by a space and the wildcard. Such a subscription consists of
one of the topic `mq.sys.wildcards`, which receives no messages but keeps the wildcard and its terms
while no other topic matches, and one of each topic that matches. (Protocol specification,
ADD_CONSUMER; JMS 2.0 section 8.3.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Selector, Subscription
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import BrokerError, SubscriptionInUse
from sluicemq.protocols.jmq.destinations import (
    DEFAULTS,
    Pattern,
    is_reserved,
    is_wildcard,
    permission_name,
)
from sluicemq.protocols.jmq.packets import RejectedRequest, Status
from sluicemq.protocols.ownership import claim_subscription, may_use

DURABLE: Final = "durable"
SHARED_DURABLE: Final = "shared-durable"
GROUP: Final = "group"
SHARED: Final = "shared"
EXCLUSIVE: Final = "consumer"
OF_QUEUE: Final = "queue"

_OTHER_TYPE: Final = {DURABLE: SHARED_DURABLE, SHARED_DURABLE: DURABLE}
WILDCARD_TOPIC: Final = Address(Kind.TOPIC, "mq.sys.wildcards")
"""Topic that keeps the durable subscriptions of wildcards. No wildcard matches it."""
_MAX_CLOSED: Final = 64
"""Number of closed subscriptions that `Durables` tolerates besides as many as are open."""


def subscription_name(type: str, client_id: str, name: str) -> str:
    """Return the name of a subscription (format: see the module)."""
    return f"{type}:{_quoted(client_id)}/{_quoted(name)}"


def pattern_name(name: str, pattern: str) -> str:
    """Return the name of a durable subscription of a wildcard."""
    return f"{name} {_quoted(pattern)}"


def wildcard_in(name: str) -> str:
    """Return the wildcard in the name of a durable subscription, "" if it has none."""
    return unquote(name.partition(" ")[2], errors="surrogatepass")


@lru_cache(maxsize=4096)
def _pattern_in(name: str) -> Pattern | None:
    """Return the parsed wildcard in the name of a durable subscription, None without a valid
    one."""
    try:
        return Pattern(wildcard_in(name))
    except ValueError:
        return None


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")


class Terms(NamedTuple):
    """Terms of a consumer's subscription.

    name      name of the subscription; see the module
    type      DURABLE, SHARED_DURABLE, GROUP, SHARED or EXCLUSIVE of a topic; OF_QUEUE
    address   queue, topic or wildcard
    sharing   True if the subscription of a topic may have other consumers
    exclude   sender whose messages are excluded (no-local), or None
    owner     owner of a new subscription
    """

    name: str
    type: str
    address: Address
    sharing: bool
    selector: Selector | None
    exclude: object
    owner: str = ""

    @property
    def durable(self) -> bool:
        """True if the subscription outlives its consumers."""
        return self.type in _OTHER_TYPE

    @property
    def engine_name(self) -> str:
        """Name of the engine's subscriptions of these terms."""
        if self.durable and is_wildcard(self.address):
            return pattern_name(self.name, self.address.name)
        return self.name


def matching_topics(broker: Broker, pattern: Pattern) -> list[Destination]:
    """Return the existing topics that match the wildcard."""
    return [topic for topic in broker.destinations.values() if matches_topic(pattern, topic)]


def matches_topic(pattern: Pattern, topic: Destination) -> bool:
    """Return whether a wildcard matches a topic.

    Reserved names match only wildcards that begin with mq.
    """
    if not topic.topic or topic.temporary or topic.address == WILDCARD_TOPIC:
        return False
    if is_reserved(topic.address) and not is_reserved(Address(Kind.TOPIC, pattern.text)):
        return False
    return pattern.matches(topic.name)


def wildcard_topic(broker: Broker) -> Destination:
    """Return the topic that keeps the wildcards, creating it if needed."""
    destinations = broker.destinations
    return destinations.find(WILDCARD_TOPIC) or destinations.create(WILDCARD_TOPIC, DEFAULTS)


def topic_of(subscription: Subscription) -> Address:
    """Return the topic or wildcard of a subscription."""
    return Address(Kind.TOPIC, wildcard_in(subscription.name) or subscription.destination.name)


def may_use_subscription(identity: Identity, subscription: Subscription) -> bool:
    """Return whether the user may consume from, replace or delete the subscription."""
    name = permission_name(topic_of(subscription))
    return may_use(identity, subscription.owner, [(Operation.CONSUME, name)])


class Durables:
    """Durable subscriptions of JMQ clients by name, and the topics of shared ones. A name is one
    subscription, even if the engine has several for a wildcard.

    wildcard_consumers  functions that attach the consumers of wildcards to a new topic
    """

    __slots__ = ("_added", "_broker", "_names", "_shared", "wildcard_consumers")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names: dict[str, dict[str, dict[Subscription, None]]] = {}
        """Subscriptions by client id, quoted as in the names, and name. Some may be closed, because
        their topic was deleted."""
        self._added = 0
        """Number of calls of `add` since the last search for closed ones."""
        self._shared: dict[str, tuple[str, int]] = {}
        """Topics of the shared subscriptions that are not durable, and the numbers of their
        consumers, by name."""
        self.wildcard_consumers: dict[Callable[[Destination], None], None] = {}
        broker.destinations.refuse_messages(WILDCARD_TOPIC)
        for subscription in list(broker.durable_subscriptions.values()):
            if subscription.name.partition(":")[0] in _OTHER_TYPE:
                self.add(subscription)
        broker.destinations.creations.append(self._subscribe_to_new_topic)

    def find(self, name: str) -> list[Subscription]:
        """Return the open subscriptions of that name."""
        client = _client_part(name)
        names = self._names.get(client, {})
        alive = [subscription for subscription in names.get(name, ()) if not subscription.closed]
        if alive:
            names[name] = dict.fromkeys(alive)
        elif names.pop(name, None) is not None and not names:
            del self._names[client]
        return alive

    def add(self, subscription: Subscription) -> None:
        """Add a durable subscription of the engine."""
        name = subscription.name.partition(" ")[0]
        names = self._names.setdefault(_client_part(name), {})
        names.setdefault(name, {})[subscription] = None
        self._added += 1
        if self._added > len(self._broker.durable_subscriptions) + _MAX_CLOSED:
            self._added = 0
            for names in list(self._names.values()):
                for name in list(names):
                    self.find(name)  # removes those that are closed

    def add_shared_consumer(self, name: str, topic: str) -> None:
        """Add a consumer to a shared subscription that is not durable.

        Raises SubscriptionInUse if the name has consumers of another topic (JMS 2.0 section 8.3.2).
        """
        current_topic, consumers = self._shared.get(name, (topic, 0))
        if current_topic != topic:
            raise SubscriptionInUse(f"{name} is a subscription of the topic {current_topic}")
        self._shared[name] = (topic, consumers + 1)

    def remove_shared_consumer(self, name: str) -> None:
        """Remove a consumer from a shared subscription that is not durable."""
        topic, consumers = self._shared.pop(name)
        if consumers > 1:
            self._shared[name] = (topic, consumers - 1)

    # --- wildcards ---------------------------------------------------------------------------

    def _subscribe_to_new_topic(self, topic: Destination) -> None:
        """Extend the durable subscriptions of wildcards that match a new topic to it, then attach
        their consumers."""
        kept = self._broker.destinations.find(WILDCARD_TOPIC)
        for subscription in list(kept.subscriptions.values()) if kept is not None else ():
            pattern = _pattern_in(subscription.name) if subscription.durable else None
            if pattern is not None and matches_topic(pattern, topic):
                with suppress(BrokerError):
                    self.add(
                        self._broker.subscribe(
                            topic,
                            subscription.name,
                            durable=True,
                            shared=True,
                            selector=subscription.selector,
                            exclude=subscription.exclude,
                            owner=subscription.owner,
                        )
                    )
        for attach in list(self.wildcard_consumers):
            attach(topic)

    # --- owners ------------------------------------------------------------------------------

    def owner_for(self, client_id: str, name: str, identity: Identity) -> str:
        """Return the owner of a new subscription: the owner of the one that it joins or replaces,
        or of the client id, else the requesting user."""
        owner = self._owner_of(name) or (client_id and self.owner_of(client_id))
        return owner or identity.name

    def owner_of(self, client_id: str) -> str:
        """Return the owner of a client id, "" if it has none."""
        return next(filter(None, map(self._owner_of, self._names_of(client_id))), "")

    def may_use_client_id(self, client_id: str, identity: Identity) -> bool:
        """Return whether the user may use a client id: it has no other owner.

        If no durable subscription of the client id has an owner, the user must be able to claim
        one.
        """
        if identity.superuser:
            return True
        owner = self.owner_of(client_id)
        if owner:
            return owner == identity.name
        names = self._names_of(client_id)
        return not names or any(self.may_use(name, identity) for name in names)

    def claim(self, client_id: str, identity: Identity) -> None:
        """Make the user the owner of the client id's durable subscriptions that have no owner and
        from whose topics the user may consume."""
        for name in self._names_of(client_id):
            if self.may_use(name, identity):
                for subscription in self.find(name):
                    claim_subscription(self._broker, identity, subscription)

    def may_use(self, name: str, identity: Identity) -> bool:
        """Return whether the user may use, replace or delete all subscriptions of that name."""
        return all(may_use_subscription(identity, subscription) for subscription in self.find(name))

    def _names_of(self, client_id: str) -> list[str]:
        """Return the names of a client id's durable subscriptions."""
        return list(self._names.get(_quoted(client_id), ()))

    def _owner_of(self, name: str) -> str:
        return next((item.owner for item in self.find(name) if item.owner), "")

    # --- replacing and removing --------------------------------------------------------------

    def expect_replaceable(self, terms: Terms, identity: Identity) -> list[Subscription]:
        """Return the subscriptions of the name of a new one, for `delete_others`.

        Raises SubscriptionInUse if the subscription of that name belongs to another user, differs
        in sharing, or has another topic and consumers.
        """
        if not self.may_use(terms.name, identity):
            raise not_owner_error(terms.name)
        type, _, suffix = terms.name.partition(":")
        if self.find(f"{_OTHER_TYPE[type]}:{suffix}"):
            raise SubscriptionInUse(
                f"{suffix} exists as a subscription with another kind of sharing"
            )
        expect_unused(terms.name, self._replaced(terms))
        return self.find(terms.name)

    def delete_replaced(self, terms: Terms) -> None:
        """Delete the subscription of that name with another topic (JMS 1.1 section 6.11.1), once
        the new one exists; the engine replaces one with other terms."""
        for subscription in self._replaced(terms):
            self._broker.unsubscribe(subscription)

    def delete_others(self, name: str, kept: list[Subscription]) -> None:
        """Delete all subscriptions of that name but these."""
        for subscription in self.find(name):
            if subscription not in kept:
                self._broker.unsubscribe(subscription)
        self.find(name)  # removes the name if it is no longer in use

    def _replaced(self, terms: Terms) -> list[Subscription]:
        """Return the subscriptions of that name to other topics or wildcards."""
        return [
            subscription
            for subscription in self.find(terms.name)
            if topic_of(subscription) != terms.address
        ]


def expect_unused(name: str, subscriptions: list[Subscription], closing: object = None) -> None:
    """Raise SubscriptionInUse if one of the subscriptions has other consumers than `closing`."""
    for subscription in subscriptions:
        if any(consumer.sink is not closing for consumer in subscription.consumers):
            raise SubscriptionInUse(f"{name} has a consumer")


def _client_part(name: str) -> str:
    """Return the client id in the name of a subscription, quoted."""
    return name.partition(":")[2].partition("/")[0]


def not_owner_error(name: str) -> SubscriptionInUse:
    """Return the refusal of a subscription that another user owns."""
    return SubscriptionInUse(f"the subscription {name} belongs to another user")


# --- messages that a client cannot process ------------------------------------------------------

GIVEN_UP: Final = "client"
"""Reason of a dead message that a client could not process."""
MAX_REROUTED: Final = 20
"""Number of deliveries after which a message that its consumers reject becomes a dead message."""


def reroute(
    broker: Broker, engine_consumer: Consumer, delivery: Delivery, *, too_large: bool = False
) -> None:
    """Requeue a message that a client could not process, also for the same consumer; after
    MAX_REROUTED deliveries it becomes a dead letter. One that is `too_large` for this client, or
    for any packet, does so without another consumer, even if its destination keeps none: it would
    return at once. With another one, `max_attempts` does not apply to it."""
    consumers = delivery.subscription.consumers
    # a closed consumer is not among them
    has_others = len(consumers) > (engine_consumer in consumers)
    if (has_others or not too_large) and delivery.attempts < MAX_REROUTED:
        broker.release(engine_consumer, [delivery.sequence], ignore_max_attempts=too_large)
    else:
        broker.dead_letter(
            delivery.subscription,
            delivery.sequence,
            GIVEN_UP,
            force=too_large,
            consumer=engine_consumer,
        )


# --- client ids --------------------------------------------------------------------------------

MAX_CLIENT_ID: Final = 1024
"""Maximum length of a client id in characters."""
_USER_PLACEHOLDER: Final = "${u}"
_INVALID_START: Final = "${u:"
_INVALID_PART: Final = "${%%}"


class Sender:
    """Client id of a connection, and the no-local token of its messages, which equals itself and
    the client id.

    (Protocol specification, JMQNoLocal.)
    """

    __slots__ = ("client_id",)

    def __init__(self) -> None:
        self.client_id = ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.client_id) and self.client_id == other
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return self.client_id


class ClientIdUse(NamedTuple):
    """Use of a client id by a connection; `namespace` is "" if there is none."""

    shared: bool
    namespace: str
    user: str


class ClientIds:
    """Client ids in use, and the connections that use them."""

    __slots__ = ("_uses",)

    def __init__(self) -> None:
        self._uses: dict[str, dict[Sender, ClientIdUse]] = {}

    def assign(
        self, sender: Sender, client_id: str, identity: Identity, *, shared: bool, namespace: str
    ) -> None:
        """Assign a client id to a connection instead of its present one.

        Raises RejectedRequest: CONFLICT.
        """
        if not shared:
            namespace = ""
        for other_sender, use in self._uses.get(client_id, {}).items():
            if other_sender is sender:
                continue
            is_other_user = use.user != identity.name and not identity.superuser
            if not shared or not use.shared or is_other_user:
                raise client_id_in_use_error(client_id)
            if namespace and use.namespace in ("", namespace):
                scope = f"the namespace {namespace}" if use.namespace else "no namespace"
                raise RejectedRequest(
                    Status.CONFLICT, f"the client id {client_id} is in use in {scope}"
                )
        self.release(sender)
        self._uses.setdefault(client_id, {})[sender] = ClientIdUse(shared, namespace, identity.name)
        sender.client_id = client_id

    def release(self, sender: Sender) -> None:
        """Let others use the client id of a connection. Its messages keep the client id."""
        uses = self._uses.get(sender.client_id, {})
        uses.pop(sender, None)
        if not uses:
            self._uses.pop(sender.client_id, None)


def client_id_in_use_error(client_id: str) -> RejectedRequest:
    """Return the refusal of a client id that another connection has, or that another user owns."""
    return RejectedRequest(Status.CONFLICT, f"the client id {client_id} is in use")


def expand_client_id(client_id: str, user: str) -> str:
    """Return the client id with `${u}` replaced. Raises RejectedRequest: BAD_REQUEST."""
    if client_id.startswith(_USER_PLACEHOLDER):
        client_id = user + client_id.removeprefix(_USER_PLACEHOLDER)
    if (
        not client_id.strip()
        or len(client_id) > MAX_CLIENT_ID
        or client_id.startswith(_INVALID_START)
        or _INVALID_PART in client_id
    ):
        raise RejectedRequest(Status.BAD_REQUEST, f"{client_id[:80]!r} is not a valid client id")
    return client_id

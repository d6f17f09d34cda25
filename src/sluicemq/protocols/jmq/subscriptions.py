"""Subscriptions of consumers: the subscriptions of the engine to which a consumer is attached; and
the client ids of durable ones.

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
subscription of a wildcard is followed by a space and the wildcard, which is needed after a restart.
(Protocol specification, ADD_CONSUMER; JMS 2.0 section 8.3.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from sluicemq.broker import Broker, Consumer, Destination, Selector, Subscription
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import BrokerError, SubscriptionInUse
from sluicemq.protocols.jmq.destinations import Pattern, is_reserved
from sluicemq.protocols.jmq.packets import RejectedRequest, Status
from sluicemq.protocols.ownership import claim_subscription, may_use, may_use_subscription

DURABLE: Final = "durable"
SHARED_DURABLE: Final = "shared-durable"
GROUP: Final = "group"
SHARED: Final = "shared"
ALONE: Final = "consumer"
OF_QUEUE: Final = "queue"

_OTHER_TYPE: Final = {DURABLE: SHARED_DURABLE, SHARED_DURABLE: DURABLE}


def subscription_name(type: str, client_id: str, name: str) -> str:
    """Return the name of a subscription (format: see the module)."""
    return f"{type}:{_quoted(client_id)}/{_quoted(name)}"


def pattern_name(name: str, pattern: str) -> str:
    """Return the name of a durable subscription of a wildcard."""
    return f"{name} {_quoted(pattern)}"


def wildcard_of(subscription: Subscription) -> str:
    """Return the wildcard of a durable subscription, "" if it has none."""
    return unquote(subscription.name.partition(" ")[2], errors="surrogatepass")


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")


class Terms(NamedTuple):
    """Terms of a consumer's subscription.

    name      name of the subscription; see the module
    type      DURABLE, SHARED_DURABLE, GROUP, SHARED or ALONE of a topic; OF_QUEUE
    sharing   True if the subscription may have other consumers
    exclude   sender whose messages are excluded (no-local), or None
    owner     owner of a new subscription
    """

    name: str
    type: str
    sharing: bool
    selector: Selector | None
    exclude: object
    owner: str = ""

    @property
    def durable(self) -> bool:
        """True if the subscription outlives its consumers."""
        return self.type in _OTHER_TYPE


def engine_name(terms: Terms, pattern: Pattern | None) -> str:
    """Return the name of the engine's subscription of these terms."""
    if pattern is not None and terms.durable:
        return pattern_name(terms.name, pattern.text)
    return terms.name


def subscribe(
    broker: Broker,
    topic: Destination,
    terms: Terms,
    pattern: Pattern | None,
    creator: str | None = None,
) -> Subscription:
    """Return the topic's subscription with these terms, creating it if needed.

    A new durable one counts against the quota of `creator` (Identity.creator). Raises BrokerError.
    """
    return broker.subscribe(
        topic,
        engine_name(terms, pattern),
        durable=terms.durable,
        # each consumer states whether a durable one is shared, and this can change
        shared=terms.type != ALONE,
        selector=terms.selector,
        exclude=terms.exclude,
        owner=terms.owner,
        creator=creator,
    )


def matching_topics(broker: Broker, pattern: Pattern) -> list[Destination]:
    """Return the existing topics that match the wildcard."""
    return [topic for topic in broker.destinations.values() if matches_topic(pattern, topic)]


def matches_topic(pattern: Pattern, topic: Destination) -> bool:
    """Return whether a wildcard matches a topic.

    Reserved names match only wildcards that begin with mq.
    """
    if not topic.topic or topic.temporary:
        return False
    if is_reserved(topic.address) and not is_reserved(Address(Kind.TOPIC, pattern.text)):
        return False
    return pattern.matches(topic.name)


DurableState = tuple[list[Subscription], tuple[Terms, Pattern] | None]
"""Subscriptions of a durable name, and its wildcard."""


class Durables:
    """Durable subscriptions of JMQ clients by name, and the topics of shared ones. A name is one
    subscription, even if the engine has one for each topic that a wildcard matches."""

    __slots__ = ("_broker", "_names", "_shared", "_wildcard_consumers", "_wildcards")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._wildcards: dict[str, tuple[Terms, Pattern]] = {}
        """Wildcards, whose subscriptions include topics that are created later."""
        self._wildcard_consumers: dict[str, dict[object, bool]] = {}
        """Consumers of wildcards, which may match no topic, and whether they share, by name."""
        self._names: dict[str, dict[str, dict[Subscription, None]]] = {}
        """Subscriptions by client id, quoted as in the names, and name."""
        self._shared: dict[str, tuple[str, int]] = {}
        """Topics of the shared subscriptions that are not durable, and the numbers of their
        consumers, by name."""
        for subscription in broker.durable_subscriptions.values():
            name = subscription.name.partition(" ")[0]
            pattern = wildcard_of(subscription)
            type = name.partition(":")[0]
            if type not in _OTHER_TYPE:
                continue
            self.add(name, subscription)
            if pattern:
                terms = Terms(
                    name,
                    type,
                    True,
                    subscription.selector,
                    subscription.exclude,
                    subscription.owner,
                )
                with suppress(ValueError):
                    self.add_wildcard(terms, Pattern(pattern))
        broker.destinations.creations.append(self._subscribe_to_new_topic)

    def find(self, name: str) -> list[Subscription]:
        """Return the open subscriptions of that name."""
        client = _client_part(name)
        names = self._names.get(client, {})
        alive = [subscription for subscription in names.get(name, ()) if not subscription.closed]
        if alive or name in self._wildcards:
            names[name] = dict.fromkeys(alive)
        elif names.pop(name, None) is not None and not names:
            del self._names[client]
        return alive

    def add(self, name: str, *subscriptions: Subscription) -> None:
        """Add subscriptions to those of a name."""
        names = self._names.setdefault(_client_part(name), {})
        names.setdefault(name, {}).update(dict.fromkeys(subscriptions))

    def add_wildcard(self, terms: Terms, pattern: Pattern) -> None:
        """Subscribe to topics that are created later and match the wildcard."""
        self._wildcards[terms.name] = (terms, pattern)
        self.add(terms.name)

    def add_wildcard_consumer(self, terms: Terms, consumer: object) -> None:
        """Add a consumer to a wildcard."""
        self._wildcard_consumers.setdefault(terms.name, {})[consumer] = terms.sharing

    def remove_wildcard_consumer(self, name: str, consumer: object) -> None:
        """Remove a consumer from a wildcard, if it is one of its consumers."""
        consumers = self._wildcard_consumers.get(name, {})
        consumers.pop(consumer, None)
        if not consumers:
            self._wildcard_consumers.pop(name, None)

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

    def _subscribe_to_new_topic(self, topic: Destination) -> None:
        for terms, pattern in list(self._wildcards.values()):
            if matches_topic(pattern, topic):
                with suppress(BrokerError):
                    self.add(terms.name, subscribe(self._broker, topic, terms, pattern))

    # --- owners ------------------------------------------------------------------------------

    def owner_for(self, client_id: str, name: str, identity: Identity) -> str:
        """Return the owner of a new subscription: the owner of the one that it joins or replaces,
        or of the client id, else the requesting user."""
        owner = next(filter(None, self._owners(name)), "")
        if not owner and client_id:
            owner = self.owner_of(client_id)
        return owner or identity.name

    def owner_of(self, client_id: str) -> str:
        """Return the owner of a client id, "" if it has none."""
        names = list(self._names.get(_quoted(client_id), ()))
        return next((owner for name in names for owner in self._owners(name) if owner), "")

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
        names = list(self._names.get(_quoted(client_id), ()))
        return not names or any(self.may_use(name, identity) for name in names)

    def claim(self, client_id: str, identity: Identity) -> None:
        """Make the user the owner of the client id's durable subscriptions that have no owner and
        from whose topics the user may consume."""
        for name in list(self._names.get(_quoted(client_id), ())):
            if not self.may_use(name, identity):
                continue
            for subscription in self.find(name):
                claim_subscription(self._broker, identity, subscription)
            terms, pattern = self._wildcards.get(name, (None, None))
            if terms is not None and pattern is not None and not terms.owner:
                self._wildcards[name] = (terms._replace(owner=identity.name), pattern)

    def may_use(self, name: str, identity: Identity) -> bool:
        """Return whether the user may use, replace or delete all subscriptions of that name."""
        if not all(
            may_use_subscription(identity, subscription) for subscription in self.find(name)
        ):
            return False
        terms, pattern = self._wildcards.get(name, (None, None))
        if terms is None or pattern is None:
            return True
        return may_use(identity, terms.owner, [(Operation.CONSUME, pattern.text.replace(">", "*"))])

    def _owners(self, name: str) -> Iterator[str]:
        for subscription in self.find(name):
            yield subscription.owner
        if name in self._wildcards:
            yield self._wildcards[name][0].owner

    # --- replacing and removing --------------------------------------------------------------

    def expect_replaceable(self, terms: Terms, topic: str, identity: Identity) -> DurableState:
        """Return the state of the name of a new subscription, for `restore`.

        Raises SubscriptionInUse if the subscription of that name belongs to another user, differs
        in sharing, or has another topic and consumers; of a wildcard also if it has consumers and
        is not shared.
        """
        if not self.may_use(terms.name, identity):
            raise not_owner_error(terms.name)
        type, _, suffix = terms.name.partition(":")
        if self.is_known(f"{_OTHER_TYPE[type]}:{suffix}"):
            raise SubscriptionInUse(
                f"{suffix} exists as a subscription with another kind of sharing"
            )
        check_unused(terms.name, self._replaced(terms.name, topic))
        wildcard = self._wildcards.get(terms.name)
        consumers = self._wildcard_consumers.get(terms.name, {})
        shares = terms.sharing and wildcard is not None and wildcard[1].text == topic
        if consumers and not (shares and all(consumers.values())):
            raise SubscriptionInUse(f"{terms.name} has a consumer")
        return self.find(terms.name), wildcard

    def delete_replaced(self, name: str, topic: str) -> None:
        """Delete the subscription of that name with another topic (JMS 1.1 section 6.11.1), once
        the new one exists; the engine replaces one with other terms."""
        for subscription in self._replaced(name, topic):
            self._broker.unsubscribe(subscription)
        wildcard = self._wildcards.get(name)
        if wildcard is not None and wildcard[1].text != topic:
            del self._wildcards[name]

    def restore(self, name: str, state: DurableState) -> None:
        """Delete what was created since `state` was returned, because the request is refused."""
        subscriptions, wildcard = state
        for subscription in self.find(name):
            if subscription not in subscriptions:
                self._broker.unsubscribe(subscription)
        if wildcard is None:
            self._wildcards.pop(name, None)
        else:
            self._wildcards[name] = wildcard
        self.find(name)  # removes the name if it is no longer in use

    def _replaced(self, name: str, topic: str) -> list[Subscription]:
        """Return the subscriptions of that name to other topics or wildcards."""
        return [
            subscription
            for subscription in self.find(name)
            if (wildcard_of(subscription) or subscription.destination.name) != topic
        ]

    def is_known(self, name: str) -> bool:
        """Return whether there is a subscription of that name, or a wildcard without topics."""
        return name in self._wildcards or bool(self.find(name))

    def expect_unused(
        self, name: str, closing: object = None, engines: Collection[Consumer] = ()
    ) -> None:
        """Raise SubscriptionInUse if a subscription of that name has other consumers than
        `closing`, whose consumers of the engine are `engines`."""
        check_unused(name, self.find(name), engines)
        if any(consumer is not closing for consumer in self._wildcard_consumers.get(name, ())):
            raise SubscriptionInUse(f"{name} has a consumer")

    def remove(self, name: str) -> None:
        """Delete the subscriptions of a name. Raises SubscriptionInUse."""
        self.expect_unused(name)
        no_subscriptions: DurableState = ([], None)
        self.restore(name, no_subscriptions)


def check_unused(
    name: str, subscriptions: list[Subscription], closing: Collection[Consumer] = ()
) -> None:
    """Raise SubscriptionInUse if one of them has other consumers than those `closing`."""
    for subscription in subscriptions:
        if any(consumer not in closing for consumer in subscription.consumers):
            raise SubscriptionInUse(f"{name} has a consumer")


def _client_part(name: str) -> str:
    """Return the client id in the name of a subscription, quoted."""
    return name.partition(":")[2].partition("/")[0]


def not_owner_error(name: str) -> SubscriptionInUse:
    """Return the refusal of a subscription that another user owns."""
    return SubscriptionInUse(f"the subscription {name} belongs to another user")


# --- client ids --------------------------------------------------------------------------------

MAX_CLIENT_ID: Final = 1024
"""Maximum length of a client id in characters."""
_USER: Final = "${u}"
_NO_ID: Final = "${u:"
_NO_PART: Final = "${%%}"


class Holder(NamedTuple):
    """Use of a client id by a connection; `namespace` is "" without one."""

    shared: bool
    namespace: str
    user: str


class ClientIds:
    """Client ids in use. Connections are known by their numbers."""

    __slots__ = ("_client_ids", "_holders")

    def __init__(self) -> None:
        self._holders: dict[str, dict[int, Holder]] = {}
        self._client_ids: dict[int, str] = {}

    def assign(
        self, connection: int, client_id: str, identity: Identity, *, shared: bool, namespace: str
    ) -> None:
        """Assign a client id to a connection instead of its present one.

        Raises RejectedRequest: CONFLICT.
        """
        if not shared:
            namespace = ""
        for other_connection, holder in self._holders.get(client_id, {}).items():
            if other_connection == connection:
                continue
            is_other_user = holder.user != identity.name and not identity.superuser
            if not shared or not holder.shared or is_other_user:
                raise client_id_in_use_error(client_id)
            if namespace and holder.namespace in ("", namespace):
                scope = f"the namespace {namespace}" if holder.namespace else "no namespace"
                raise RejectedRequest(
                    Status.CONFLICT, f"the client id {client_id} is in use in {scope}"
                )
        self.release(connection)
        self._holders.setdefault(client_id, {})[connection] = Holder(
            shared, namespace, identity.name
        )
        self._client_ids[connection] = client_id

    def release(self, connection: int) -> None:
        """Remove the client id of a connection."""
        client_id = self._client_ids.pop(connection, None)
        if client_id is not None:
            holders = self._holders[client_id]
            del holders[connection]
            if not holders:
                del self._holders[client_id]


def client_id_in_use_error(client_id: str) -> RejectedRequest:
    """Return the refusal of a client id that another connection has, or that another user owns."""
    return RejectedRequest(Status.CONFLICT, f"the client id {client_id} is in use")


def expand_client_id(client_id: str, user: str) -> str:
    """Return the client id with `${u}` replaced. Raises RejectedRequest: BAD_REQUEST."""
    if client_id.startswith(_USER):
        client_id = user + client_id.removeprefix(_USER)
    is_invalid = (
        not client_id.strip()
        or len(client_id) > MAX_CLIENT_ID
        or client_id.startswith(_NO_ID)
        or _NO_PART in client_id
    )
    if is_invalid:
        raise RejectedRequest(Status.BAD_REQUEST, f"{client_id[:80]!r} is not a valid client id")
    return client_id

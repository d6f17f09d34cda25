"""What a consumer is interested in: the subscriptions of the engine that it is attached to.

| asked for                               | subscription                                           |
|-----------------------------------------|--------------------------------------------------------|
| a queue                                 | the queue's own; the selector is the consumer's        |
| a topic                                 | one of its own                                         |
| a topic, JMQDurableName                 | durable, by client id and name; one consumer at a time |
| the same, JMQShare                      | durable; several consumers that all say JMQShare       |
| a topic, JMQShare                       | one for all of this client id, topic and selector      |
| a topic, JMQJMSShare                    | one for all of this client id (or none) and            |
|                                         | JMQSharedSubscriptionName; durable with JMQDurableName |
| a wildcard                              | each of these once for every topic that it matches,    |
|                                         | and for those that come into being later               |

Names of subscriptions are `<sort>:<client id>/<name>`, quoted as in URLs; that of a durable one of
a wildcard is followed by a blank and the wildcard, so that it is known after a restart.
(Protocol specification, ADD_CONSUMER; JMS 2.0 section 8.3.)
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from sluicemq.broker import Broker, Consumer, Destination, Selector, Subscription
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import BrokerError, SubscriptionInUse
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.destinations import (
    find_or_create,
    is_reserved,
)
from sluicemq.protocols.jmq.wildcards import Pattern, is_wildcard

DURABLE: Final = "durable"
SHARED_DURABLE: Final = "shared-durable"
GROUP: Final = "group"
SHARED: Final = "shared"
ALONE: Final = "consumer"

_OTHER_SORT: Final = {DURABLE: SHARED_DURABLE, SHARED_DURABLE: DURABLE}


def subscription_name(sort: str, client_id: str, name: str) -> str:
    """See the module."""
    return f"{sort}:{_quoted(client_id)}/{_quoted(name)}"


def pattern_name(name: str, pattern: str) -> str:
    """The same of a durable one of a wildcard."""
    return f"{name} {_quoted(pattern)}"


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")


class Terms(NamedTuple):
    """How a consumer wants to have a topic.

    name      of the subscription; see the module
    sort      DURABLE, SHARED_DURABLE, GROUP, SHARED or ALONE
    sharing   it may have other consumers
    exclude   whose messages are not wanted
    """

    name: str
    sort: str
    sharing: bool
    selector: Selector | None
    exclude: object

    @property
    def durable(self) -> bool:
        """The subscription stays when its consumers go."""
        return self.sort in _OTHER_SORT


class QueueInterest:
    """A queue, or the one that takes its place when it is removed."""

    __slots__ = ("_address", "_broker", "_selector")

    sharing = True

    def __init__(self, broker: Broker, address: Address, selector: Selector | None) -> None:
        self._broker = broker
        self._address = address
        self._selector = selector

    def attach(self, consumer: JmsConsumer) -> None:
        """Raises BrokerError."""
        queue = find_or_create(self._broker, self._address).queue
        # JMS knows no time in which a message has to be acknowledged
        engine = self._broker.attach(
            queue, consumer, consumer.window, selector=self._selector, ack_timeout=0
        )
        consumer.add(engine)

    def lost(self, consumer: JmsConsumer, engine: Consumer) -> None:
        """Somebody else has removed the queue. If it may not be created again, so be it."""
        with suppress(BrokerError):
            self.attach(consumer)

    def left(self, engines: list[Consumer]) -> None:
        """A consumer has left these: the queue stays."""


class TopicInterest:
    """One topic, or with a wildcard all that it matches."""

    __slots__ = ("_broker", "_consumer", "_durables", "_pattern", "_terms", "_topic")

    def __init__(self, broker: Broker, durables: Durables, topic: Address, terms: Terms) -> None:
        self._broker = broker
        self._durables = durables
        self._topic = topic
        self._terms = terms
        self._pattern = Pattern(topic.name) if is_wildcard(topic.name) else None
        self._consumer: JmsConsumer | None = None

    @property
    def sharing(self) -> bool:
        """Its subscription may have other consumers that say so, too."""
        return self._terms.sharing

    def attach(self, consumer: JmsConsumer) -> None:
        """Raises BrokerError."""
        if self._terms.durable:
            self._durables.make_way(self._terms, self._topic.name)
        if self._pattern is None:
            self._join(consumer, find_or_create(self._broker, self._topic))
            return
        if self._terms.durable:
            self._durables.expect(self._terms, self._pattern)
        for topic in matching(self._broker, self._pattern):
            self._join(consumer, topic)
        self._consumer = consumer
        self._broker.creations.append(self._created)

    def _join(self, consumer: JmsConsumer, topic: Destination) -> None:
        terms = self._terms
        subscription = subscribe(self._broker, topic, terms, self._pattern)
        for other in subscription.consumers:
            sink = other.sink
            if not (terms.sharing and isinstance(sink, JmsConsumer) and sink.interest.sharing):
                raise SubscriptionInUse(f"{terms.name} of {topic.address} has its consumer already")
        if terms.durable:
            self._durables.add(terms.name, subscription)
        # JMS knows no time in which a message has to be acknowledged
        engine = self._broker.attach(subscription, consumer, consumer.window, ack_timeout=0)
        consumer.add(engine)

    def _created(self, topic: Destination) -> None:
        """There is another topic, perhaps one that the wildcard matches."""
        assert self._consumer is not None
        assert self._pattern is not None
        if stands_for(self._pattern, topic):
            with suppress(BrokerError):  # it may have all the subscriptions it may have
                self._join(self._consumer, topic)

    def lost(self, consumer: JmsConsumer, engine: Consumer) -> None:
        """Somebody else has removed the topic; or the subscription alone, and that on purpose."""
        if self._pattern is None and engine.subscription.destination.removed:
            with suppress(BrokerError):
                self._join(consumer, find_or_create(self._broker, self._topic))

    def left(self, engines: list[Consumer]) -> None:
        """A consumer has left these: what is not durable goes with the last one."""
        if self._consumer is not None:
            self._consumer = None
            self._broker.creations.remove(self._created)
        if not self._terms.durable:
            for engine in engines:
                subscription = engine.subscription
                if not subscription.consumers and not subscription.closed:
                    self._broker.unsubscribe(subscription)


def subscribe(
    broker: Broker, topic: Destination, terms: Terms, pattern: Pattern | None
) -> Subscription:
    """The topic's subscription of these terms. Raises BrokerError."""
    name = terms.name
    if pattern is not None and terms.durable:
        name = pattern_name(name, pattern.text)
    return broker.subscribe(
        topic,
        name,
        durable=terms.durable,
        # who may share a durable one is said by each consumer, and can change
        shared=terms.sort != ALONE,
        selector=terms.selector,
        exclude=terms.exclude,
    )


def matching(broker: Broker, pattern: Pattern) -> list[Destination]:
    """The topics that the wildcard stands for now."""
    return [topic for topic in broker.destinations.values() if stands_for(pattern, topic)]


def stands_for(pattern: Pattern, topic: Destination) -> bool:
    """Only what an application has named itself is meant, unless the wildcard begins with mq."""
    if not topic.topic or topic.temporary:
        return False
    if is_reserved(topic.address) and not is_reserved(Address(Kind.TOPIC, pattern.text)):
        return False
    return pattern.matches(topic.name)


class Durables:
    """The durable subscriptions of JMQ clients, by name: a name is one subscription, even if the
    engine has one for each topic that a wildcard matches."""

    __slots__ = ("_broker", "_expected", "_found")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._found: dict[str, dict[Subscription, None]] = {}
        self._expected: dict[str, tuple[Terms, Pattern]] = {}
        """Wildcards: topics that come into being later are subscribed to, too."""
        for subscription in broker.durable_subscriptions.values():
            name, _, pattern = subscription.name.partition(" ")
            sort = name.partition(":")[0]
            if sort not in _OTHER_SORT:
                continue
            self.add(name, subscription)
            if pattern:
                terms = Terms(name, sort, True, subscription.selector, subscription.exclude)
                with suppress(ValueError):
                    self.expect(terms, Pattern(unquote(pattern, errors="surrogatepass")))
        broker.creations.append(self._created)

    def find(self, name: str) -> list[Subscription]:
        """What there is of that name."""
        found = self._found.get(name, {})
        alive = [subscription for subscription in found if not subscription.closed]
        if not alive:
            self._found.pop(name, None)
        return alive

    def add(self, name: str, subscription: Subscription) -> None:
        """There is this one, too."""
        self._found.setdefault(name, {})[subscription] = None

    def expect(self, terms: Terms, pattern: Pattern) -> None:
        """Subscribe to what the wildcard matches later."""
        self._expected[terms.name] = (terms, pattern)

    def _created(self, topic: Destination) -> None:
        for terms, pattern in list(self._expected.values()):
            if stands_for(pattern, topic):
                with suppress(BrokerError):
                    self.add(terms.name, subscribe(self._broker, topic, terms, pattern))

    def make_way(self, terms: Terms, topic: str) -> None:
        """Drop what has the name, but another topic (JMS 1.1 section 6.11.1); what has other terms
        is dropped by the engine.

        Raises SubscriptionInUse if that has consumers, or is shared in the other way.
        """
        sort, _, rest = terms.name.partition(":")
        if self.find(f"{_OTHER_SORT[sort]}:{rest}"):
            raise SubscriptionInUse(f"{rest} is a subscription that is shared in another way")
        old = []
        for subscription in self.find(terms.name):
            _, _, pattern = subscription.name.partition(" ")
            meant = unquote(pattern, errors="surrogatepass") or subscription.destination.name
            if meant != topic:
                old.append(subscription)
        self._drop(terms.name, old)

    def remove(self, name: str) -> bool:
        """Unsubscribe; False if there is none. Raises SubscriptionInUse."""
        found = self.find(name)
        known = name in self._expected
        self._drop(name, found)
        self._expected.pop(name, None)
        return known or bool(found)

    def _drop(self, name: str, subscriptions: list[Subscription]) -> None:
        if any(subscription.consumers for subscription in subscriptions):
            raise SubscriptionInUse(f"{name} has a consumer")
        for subscription in subscriptions:
            self._broker.unsubscribe(subscription)
        if subscriptions:
            self._expected.pop(name, None)

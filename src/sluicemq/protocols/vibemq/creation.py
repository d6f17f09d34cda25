"""Creation of queues by VibeMQ clients: on first use, and by CreateQueue.

Each setting of a new queue is taken from the first of these that sets it:

    option of CreateQueue  >  option of the listener  >  [broker.default_destination]  >  VibeMQ's

A queue created on first use has no options of CreateQueue. As on the original broker it is not
deleted when idle, unless `broker.default_destination.idle_timeout` is set, and it exists again
after a restart.

The dead-letter queue of a new queue, if it has one, is created with it; both count against the
quota of the creator.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import CreatedBy, DestinationSettings, Overflow, Provenance
from sluicemq.protocols.vibemq.queues import (
    SETTINGS,
    STRATEGIES,
    Mode,
    QueueOptions,
    Strategy,
    WrittenOptions,
    address,
    find,
)
from sluicemq.protocols.vibemq.wire import NO_LIMIT

_OPTIONS: Final = frozenset(
    {
        "max_messages",
        "overflow",
        "message_ttl",
        "max_attempts",
        "dead_letter",
        "dead_letter_queue",
        "retain_without_subscriptions",
        "priority_ordering",
        "auto_ack",
    }
)
"""Settings of a destination that the options of CreateQueue determine."""


class ListenerDefaults(NamedTuple):
    """Listener options for queues for which a client gives no options; None = not set.

    max_queue_size      ready messages, 1 to NO_LIMIT
    max_retry_attempts  deliveries in total, 1 to NO_LIMIT
    """

    mode: Mode | None = None
    max_queue_size: int | None = None
    overflow: Strategy | None = None
    max_retry_attempts: int | None = None


class QueueCreation:
    """Creates the queues of the clients of one listener.

    options  effective options of a CreateQueue without options
    """

    __slots__ = ("_broker", "_explicit", "_idle_timeout", "_others", "_overflow", "options")

    def __init__(self, broker: Broker, listener: ListenerDefaults) -> None:
        self._broker = broker
        given = broker.settings.given_defaults
        self.options = _options(given, listener)
        self._explicit = frozenset(given).union(
            SETTINGS[name] for name, value in listener._asdict().items() if value is not None
        )
        """Names of the settings that the listener or the broker's configuration sets."""
        self._others = {name: value for name, value in given.items() if name not in _OPTIONS}
        self._idle_timeout: int | None = self._others.pop("idle_timeout", 0)
        self._overflow: Overflow | None = None
        """Overflow policy of the broker's defaults that has no VibeMQ strategy."""
        if listener.overflow is None and given.get("overflow") is Overflow.DROP_LOWEST:
            self._overflow = Overflow.DROP_LOWEST

    def settings(self, options: QueueOptions) -> DestinationSettings:
        """Return the settings of a queue that CreateQueue creates with these options."""
        settings = replace(options.settings, **self._others)
        if self._overflow is not None and options.overflow is self.options.overflow:
            settings = replace(settings, overflow=self._overflow)
        return settings

    def find_or_create(self, name: str, creator: str | None) -> Destination:
        """Return the destination of this name, created if necessary.

        A new one counts against the quota of `creator` (Identity.creator). Raises
        DestinationNotFound, LimitExceeded.
        """
        broker = self._broker
        destination = find(broker, name)
        if destination is not None:
            return destination
        where = address(name, self.options)
        settings = replace(self.settings(self.options), idle_timeout=self._idle_timeout)
        broker.destinations.expect_creation(where, creator)
        broker.destinations.expect_pair(where, settings, creator)
        provenance = Provenance(CreatedBy.VIBEMQ, self._explicit)
        destination = broker.destinations.resolve(
            where, creator=creator, settings=settings, provenance=provenance
        )
        broker.destinations.number(
            destination
        )  # so that the journal records it even without messages
        return self._with_dead_letters(destination)

    def declare(
        self, name: str, written: WrittenOptions, creator: str | None, created: int = 0
    ) -> Destination:
        """Create a queue with these options, or change those of an existing one.

        `creator` is as above, `created` as in `Broker.declare`. Raises LimitExceeded,
        DestinationConflict.
        """
        options = written.options(self.options)
        where = address(name, options)
        settings = self.settings(options)
        provenance = written.provenance()
        provenance = provenance._replace(explicit=provenance.explicit | self._explicit)
        self._broker.destinations.expect_pair(where, settings, creator)
        declared = self._broker.destinations.declare(
            where, settings, creator=creator, provenance=provenance, created=created
        )
        return self._with_dead_letters(declared)

    def _with_dead_letters(self, destination: Destination) -> Destination:
        if destination.dead_letters is not None:
            self._broker.destinations.dead_letter_queue(destination)
        return destination


def _options(given: dict[str, Any], listener: ListenerDefaults) -> QueueOptions:
    """Return the default options. `given` are the settings of [broker.default_destination] that
    the configuration sets."""
    options: dict[str, Any] = {}
    if "priority_ordering" in given:
        options["mode"] = Mode.PRIORITY_BASED if given["priority_ordering"] else Mode.ROUND_ROBIN
    if "max_messages" in given:
        options["max_queue_size"] = min(given["max_messages"] or NO_LIMIT, NO_LIMIT)
    if "overflow" in given:
        options["overflow"] = STRATEGIES[given["overflow"]]
    if "max_attempts" in given:
        options["max_retry_attempts"] = min(given["max_attempts"] or NO_LIMIT, NO_LIMIT)
    for name in ("message_ttl", "dead_letter", "dead_letter_queue"):
        if name in given:
            options[name] = given[name]
    options |= {name: value for name, value in listener._asdict().items() if value is not None}
    return QueueOptions()._replace(**options)

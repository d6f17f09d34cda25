"""Which destinations there are: found, created, declared, and known to the journal by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluicemq.broker.clock import Clock
from sluicemq.broker.core import Core
from sluicemq.broker.destination import Destination
from sluicemq.broker.membership import elect
from sluicemq.broker.records import Settings, encode
from sluicemq.broker.settings import BrokerSettings
from sluicemq.broker.subscription import Subscription
from sluicemq.journal.format import RecordType
from sluicemq.journal.port import Journal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import DestinationConflict, DestinationNotFound, LimitExceeded

_USUAL: Final = DestinationSettings()


class Registry:
    """The part of the broker that the module tells of."""

    def __init__(self, journal: Journal, clock: Clock, settings: BrokerSettings) -> None:
        self.journal = journal
        self.clock = clock
        self.settings = settings
        self.core = Core(journal, clock, settings)
        self.core.subscriptions = Subscription
        self.destinations: dict[Address, Destination] = {}
        self.durable_subscriptions: dict[int, Subscription] = {}
        self.next_subscription = 1
        self.creations: list[Callable[[Destination], None]] = []
        """Called with each destination that comes into being; those must not raise."""
        self.removals: list[Callable[[Destination], None]] = []
        """Called with each destination that has just gone; those must not raise either."""
        self._awaited: dict[str, list[Callable[[Destination], None]]] = {}

    @property
    def identity(self) -> bytes:
        """8 bytes that stay the same for the life of the data directory."""
        return self.journal.identity

    def queue(self, name: str) -> Destination:
        """The queue of that name, created if need be. Raises as `resolve`."""
        return self.resolve(Address(Kind.QUEUE, name))

    def topic(self, name: str) -> Destination:
        """The topic of that name, created if need be. Raises as `resolve`."""
        return self.resolve(Address(Kind.TOPIC, name))

    def find(self, address: Address) -> Destination | None:
        """The destination, if it exists."""
        return self.destinations.get(address)

    def resolve(self, address: Address, defaults: DestinationSettings | None = None) -> Destination:
        """Find or automatically create. Raises DestinationNotFound, LimitExceeded.

        `defaults`: what a protocol's clients expect of a new one. They yield to the broker's own if
        those are anything but the usual.
        """
        destination = self.destinations.get(address)
        if destination is not None:
            return destination
        settings = self.settings
        allowed = (
            settings.auto_create_queues
            if address.kind is Kind.QUEUE
            else settings.auto_create_topics
        )
        if not allowed:
            raise DestinationNotFound(
                f"{address} does not exist and automatic creation is switched off"
            )
        self._make_room(address)
        if defaults is None or settings.defaults != _USUAL:
            defaults = settings.defaults
        return self.create(address, defaults, None, True)

    def await_creation(self, name: str, callback: Callable[[Destination], None]) -> None:
        """Call back when there is a queue or topic of that name, once; there must be none now."""
        self._awaited.setdefault(name, []).append(callback)

    def stop_waiting(self, name: str, callback: Callable[[Destination], None]) -> None:
        """End an `await_creation` that has not called back."""
        waiting = self._awaited[name]
        waiting.remove(callback)
        if not waiting:
            del self._awaited[name]

    def declare(
        self,
        address: Address,
        settings: DestinationSettings | None = None,
        *,
        owner: object = None,
    ) -> Destination:
        """Create on purpose, or take new settings for an existing one; survives a restart.

        With an `owner` it is temporary: nobody can declare it again, nothing about it is kept.
        Raises DestinationConflict, LimitExceeded.
        """
        settings = settings or DestinationSettings()
        destination = self.destinations.get(address)
        if destination is None:
            self._make_room(address)
            destination = self.create(address, settings, owner, False)
            if owner is not None:
                return destination
        elif owner is not None or destination.owner is not None:
            raise DestinationConflict(f"{address} exists already")
        elif destination.settings == settings and not destination.automatic:
            return destination
        destination.automatic = False
        served = destination.settings.active_consumers
        destination.apply(settings)
        if settings.active_consumers != served:
            for subscription in (destination.queue, *destination.subscriptions.values()):
                elect(subscription)
        if destination.parked:
            self.core.unblocking[destination] = None
        self._note_settings(destination)
        return destination

    def pause(self, destination: Destination) -> None:
        """Accept messages but deliver none until `unpause`, also after a restart."""
        if not destination.paused:
            destination.paused = True
            if not destination.temporary:
                self._note_settings(destination)

    def unpause(self, destination: Destination) -> None:
        """Deliver again."""
        if destination.paused:
            destination.paused = False
            for subscription in (destination.queue, *destination.subscriptions.values()):
                self.core.dirty[subscription] = None
            if not destination.temporary:
                self._note_settings(destination)

    def _note_settings(self, destination: Destination) -> None:
        self.journal.append_entry(
            RecordType.SETTINGS,
            encode(Settings.of(destination)),
            self.clock.wall,
            destination=self.number(destination),
        )

    def _make_room(self, address: Address) -> None:
        limit = self.settings.max_destinations
        if limit and len(self.destinations) >= limit:
            raise LimitExceeded(f"{address}: there are {limit} destinations already, the limit")

    def create(
        self, address: Address, settings: DestinationSettings, owner: object, automatic: bool
    ) -> Destination:
        destination = Destination(self.core, address, settings, owner, automatic)
        self.destinations[address] = destination
        for callback in self._awaited.pop(address.name, ()):
            callback(destination)
        for callback in self.creations:
            callback(destination)
        return destination

    def adopt(
        self,
        address: Address,
        settings: DestinationSettings | None,
        automatic: bool = False,
        created: int = 0,
        paused: bool = False,
    ) -> Destination:
        """Create a destination that the journal knows already; without settings, an automatic one
        with the broker's. `created` as in Destination."""
        if settings is None:
            automatic = True
            settings = self.settings.defaults
        destination = Destination(self.core, address, settings, None, automatic, created)
        destination.gauged = None
        destination.paused = paused
        self.destinations[address] = destination
        return destination

    def adopt_subscription(self, subscription: Subscription) -> None:
        """Take in a durable subscription that the journal knows already."""
        subscription.destination.subscribe(subscription)
        self.durable_subscriptions[subscription.number] = subscription

    def number(self, destination: Destination) -> int:
        """The journal's number of the destination, and so of its own subscription."""
        number = destination.number
        if not number:
            number = destination.number = self.journal.destination(destination.address)
            destination.queue.number = number
            if destination.owner is not None or (
                destination.automatic and destination.settings != self.settings.defaults
            ):
                self.journal.append_entry(
                    RecordType.SETTINGS,
                    encode(Settings.of(destination)),
                    self.clock.wall,
                    destination=number,
                )
        return number

"""Which destinations there are: found, created, declared, and known to the journal by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from sluicemq.broker.attachment import elect
from sluicemq.broker.clock import Clock
from sluicemq.broker.codec import StoredSettings, encode
from sluicemq.broker.core import Core
from sluicemq.broker.destination import Destination
from sluicemq.broker.scans import Scans
from sluicemq.broker.settings import BrokerSettings
from sluicemq.broker.subscription import Subscription
from sluicemq.journal.format import RecordType
from sluicemq.journal.port import Journal
from sluicemq.model.destination import (
    USUAL,
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
    differing,
    is_temporary,
)
from sluicemq.model.errors import (
    DestinationConflict,
    DestinationNotFound,
    LimitExceeded,
    QuotaExceeded,
)

_Key = TypeVar("_Key")

DEAD_LETTERS: Final = DestinationSettings()
"""Of a dead-letter queue that nobody has declared: it takes every dead letter and keeps it."""


class Registry:
    """The part of the broker that the module tells of."""

    def __init__(
        self, journal: Journal, clock: Clock, settings: BrokerSettings, scans: Scans
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.settings = settings
        self.core = Core(journal, clock, settings, scans)
        self.core.subscriptions = Subscription
        self.destinations: dict[Address, Destination] = {}
        self.durable_subscriptions: dict[int, Subscription] = {}
        self.next_subscription = 1
        self.creations: list[Callable[[Destination], None]] = []
        """Called with each destination that comes into being; those must not raise."""
        self.removals: list[Callable[[Destination], None]] = []
        """Called with each destination that has just gone; those must not raise either."""
        self._awaited: dict[str, list[Callable[[Destination], None]]] = {}
        self.created: Counter[str] = Counter()
        """How many destinations each user has created; "" = those who have no name."""
        self.temporary: Counter[object] = Counter()
        """How many temporary destinations each owner has."""

    @property
    def identity(self) -> bytes:
        """8 bytes that stay the same for the life of the data directory."""
        return self.journal.identity

    def queue(
        self, name: str, creator: str | None = None, by: CreatedBy = CreatedBy.BROKER
    ) -> Destination:
        """The queue of that name, created if need be. Raises as `resolve`."""
        return self.resolve(Address(Kind.QUEUE, name), creator=creator, by=by)

    def topic(
        self, name: str, creator: str | None = None, by: CreatedBy = CreatedBy.BROKER
    ) -> Destination:
        """The topic of that name, created if need be. Raises as `resolve`."""
        return self.resolve(Address(Kind.TOPIC, name), creator=creator, by=by)

    def find(self, address: Address) -> Destination | None:
        """The destination, if it exists."""
        return self.destinations.get(address)

    def resolve(
        self,
        address: Address,
        defaults: DestinationSettings | None = None,
        creator: str | None = None,
        by: CreatedBy = CreatedBy.BROKER,
        *,
        settings: DestinationSettings | None = None,
        provenance: Provenance | None = None,
    ) -> Destination:
        """Find or automatically create. Raises DestinationNotFound, LimitExceeded.

        `defaults`: what a protocol's clients expect of a new one. They yield to the broker's own if
        those are anything but the usual, `settings` do not. A dead-letter queue has its own,
        whoever is the first to use it, and exists as soon as it is one. A new destination counts
        against the quota of `creator` (Identity.creator), None = nobody's; `by` is who uses it, and
        so has created it. `provenance` is that of a new one if more is known.
        """
        destination = self.destinations.get(address)
        if destination is not None:
            return destination
        if is_temporary(address.name):
            raise DestinationNotFound(f"{address} does not exist, or no longer")
        queue = self.find_dead_letter_queue(address)
        if queue is not None:
            return queue
        self.expect_creation(address, creator)
        if settings is None:
            own = self.settings.defaults
            settings = own if defaults is None or own != USUAL else defaults
        provenance = provenance or self.provenance_of(by)
        return self.create(address, settings, None, True, creator, provenance)

    def expect_creation(self, address: Address, creator: str | None) -> None:
        """Raise DestinationNotFound or LimitExceeded unless a destination may come into being by
        use; `creator` as in `resolve`."""
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
        self._check_limits(address, creator)

    def provenance_of(self, by: CreatedBy) -> Provenance:
        """Return what is known of a destination that comes into being by use: only what the
        configuration says of all of them has been set on purpose."""
        return Provenance(by, frozenset(self.settings.given_defaults))

    def find_dead_letter_queue(self, address: Address) -> Destination | None:
        """The queue if it is the dead-letter queue of a destination that exists, created if need
        be; else None."""
        sources = self.core.dead_letter_queues.get(address)
        return self.dead_letter_queue(next(iter(sources))) if sources else None

    def dead_letter_queue(self, source: Destination) -> Destination:
        """The queue for the dead letters of a destination, created whatever the limits are if it
        does not exist. One that came into being by use before it became a dead-letter queue gets
        its settings."""
        address = source.dead_letter_address
        queue = self.destinations.get(address)
        if queue is None:
            provenance = Provenance(source.provenance.created_by)
            return self.create(address, DEAD_LETTERS, None, True, source.creator, provenance)
        if queue.automatic and queue is not source:
            settings = replace(
                DEAD_LETTERS,
                max_consumers=queue.settings.max_consumers,
                active_consumers=queue.settings.active_consumers,
            )
            if queue.settings != settings:
                queue.provenance = queue.provenance._replace(explicit=frozenset(), as_written=())
                queue.apply(settings)
                if queue.number:
                    self.note_settings(queue)
        return queue

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
        creator: str | None = None,
        provenance: Provenance | None = None,
        created: int = 0,
    ) -> Destination:
        """Create on purpose, or take new settings for an existing one; survives a restart.

        With an `owner` it is temporary: nobody can declare it again, nothing about it is kept. A
        new one, and an automatic one from now on, counts against the quota of `creator`, None =
        nobody's. Without a `provenance` the settings that this changes were set on purpose.
        `created` is the time of creation of a new one in wall ms, 0 = now; an existing one keeps
        its own.
        Raises DestinationConflict, LimitExceeded.
        """
        settings = settings or DestinationSettings()
        destination = self.destinations.get(address)
        if provenance is None:
            if destination is None:
                provenance = Provenance(explicit=differing(settings))
            else:
                changed = differing(settings, destination.settings)
                provenance = destination.provenance.changed(changed)
        elif destination is not None:
            provenance = provenance._replace(created_ticks=destination.provenance.created_ticks)
        if destination is None:
            if owner is None and is_temporary(address.name):
                raise DestinationConflict(
                    f"{address} is a name for temporary destinations, which clients create"
                )
            self._check_limits(address, creator)
            destination = self.create(address, settings, owner, False, creator, provenance, created)
            if owner is not None:
                return destination
        elif owner is not None or destination.owner is not None:
            raise DestinationConflict(f"{address} exists already")
        elif (
            destination.settings == settings
            and destination.provenance == provenance
            and not destination.automatic
        ):
            return destination
        elif destination.automatic and destination.creator != creator:
            self._check_quota(address, creator)
            self._count(destination, -1)
            destination.creator = creator
            self._count(destination, 1)
        destination.automatic = False
        destination.provenance = provenance
        served = destination.settings.active_consumers
        destination.apply(settings)
        if settings.active_consumers != served:
            for subscription in (destination.queue, *destination.subscriptions.values()):
                elect(subscription)
        if destination.parked:
            self.core.unblocking[destination] = None
        self.note_settings(destination)
        return destination

    def pause(self, destination: Destination) -> None:
        """Accept messages but deliver none until `unpause`, also after a restart."""
        if not destination.paused:
            destination.paused = True
            if not destination.temporary:
                self.note_settings(destination)

    def unpause(self, destination: Destination) -> None:
        """Deliver again."""
        if destination.paused:
            destination.paused = False
            for subscription in (destination.queue, *destination.subscriptions.values()):
                self.core.dirty[subscription] = None
            if not destination.temporary:
                self.note_settings(destination)

    def note_settings(self, destination: Destination) -> None:
        """Let the journal know what a destination is to be like after a restart."""
        self.journal.append_entry(
            RecordType.SETTINGS,
            encode(StoredSettings.of(destination, self.settings.defaults)),
            self.clock.wall,
            destination=self.number(destination),
        )

    def expect_pair(
        self, address: Address, settings: DestinationSettings, creator: str | None
    ) -> None:
        """Raise LimitExceeded unless a destination of these settings and its dead-letter queue, if
        it is to have one, may be created as far as they do not exist."""
        needed = {address}
        if settings.dead_letter:
            queue = settings.dead_letter_queue or f"{address.name}.dlq"
            needed.add(Address(Kind.QUEUE, queue))
        missing = sum(each not in self.destinations for each in needed)
        if missing:
            self._check_limits(address, creator, missing)

    def _check_limits(self, address: Address, creator: str | None, count: int = 1) -> None:
        """Raise LimitExceeded unless there may be `count` more destinations, and of that
        creator."""
        limit = self.settings.max_destinations
        if limit and len(self.destinations) + count > limit:
            raise LimitExceeded(f"{address}: there are {limit} destinations already, the limit")
        self._check_quota(address, creator, count)

    def _check_quota(self, address: Address, creator: str | None, count: int = 1) -> None:
        limit = self.settings.max_user_destinations
        if creator is not None and limit and self.created[creator] + count > limit:
            raise QuotaExceeded(
                f"{address}: {shown_creator(creator)} created {limit} destinations that still "
                "exist, the limit of a user (broker.max_user_destinations); delete some first"
            )

    def check_temporary(self, owner: object) -> None:
        """Raise QuotaExceeded unless the connection may have one more temporary destination."""
        limit = self.settings.max_temporary_destinations
        if limit and self.temporary[owner] >= limit:
            raise QuotaExceeded(
                f"this connection has {limit} temporary destinations, the limit "
                "(broker.max_temporary_destinations); delete some first"
            )

    def dead_letters_of(self, queue: Destination) -> Destination | None:
        """Return a destination whose dead letters go to this queue, None if there is none."""
        sources = self.core.dead_letter_queues.get(queue.address)
        return next(iter(sources)) if sources else None

    def _count(self, destination: Destination, change: int) -> None:
        """Keep the quotas up to date: a destination has come (1) or gone (-1)."""
        if destination.creator is not None:
            _change(self.created, destination.creator, change)
        if destination.owner is not None:
            _change(self.temporary, destination.owner, change)

    def forget(self, destination: Destination) -> None:
        """Take a destination that is removed off the list of those that exist."""
        del self.destinations[destination.address]
        destination.point_dead_letters(None)
        self._count(destination, -1)

    def create(
        self,
        address: Address,
        settings: DestinationSettings,
        owner: object,
        automatic: bool,
        creator: str | None = None,
        provenance: Provenance | None = None,
        created: int = 0,
    ) -> Destination:
        """Create a destination, whatever the limits are. `creator` as in `resolve`; without a
        `provenance` the broker creates it; `created` as in `declare`."""
        destination = Destination(
            self.core, address, settings, owner, automatic, created, creator, provenance
        )
        self.destinations[address] = destination
        self._count(destination, 1)
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
        creator: str | None = None,
        provenance: Provenance | None = None,
        grouped: bool = False,
    ) -> Destination:
        """Create a destination that the journal knows already; without settings, an automatic one
        with the broker's. `created`, `creator` and `provenance` as in Destination."""
        if settings is None:
            automatic = True
            settings = self.settings.defaults
        destination = Destination(
            self.core, address, settings, None, automatic, created, creator, provenance
        )
        destination.recorded_depth = None
        destination.paused = paused
        destination.grouped = grouped
        self.destinations[address] = destination
        self._count(destination, 1)
        return destination

    def adopt_subscription(self, subscription: Subscription) -> None:
        """Take in a durable subscription that the journal knows already."""
        subscription.destination.subscribe(subscription)
        self.durable_subscriptions[subscription.number] = subscription

    def number(self, destination: Destination) -> int:
        """The journal's number of the destination, and so of its own subscription."""
        number = destination.number
        if not number:
            number = self.journal.destination(destination.address)
            destination.set_number(number)
            if destination.owner is not None or destination.automatic:
                self.journal.append_entry(
                    RecordType.SETTINGS,
                    encode(StoredSettings.of(destination, self.settings.defaults)),
                    self.clock.wall,
                    destination=number,
                )
        return number


def _change(counter: Counter[_Key], key: _Key, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def shown_creator(creator: str) -> str:
    """Return how an error names the user whose quota is used up."""
    return f"user {creator}" if creator else "users without a name"

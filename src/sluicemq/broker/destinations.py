"""The destinations of a broker: lookup, creation, declaration, quotas and journal numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from msgspec.structs import replace

from sluicemq.broker.attachment import activate_consumers
from sluicemq.broker.codec import StoredSettings, SubscriptionEntry, encode
from sluicemq.broker.state import Core, Destination, Subscription
from sluicemq.journal.format import RecordType, escape_text
from sluicemq.model.destination import (
    DEFAULT_SETTINGS,
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
    differing,
    encode_name,
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
"""Settings of an undeclared dead-letter queue: it accepts and keeps every dead letter."""


class Destinations:
    """All destinations by address, with the quotas of their creators.

    creations  callbacks for each created destination; they must not raise
    removals   callbacks for each deleted destination; they must not raise
    created    number of destinations created by each user; "" = anonymous users
    temporary  number of temporary destinations of each owner
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._destinations = core.destinations
        self.creations: list[Callable[[Destination], None]] = []
        self.removals: list[Callable[[Destination], None]] = []
        self._awaited: dict[str, list[Callable[[Destination], None]]] = {}
        self.created: Counter[str] = Counter()
        self.temporary: Counter[object] = Counter()

    def __len__(self) -> int:
        return len(self._destinations)

    def __contains__(self, address: object) -> bool:
        return address in self._destinations

    def __getitem__(self, address: Address) -> Destination:
        return self._destinations[address]

    def __iter__(self) -> Iterator[Address]:
        return iter(self._destinations)

    def values(self) -> Iterable[Destination]:
        """Return a view of the destinations; a caller that creates or deletes any copies it."""
        return self._destinations.values()

    def queue(
        self, name: str, creator: str | None = None, by: CreatedBy = CreatedBy.BROKER
    ) -> Destination:
        """Return the queue of that name, creating it if needed. Raises as `resolve`."""
        return self.resolve(Address(Kind.QUEUE, name), creator=creator, by=by)

    def topic(
        self, name: str, creator: str | None = None, by: CreatedBy = CreatedBy.BROKER
    ) -> Destination:
        """Return the topic of that name, creating it if needed. Raises as `resolve`."""
        return self.resolve(Address(Kind.TOPIC, name), creator=creator, by=by)

    def find(self, address: Address) -> Destination | None:
        """Return the destination, or None if it does not exist."""
        return self._destinations.get(address)

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
        """Return a destination, creating it if needed. Raises DestinationNotFound, LimitExceeded.

        `defaults` are the settings that a protocol's clients expect of a new destination. The
        broker's default settings override them if they are configured; they do not override
        `settings`. A dead-letter queue has settings of its own, regardless of its first user, and
        exists as soon as it is named as one. A new destination counts against the quota of
        `creator` (Identity.creator), None = no quota; `by` is the kind of user that creates it by
        use. `provenance` is that of a new one if more is known.
        """
        destination = self._destinations.get(address)
        if destination is not None:
            return destination
        if is_temporary(address.name):
            raise DestinationNotFound(f"{address} does not exist or was deleted")
        queue = self.find_dead_letter_queue(address)
        if queue is not None:
            return queue
        self.expect_creation(address, creator)
        if settings is None:
            broker_defaults = self._core.settings.default_destination
            settings = (
                broker_defaults
                if defaults is None or broker_defaults != DEFAULT_SETTINGS
                else defaults
            )
        provenance = provenance or self.provenance_of(by)
        return self.create(address, settings, creator=creator, provenance=provenance)

    def expect_creation(self, address: Address, creator: str | None) -> None:
        """Raise DestinationNotFound or LimitExceeded unless the destination may be created by use.

        `creator` as in `resolve`.
        """
        settings = self._core.settings
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
        """Return the provenance of a destination created by use.

        Only the defaults given in the configuration count as set explicitly.
        """
        return Provenance(by, frozenset(self._core.settings.given_defaults))

    def find_dead_letter_queue(self, address: Address) -> Destination | None:
        """Return the queue, creating it if needed, if it is a dead-letter queue; otherwise None.

        It is a dead-letter queue if an existing destination sends its dead letters to it.
        """
        source = self.dead_letters_of(address)
        return None if source is None else self.dead_letter_queue(source)

    def dead_letter_queue(self, source: Destination) -> Destination:
        """Return the dead-letter queue of a destination, creating it regardless of the limits.

        A queue that was created by use before it became a dead-letter queue gets a dead-letter
        queue's settings.
        """
        address = source.dead_letter_address
        queue = self._destinations.get(address)
        if queue is None:
            provenance = Provenance(source.provenance.created_by)
            return self.create(address, DEAD_LETTERS, creator=source.creator, provenance=provenance)
        if queue.automatic and queue is not source:
            settings = replace(
                DEAD_LETTERS,
                max_consumers=queue.settings.max_consumers,
                active_consumers=queue.settings.active_consumers,
            )
            if queue.settings != settings:
                queue.provenance = queue.provenance._replace(explicit=frozenset(), as_written=())
                self.apply(queue, settings)
                if queue.number:
                    self.journal_settings(queue)
        return queue

    def await_creation(self, name: str, callback: Callable[[Destination], None]) -> None:
        """Call `callback` once when a queue or topic of that name is created; none may exist
        now.
        """
        self._awaited.setdefault(name, []).append(callback)

    def cancel_wait(self, name: str, callback: Callable[[Destination], None]) -> None:
        """Cancel an `await_creation`, if there is one whose callback has not been called."""
        callbacks = self._awaited.get(name, [])
        if callback in callbacks:
            callbacks.remove(callback)
            if not callbacks:
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
        """Create a destination explicitly, or change an existing one's settings; survives a
        restart.

        With an `owner` it is temporary: it cannot be declared again, and no settings are journaled.
        A new destination, or an automatic one that becomes declared, counts against the quota of
        `creator`, None = no quota; one that the configuration declares is created regardless of the
        limits. Without a `provenance` the changed settings count as set explicitly. `created` is
        the time of creation of a new one in wall ms, 0 = now; an existing one keeps its own. Raises
        DestinationConflict, LimitExceeded.
        """
        settings = settings or DestinationSettings()
        destination = self._destinations.get(address)
        if destination is None:
            if owner is None and is_temporary(address.name):
                raise DestinationConflict(
                    f"{address} is reserved for temporary destinations, which clients create"
                )
            if provenance is None or provenance.created_by is not CreatedBy.CONFIGURATION:
                self._check_limits(address, creator)
            destination = self.create(
                address,
                settings,
                owner=owner,
                automatic=False,
                created=created,
                creator=creator,
                provenance=provenance or Provenance(explicit=differing(settings)),
            )
            if owner is None:
                self.journal_settings(destination)
            return destination
        if owner is not None or destination.owner is not None:
            raise DestinationConflict(f"{address} exists already")
        previous_settings, previous_provenance = destination.settings, destination.provenance
        if provenance is None:
            provenance = previous_provenance.changed(differing(settings, previous_settings))
        else:
            provenance = provenance._replace(created_ticks=previous_provenance.created_ticks)
        is_same = settings == previous_settings and provenance == previous_provenance
        if is_same and not destination.automatic:
            return destination
        if destination.automatic and destination.creator != creator:
            self._check_quota(address, creator)
            self._count(destination, -1)
            destination.creator = creator
            self._count(destination, 1)
        destination.automatic = False
        destination.provenance = provenance
        self.apply(destination, settings)
        self.journal_settings(destination)
        return destination

    def apply(self, destination: Destination, settings: DestinationSettings) -> None:
        """Apply new settings to a destination, its consumers and its parked messages."""
        previous_limit = destination.settings.active_consumers
        destination.apply(settings)
        if settings.active_consumers != previous_limit:
            for subscription in destination.all_subscriptions:
                activate_consumers(subscription)
        destination.unpark_later()

    def set_paused(self, destination: Destination, paused: bool) -> None:
        """Pause delivery, also after a restart, or resume it. Messages are still accepted."""
        if destination.paused == paused:
            return
        destination.paused = paused
        if not paused:
            for subscription in destination.all_subscriptions:
                self._core.dispatchable[subscription] = None
        if not destination.temporary:
            self.journal_settings(destination)

    def journal_settings(self, destination: Destination) -> None:
        """Journal the settings that a destination is to have after a restart."""
        number = self.assign_number(destination)
        core = self._core
        core.journal.append_entry(
            RecordType.DESTINATION_SETTINGS,
            encode(stored_settings(destination, core.settings.default_destination)),
            core.clock.wall,
            destination=number,
        )

    def journal_subscription(self, subscription: Subscription, created: bool) -> None:
        """Journal the creation, a new owner, or the deletion of a durable subscription."""
        number = self.assign_number(subscription.destination)
        core = self._core
        core.last_ack_record = core.journal.append_entry(
            RecordType.SUBSCRIPTION_CREATED if created else RecordType.SUBSCRIPTION_DELETED,
            encode(subscription_entry(subscription)),
            core.clock.wall,
            destination=number,
        )

    def expect_pair(
        self,
        address: Address,
        settings: DestinationSettings,
        creator: str | None,
        replaced: Destination | None = None,
    ) -> None:
        """Raise LimitExceeded unless a destination and its dead-letter queue may be created.

        The dead-letter queue counts if `settings` request one. Existing destinations do not count.
        A destination `replaced`, which is to be deleted before, makes room for one if the creator
        is the same.
        """
        addresses = {address}
        if settings.dead_letter:
            queue = settings.dead_letter_queue or f"{address.name}.dlq"
            addresses.add(Address(Kind.QUEUE, queue))
        count = sum(candidate not in self._destinations for candidate in addresses)
        if replaced is not None and replaced.creator == creator:
            count -= 1
        if count > 0:
            self._check_limits(address, creator, count)

    def _check_limits(self, address: Address, creator: str | None, count: int = 1) -> None:
        """Raise LimitExceeded unless `count` more destinations may exist, in total and for the
        creator.
        """
        limit = self._core.settings.max_destinations
        if limit and len(self._destinations) + count > limit:
            raise LimitExceeded(f"{address}: there are {limit} destinations already, the limit")
        self._check_quota(address, creator, count)

    def _check_quota(self, address: Address, creator: str | None, count: int = 1) -> None:
        limit = self._core.settings.max_destinations_per_user
        if creator is not None and limit and self.created[creator] + count > limit:
            raise QuotaExceeded(
                f"{address}: {creator_text(creator)} created {limit} destinations that still "
                "exist, the limit of a user (broker.max_destinations_per_user); delete some first"
            )

    def check_temporary(self, owner: object) -> None:
        """Raise QuotaExceeded unless the connection may have one more temporary destination."""
        limit = self._core.settings.max_temporary_destinations_per_connection
        if limit and self.temporary[owner] >= limit:
            raise QuotaExceeded(
                f"this connection has {limit} temporary destinations, the limit "
                "(broker.max_temporary_destinations_per_connection); delete some first"
            )

    def dead_letter_queues(self) -> Iterable[Address]:
        """Return the addresses that existing destinations send their dead letters to."""
        return self._core.dead_letter_queues

    def drop_dead_letters(self, address: Address) -> None:
        """Let the limits of a dead-letter queue drop messages, as its protocol requires."""
        self._core.dropping_dead_letter_queues.add(address)

    def refuse_messages(self, topic: Address) -> None:
        """Let a topic only keep subscriptions and accept no messages."""
        self._core.refusing_topics.add(topic)
        existing = self._destinations.get(topic)
        if existing is not None:
            existing.apply(existing.settings)

    def dead_letters_of(self, queue: Address) -> Destination | None:
        """Return a destination whose dead letters go to this queue, None if there is none."""
        sources = self._core.dead_letter_queues.get(queue)
        return next(iter(sources)) if sources else None

    def foreign_dead_letter_queue(self, name: str, creator: str | None) -> str:
        """Return the name of the default dead-letter queue of the destination `name` if another
        user than `creator` created that queue for another purpose; "" if not.
        """
        queue = self._destinations.get(Address(Kind.QUEUE, f"{name}.dlq"))
        if queue is None or queue.creator == creator:
            return ""
        source = self.dead_letters_of(queue.address)
        return "" if source is not None and source.name == name else queue.name

    def _count(self, destination: Destination, change: int) -> None:
        """Update the quotas for a created (1) or deleted (-1) destination."""
        if destination.creator is not None:
            _change(self.created, destination.creator, change)
        if destination.owner is not None:
            _change(self.temporary, destination.owner, change)

    def unregister(self, destination: Destination) -> None:
        """Remove a deleted destination from the registry."""
        del self._destinations[destination.address]
        destination.set_dead_letter_queue(None)
        self._count(destination, -1)

    def create(
        self,
        address: Address,
        settings: DestinationSettings,
        *,
        owner: object = None,
        automatic: bool = True,
        created: int = 0,
        creator: str | None = None,
        provenance: Provenance | None = None,
    ) -> Destination:
        """Create a destination regardless of the limits; it is `automatic` unless it is declared.

        `owner` and `created` as in `declare`, `creator` as in `resolve`; without a `provenance` the
        broker is its creator.
        """
        destination = Destination(
            self._core, address, settings, owner, automatic, created, creator, provenance
        )
        self._destinations[address] = destination
        self._count(destination, 1)
        for callback in self._awaited.pop(address.name, ()):
            callback(destination)
        for callback in self.creations:
            callback(destination)
        return destination

    def assign_number(self, destination: Destination) -> int:
        """Return the journal number of the destination and of its own subscription, assigning one
        if needed.
        """
        number = destination.number
        if not number:
            number = self._core.journal.destination_number(destination.address)
            destination.set_number(number)
            if destination.owner is not None or destination.automatic:
                self.journal_settings(destination)
        return number


def stored_settings(destination: Destination, defaults: DestinationSettings) -> StoredSettings:
    """Return the entry of a destination; `defaults` are the broker's default settings."""
    is_text = isinstance(escape_text(destination.name), str)
    return StoredSettings(
        destination.address.kind,
        destination.name if is_text else "",
        destination.settings,
        destination.temporary,
        destination.automatic,
        destination.created,
        b"" if is_text else encode_name(destination.name),
        destination.paused,
        destination.creator,
        destination.provenance,
        destination.automatic and destination.settings == defaults,
        destination.grouped,
    )


def subscription_entry(subscription: Subscription) -> SubscriptionEntry:
    """Return the entry of a durable subscription."""
    return SubscriptionEntry(
        subscription.number,
        escape_text(subscription.destination.name),
        escape_text(subscription.name),
        escape_text(subscription.selector.text if subscription.selector else ""),
        escape_text(str(subscription.exclude) if subscription.exclude is not None else ""),
        subscription.shared,
        subscription.owner,
    )


def _change(counter: Counter[_Key], key: _Key, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def creator_text(creator: str) -> str:
    """Return the text that identifies the user in a quota error."""
    return f"user {creator}" if creator else "users without a name"

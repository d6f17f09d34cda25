"""Settings of the engine as a whole; those of one destination are in the model."""

from __future__ import annotations

from typing import Any

import msgspec

from sluicemq.broker.selectors import SelectorLimits
from sluicemq.model.destination import DestinationSettings


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the whole broker.

    auto_create_queues, auto_create_topics   a destination comes into being by being used
    max_destinations  0 = no limit
    max_destinations_per_user       that one user has created; 0 = no limit
    max_subscriptions_per_user      durable ones that one user has created; 0 = no limit
    max_temporary_destinations_per_connection  of one connection; 0 = no limit
    destination_idle_timeout  ms until an unused automatic destination is removed; 0 = never
    memory_budget     bytes of messages kept in memory; the bodies of journaled ones beyond it are
                      read back from the segments
    message_overhead  bytes a message is counted with beside its body
    chunk_deliveries  deliveries in a chunk of a backlog
    selectors         what one selector may cost
    selector_load     nodes of the selectors that one message may have to be evaluated with at a
                      destination (routing.py); 0 = not limited
    memory_limit      bytes, those of open transactions included, at which messages are refused that
                      are not journaled or belong to a transaction
    max_transaction_bytes     bytes of messages in an open transaction; 0 = no limit
    max_transaction_messages  messages in an open transaction; 0 = no limit
    max_batch_writers     writers of batches that are remembered
    dead_letter_retry ms after which a message is offered again to a dead-letter queue that was full
    defaults          settings of automatically created destinations
    default_fields    names of the settings among `defaults` that were set on purpose, beside those
                      that differ from the usual ones
    """

    auto_create_queues: bool = True
    auto_create_topics: bool = True
    max_destinations: int = 0
    max_destinations_per_user: int = 10_000
    max_subscriptions_per_user: int = 1000
    max_temporary_destinations_per_connection: int = 1000
    destination_idle_timeout: int = 120_000
    memory_budget: int = 256 << 20
    message_overhead: int = 512
    chunk_deliveries: int = 1024
    memory_limit: int = 1 << 30
    selectors: SelectorLimits = SelectorLimits()
    selector_load: int = 12_000
    max_transaction_bytes: int = 64 << 20
    max_transaction_messages: int = 0
    max_batch_writers: int = 10_000
    dead_letter_retry: int = 5_000
    defaults: DestinationSettings = DestinationSettings()
    default_fields: frozenset[str] = frozenset()

    @property
    def given_defaults(self) -> dict[str, Any]:
        """Explicitly set settings of automatically created destinations, by name."""
        usual = DestinationSettings()
        return {
            name: value
            for name, value in msgspec.structs.asdict(self.defaults).items()
            if name in self.default_fields or value != getattr(usual, name)
        }

"""Settings of the engine as a whole; those of one destination are in the model."""

from __future__ import annotations

import msgspec

from sluicemq.model.destination import DestinationSettings


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the whole broker.

    auto_create_queues, auto_create_topics   a destination comes into being by being used
    max_destinations  0 = no limit
    idle_timeout      ms until an unused automatic destination is removed; 0 = never
    memory_budget     bytes of messages kept in memory; the bodies of journaled ones beyond it are
                      read back from the segments
    message_overhead  bytes a message is counted with beside its body
    page_deliveries   deliveries to a page of a long backlog
    memory_limit      bytes at which messages that are not journaled are refused
    batch_writers     writers of batches that are remembered
    defaults          settings of automatically created destinations
    """

    auto_create_queues: bool = True
    auto_create_topics: bool = True
    max_destinations: int = 0
    idle_timeout: int = 120_000
    memory_budget: int = 256 << 20
    message_overhead: int = 512
    page_deliveries: int = 1024
    memory_limit: int = 1 << 30
    batch_writers: int = 10_000
    defaults: DestinationSettings = DestinationSettings()

"""Options of the engine that the configuration has in its section `[broker]`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluicemq.model.destination import DestinationSettings
from sluicemq.model.setting import about


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the engine as a whole; those of one destination are `DestinationSettings`."""

    auto_create_queues: Annotated[bool, about("Create a queue when it is first used.")] = True
    auto_create_topics: Annotated[bool, about("Create a topic when it is first used.")] = True
    max_destinations: Annotated[
        int,
        about("Maximum number of queues and topics; `[destinations]` are created beyond it.", ge=1),
    ] = 100_000
    max_destinations_per_user: Annotated[
        int,
        about(
            "Maximum number of existing queues and topics that one user has created, including "
            "temporary ones. Clients without a login count as one user; superusers and "
            "`[destinations]` are exempt. 0 = no limit."
        ),
    ] = 10_000
    max_subscriptions_per_user: Annotated[
        int,
        about(
            "Maximum number of durable subscriptions of one user; superusers are exempt. 0 = no "
            "limit."
        ),
    ] = 1000
    max_temporary_destinations_per_connection: Annotated[
        int, about("Maximum number of temporary destinations of a connection; 0 = no limit.")
    ] = 1000
    destination_idle_timeout: Annotated[
        int,
        about(
            "Time after which an automatically created destination without messages and consumers "
            "is deleted; 0 = never.",
            "ms",
        ),
    ] = 120_000
    memory_budget: Annotated[
        int,
        about(
            "Memory for messages, at 512 bytes per message plus body and headers. Beyond it, "
            "the bodies of durable messages are read from the journal when they are delivered.",
            "bytes",
            ge=1024**2,
        ),
    ] = 256 * 1024**2
    memory_limit: Annotated[
        int,
        about(
            "Maximum size of all messages in memory, including those of open transactions and "
            "those that wait for a full destination. At the limit, a message is rejected if it is "
            "not journaled, belongs to a transaction, or would have to wait. A message that is not "
            "journaled counts 160 bytes for each subscription of a topic after the first.",
            "bytes",
            ge=1024**2,
        ),
    ] = 1024**3
    max_transaction_bytes: Annotated[
        int,
        about(
            "Maximum size of the messages and acknowledgements of an open transaction, at 512 "
            "bytes for each plus body and headers; further ones are rejected. 0 = no limit.",
            "bytes",
        ),
    ] = 64 * 1024**2
    max_transaction_messages: Annotated[
        int,
        about(
            "Maximum number of messages in an open transaction; further messages are rejected. 0 "
            "= no limit."
        ),
    ] = 0
    max_batch_writers: Annotated[
        int,
        about(
            "Maximum number of batch writers (streaming queries, batch jobs) that the broker "
            "remembers, each for 30 days. A batch that a remembered writer repeats is not "
            "published again.",
            ge=1,
        ),
    ] = 10_000
    dead_letter_retry: Annotated[
        int,
        about(
            "A message whose dead-letter queue is full stays in its queue and is moved after this "
            "time if it has capacity.",
            "ms",
            ge=100,
            le=3_600_000,
        ),
    ] = 5_000
    max_selector_bytes: Annotated[
        int,
        about("Maximum length of a message selector in UTF-8.", "bytes", ge=1, le=65_536),
    ] = 8 * 1024
    max_selector_nodes: Annotated[
        int,
        about(
            "Maximum number of identifiers, literals and operations of a message selector. A "
            "string of `IN` counts as 1, a part of a `LIKE` pattern between two `%` as 8 and, if "
            "it has a `_`, each of its characters as 8 more.",
            ge=1,
            le=65_536,
        ),
    ] = 512
    max_destination_selector_nodes: Annotated[
        int,
        about(
            "Maximum of that number for all selectors of a destination that one message may have "
            "to be evaluated with; 0 = no limit. Selectors that require different values of one "
            "property (`id = 17`) do not add up.",
            ge=0,
        ),
    ] = 12_000
    default_destination: DestinationSettings = DestinationSettings()

"""Settings of the journal."""

from __future__ import annotations

import msgspec

from sluicemq.journal.slots import DEFAULT_SLOT_LIMIT


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the journal.

    segment_bytes      a segment is ended when it has this size (1 MiB or more is sensible)
    preallocate_bytes  of a segment to reserve ahead of what is written (0 = none): on most file
                       systems an fdatasync takes less time when it need not make a file longer
    sync_delay         ms until what nobody waits for is synced: acknowledgements, lazily journaled
                       messages. The end of the process takes nothing of that back, only a crash
                       of the machine could
    verify_on_start    compare every sealed segment with its CRC
    leftover_fraction  sealed segments with a smaller live part are emptied (0 = never, up to 1)
    slot_limit_bytes   limit of a retention slot that names none
    deliveries         journal who has been given what: what a consumer held when the broker was
                       killed comes again marked as redelivered, and the pipeline sees deliveries
    gauge_interval     ms after which the pipeline is told anew how many messages and consumers a
                       destination has, if that has changed (0 = never)
    """

    segment_bytes: int = 64 << 20
    preallocate_bytes: int = 4 << 20
    sync_delay: int = 100
    verify_on_start: bool = True
    leftover_fraction: float = 0.25
    slot_limit_bytes: int = DEFAULT_SLOT_LIMIT
    deliveries: bool = True
    gauge_interval: int = 5000

"""Settings of the journal."""

from __future__ import annotations

import msgspec

from sluicemq.journal.slots import DEFAULT_IDLE_LIMIT, DEFAULT_SLOT_LIMIT


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
    slot_idle_limit    ms after which a retention slot that holds segments back is lost, unless its
                       reader moves or acknowledges it (0 = never); there is a warning at half of it
    low_space_bytes    free space of the journal's file system below which persistent messages are
                       refused and optional records (deliveries, gauges) are not written; consumers,
                       acknowledgements and administration go on. Never more than a quarter of the
                       file system. They are accepted again a quarter above it
    low_space_percent  the same in percent of the file system; the larger of both holds
    reserve_bytes      preallocated in the data directory and used when the file system is full: for
                       acknowledgements, commits of prepared transactions, indexes and snapshots.
                       Never more than a sixteenth of the file system. 0 = none
    drop_slots_on_low_space  below the threshold no retention slot holds segments back: those that
                       would are lost, and their readers have a gap
    deliveries         journal who has been given what: what a consumer held when the broker was
                       killed comes again marked as redelivered, and the pipeline sees deliveries
    record_transient   journal messages with durability `none` too, so that the pipeline sees them
                       and what becomes of them. They are not waited for, and a restart drops them
                       as before; messages to temporary destinations stay in memory only
    gauge_interval     ms after which the pipeline is told anew how many messages and consumers a
                       destination has, if that has changed (0 = never)
    """

    segment_bytes: int = 64 << 20
    preallocate_bytes: int = 4 << 20
    sync_delay: int = 100
    verify_on_start: bool = True
    leftover_fraction: float = 0.25
    slot_limit_bytes: int = DEFAULT_SLOT_LIMIT
    slot_idle_limit: int = DEFAULT_IDLE_LIMIT
    low_space_bytes: int = 512 << 20
    low_space_percent: float = 5.0
    reserve_bytes: int = 64 << 20
    drop_slots_on_low_space: bool = False
    deliveries: bool = True
    record_transient: bool = False
    gauge_interval: int = 5000

"""Settings of the journal."""

from __future__ import annotations

import msgspec

from sluicemq.journal.slots import DEFAULT_IDLE_TIMEOUT, DEFAULT_SLOT_LIMIT


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the journal.

    segment_bytes          size at which a segment is ended (1 MiB or more is sensible)
    preallocate_bytes      reserved in a segment ahead of the end of the data (0 = none); on most
                           file systems an fdatasync takes less time if the file does not grow
    flush_interval         ms until records that no client waits for are synced: acknowledgements,
                           lazily journaled messages. They survive the end of the process, but not a
                           crash of the machine
    verify_on_start        compare every sealed segment with its CRC at start
    compaction_threshold   sealed segments with a smaller live fraction are compacted (0 = never, up
                           to 1)
    slot_limit_bytes       limit of a retention slot that is created without one
    slot_idle_timeout      ms; time after which a retention slot that retains segments is lost,
                           unless its reader advances or acknowledges it (0 = never); the broker
                           logs a warning at half of it
    disk_free_limit_bytes  free space of the journal's file system below which persistent messages
                           are rejected and optional records (deliveries, depths) are not written;
                           consumers, acknowledgements and administration continue. At most a
                           quarter of the file system. Messages are accepted again at 1.25 times the
                           limit
    disk_free_limit_percent  the same in percent of the file system; the larger limit applies
    reserve_bytes          preallocated in the data directory and used when the file system is full:
                           for acknowledgements, commits of prepared transactions, indexes and
                           snapshots. At most a sixteenth of the file system. 0 = none
    invalidate_slots_on_low_disk_space  below the limit of free space, retention slots that would
                           retain segments are lost, and their readers have a gap
    record_deliveries      journal deliveries: messages that a consumer held when the broker was
                           killed are delivered again with the redelivered flag, and the pipeline
                           sees deliveries
    record_transient       journal messages with durability `none` too, so that the pipeline sees
                           them and their outcomes. Publishers do not wait for them, and they are
                           still dropped at a restart; messages to temporary destinations stay in
                           memory only
    depth_interval         ms; interval at which the depth of each destination (ready and unacked
                           messages, consumers) is recorded if it has changed (0 = never)
    """

    segment_bytes: int = 64 << 20
    preallocate_bytes: int = 4 << 20
    flush_interval: int = 100
    verify_on_start: bool = True
    compaction_threshold: float = 0.25
    slot_limit_bytes: int = DEFAULT_SLOT_LIMIT
    slot_idle_timeout: int = DEFAULT_IDLE_TIMEOUT
    disk_free_limit_bytes: int = 512 << 20
    disk_free_limit_percent: float = 5.0
    reserve_bytes: int = 64 << 20
    invalidate_slots_on_low_disk_space: bool = False
    record_deliveries: bool = True
    record_transient: bool = False
    depth_interval: int = 5000

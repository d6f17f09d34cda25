"""Settings of the journal."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from sluicemq.journal.slots import DEFAULT_IDLE_TIMEOUT, DEFAULT_SLOT_LIMIT
from sluicemq.model.setting import about

MIN_SEGMENT: Final = 64 * 1024
"""Minimum configured size of a segment in bytes; smaller ones need too many files."""


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the journal."""

    segment_bytes: Annotated[
        int,
        about(
            "Size at which a segment is ended (1 MiB or more is sensible).", "bytes", ge=MIN_SEGMENT
        ),
    ] = 64 << 20
    preallocate_bytes: Annotated[
        int,
        about(
            "Space reserved in a segment ahead of the end of the data (0 = none); on most file "
            "systems an fdatasync takes less time if the file does not grow.",
            "bytes",
        ),
    ] = 4 << 20
    flush_interval: Annotated[
        int,
        about(
            "Time until records that no client waits for are synced: acknowledgements, lazily "
            "journaled messages. They survive the end of the process, but not a crash of the "
            "machine.",
            "ms",
        ),
    ] = 100
    verify_on_start: Annotated[
        bool, about("Compare every sealed segment with its CRC at start.")
    ] = True
    compaction_threshold: Annotated[
        float,
        about(
            "Sealed segments with a smaller live fraction are compacted (0 = never, up to 1).", le=1
        ),
    ] = 0.25
    slot_limit_bytes: Annotated[
        int, about("Limit of a retention slot that is created without one.", "bytes", ge=1)
    ] = DEFAULT_SLOT_LIMIT
    slot_idle_timeout: Annotated[
        int,
        about(
            "Time after which a retention slot that retains segments is lost, unless its "
            "reader advances or acknowledges it (0 = never); the broker logs a warning at "
            "half of it.",
            "ms",
        ),
    ] = DEFAULT_IDLE_TIMEOUT
    disk_free_limit_bytes: Annotated[
        int,
        about(
            "Free space of the journal's file system below which persistent messages are "
            "rejected and optional records (deliveries, depths) are not written; consumers, "
            "acknowledgements and administration continue. At most a quarter of the file "
            "system. Messages are accepted again at 1.25 times the limit.",
            "bytes",
        ),
    ] = 512 << 20
    disk_free_limit_percent: Annotated[
        float, about("The same in percent of the file system; the larger limit applies.", le=100)
    ] = 5.0
    reserve_bytes: Annotated[
        int,
        about(
            "Space preallocated in the data directory and used when the file system is full: for "
            "acknowledgements, commits of prepared transactions, indexes and snapshots. At "
            "most a sixteenth of the file system. 0 = none.",
            "bytes",
        ),
    ] = 64 << 20
    invalidate_slots_on_low_disk_space: Annotated[
        bool,
        about(
            "Below the limit of free space, retention slots that would retain segments are "
            "lost, and their readers have a gap."
        ),
    ] = False
    record_deliveries: Annotated[
        bool,
        about(
            "Journal deliveries: messages that a consumer held when the broker was killed are "
            "delivered again with the redelivered flag, and the pipeline sees deliveries."
        ),
    ] = True
    record_transient: Annotated[
        bool,
        about(
            "Journal messages with durability `none` too, so that the pipeline sees them and "
            "their outcomes. Publishers do not wait for them, and they are still dropped at a "
            "restart; messages to temporary destinations stay in memory only."
        ),
    ] = False
    depth_interval: Annotated[
        int,
        about(
            "Interval at which the depth of each destination (ready and unacked messages, "
            "consumers) is recorded if it has changed (0 = never).",
            "ms",
        ),
    ] = 5000

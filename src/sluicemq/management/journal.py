"""Operations on the journal: segments, retention slots, backups and batches."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicemq.management.operation import (
    OCTETS,
    ApiOperation,
    Body,
    NamedBody,
    NamePath,
    Need,
    NoParameters,
    Page,
    PageQuery,
    SortedPageQuery,
)
from sluicemq.model.access import Operation


class DurablePosition(msgspec.Struct, frozen=True):
    """End of the durable part of the journal: offset in a segment, and last sequence number."""

    segment: int
    offset: int
    sequence: int


class SegmentView(msgspec.Struct, frozen=True):
    """A segment. `created` in µs since the epoch."""

    first_sequence: int
    size: int
    sealed: bool
    created: int


class SegmentPath(msgspec.Struct, frozen=True, kw_only=True):
    """A segment, by its first sequence number."""

    first_sequence: Annotated[
        str, Meta(min_length=1, description="First sequence number of the segment.")
    ]


class JournalView(msgspec.Struct, frozen=True, kw_only=True):
    """The journal. `earliest_sequence` is the first sequence number that may be in it."""

    broker_id: str
    format_version: int
    durable: DurablePosition
    segments: list[SegmentView]
    earliest_sequence: int


class DestinationNamesQuery(msgspec.Struct, frozen=True):
    """Selection of destinations."""

    ids: Annotated[str, Meta(description="Numbers of the destinations, separated by commas.")] = ""


class DestinationNames(msgspec.Struct, frozen=True):
    """Destinations by number: `[number, kind, name in base64]`; kind 1 is a queue, 2 a topic."""

    destinations: list[list[int | str]]


class SlotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a slot.

    position     sequence number up to which the reader has processed the journal
    limit_bytes  maximum bytes retained for this slot alone; only for a new slot without a holder
    holder       process that claims the slot: others cannot claim it before its lease ends
    lease_ms     duration of the lease from now on; 0 ends it
    """

    position: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    limit_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None
    holder: Annotated[str, Meta(max_length=255)] = ""
    lease_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


class SlotView(msgspec.Struct, frozen=True):
    """A slot.

    lag_records    records after the position
    created        time of creation in ms since the epoch
    lost           true if segments that it needs may have been deleted
    idle_expired   true if it was lost because its reader did not advance it
    last_advanced  time of the last advance in ms since the epoch; 0 = never
    holder         process that claimed it; empty if it was not claimed
    lease_until    end of its lease in ms since the epoch; 0 = it has none
    """

    name: str
    position: int
    lag_records: int
    limit_bytes: int
    created: int
    lost: bool
    last_advanced: int
    idle_expired: bool
    holder: str
    lease_until: int


class BackupView(msgspec.Struct, frozen=True, kw_only=True):
    """A backup as lists show it; one that was never finished has only its name.

    created       time of creation in ms since the epoch
    bytes         size of all its files; `copied_bytes` of them are shared with no earlier one
    broker_id     identity of the journal, 32 hex digits
    version       release of SluiceMQ that made it
    """

    name: str
    complete: bool
    created: int = 0
    version: str = ""
    broker_id: str = ""
    bytes: int = 0
    copied_bytes: int = 0
    last_sequence: int = 0
    incremental_from: str = ""


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a new backup."""

    directory: Annotated[
        str,
        Meta(
            description="Name of the backup in the configured directory.",
            examples=["2026-03-31"],
        ),
    ]
    incremental_from: Annotated[
        str | None, Meta(description="Earlier backup whose unchanged files are shared.")
    ] = None
    hard_links: Annotated[
        bool, Meta(description="Share sealed segments with the data directory, if possible.")
    ] = False
    max_rate: Annotated[
        int, Meta(ge=0, le=1 << 50, description="Maximum bytes copied per second; 0 = no limit.")
    ] = 0


class BackupList(Page[BackupView], frozen=True, kw_only=True):
    """Backups in the configured directory, and the files that the next backup will include."""

    directory: str | None
    running: bool
    users_file: str
    configuration: Annotated[str, Meta(description="The settings in force, as TOML.")]


DEAD_LETTER: Final = "sluicemq.sink.dlq"
_MAX_SEQUENCE: Final = (1 << 63) - 1
_MAX_PARTITIONS: Final = 1 << 20


class BatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters that identify a part."""

    writer: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="Name of the writer; the same after the writer restarts.",
        ),
    ]
    batch: Annotated[
        int, Meta(ge=0, le=_MAX_SEQUENCE, description="Number of the batch; ascending.")
    ]
    partition: Annotated[
        int,
        Meta(ge=0, lt=_MAX_PARTITIONS, description="Number of the partition in the batch, from 0."),
    ]
    part: Annotated[int, Meta(ge=0, lt=1 << 32, description="Number of the part, from 0.")]
    final: Annotated[bool, Meta(description="True for the last part of its partition.")] = False
    bad_rows: Annotated[
        Literal["fail", "drop", "dead-letter"],
        Meta(
            description="Handling of rows that cannot be sent: reject the part, omit the rows, or "
            "send them to a dead-letter queue."
        ),
    ] = "fail"
    dead_letter_queue: Annotated[
        str, Meta(min_length=1, max_length=1024, description="Queue for `bad_rows=dead-letter`.")
    ] = DEAD_LETTER


class RejectedRow(msgspec.Struct, frozen=True):
    """A row that was not written."""

    row: int
    reason: str


class BatchPartResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of writing a part.

    duplicate     true if the part had been written already
    latest_batch  latest known batch of the writer, if the part is a duplicate
    rejected      the first of the rejected rows
    """

    written: int
    duplicate: bool
    latest_batch: int | None = None
    dead_lettered: int
    rejected: list[RejectedRow]
    rejected_rows: int


class WritersQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Order of the writers, by the time of their last part."""

    order: Annotated[
        Literal["asc", "desc"], Meta(description="`desc`: most recent writer first.")
    ] = "desc"


class WriterView(msgspec.Struct, frozen=True):
    """A writer, the user who owns it ("" = no owner yet), and its latest batch."""

    writer: str
    owner: str
    batch: int
    partitions_done: Annotated[int, Meta(description="Number of complete partitions.")]
    parts_open: Annotated[int, Meta(description="Number of parts of incomplete partitions.")]
    rows: Annotated[int, Meta(description="Number of rows of the batch so far.")]
    last_seen: Annotated[int, Meta(description="Time of its last part in ms since the epoch.")]


LINES: Final = "application/x-ndjson"

GET_JOURNAL: Final = ApiOperation(
    "getJournal",
    "GET",
    "/journal",
    Need.SUPERUSER,
    "List the segments of the journal",
    NoParameters,
    JournalView,
)
READ_SEGMENT: Final = ApiOperation(
    "readSegment",
    "GET",
    "/journal/segments/{first_sequence}",
    Need.SUPERUSER,
    "Read a segment or a byte range of it",
    SegmentPath,
    bytes,
    media=OCTETS,
    other_statuses=(206,),
)
LIST_JOURNAL_DESTINATIONS: Final = ApiOperation(
    "listJournalDestinations",
    "GET",
    "/journal/destinations",
    Need.SUPERUSER,
    "List names of destinations by number",
    DestinationNamesQuery,
    DestinationNames,
)
LIST_SLOTS: Final = ApiOperation(
    "listSlots",
    "GET",
    "/journal/slots",
    Need.SUPERUSER,
    "List the slots",
    PageQuery,
    Page[SlotView],
)
GET_SLOT: Final = ApiOperation(
    "getSlot", "GET", "/journal/slots/{name}", Need.SUPERUSER, "Show a slot", NamePath, SlotView
)
PUT_SLOT: Final = ApiOperation(
    "putSlot",
    "PUT",
    "/journal/slots/{name}",
    Need.SUPERUSER,
    "Create or advance a slot",
    NamedBody[SlotRequest],
    SlotView,
)
DELETE_SLOT: Final = ApiOperation(
    "deleteSlot",
    "DELETE",
    "/journal/slots/{name}",
    Need.SUPERUSER,
    "Delete a slot",
    NamePath,
    NoneType,
    status=204,
)
LIST_BACKUPS: Final = ApiOperation(
    "listBackups", "GET", "/backups", Need.SUPERUSER, "List the backups", PageQuery, BackupList
)
CREATE_BACKUP: Final = ApiOperation(
    "createBackup",
    "POST",
    "/backups",
    Need.SUPERUSER,
    "Create a backup; the response reports its progress, one line at a time",
    Body[BackupRequest],
    bytes,
    media=LINES,
)
WRITE_BATCH_PART: Final = ApiOperation(
    "writeBatchPart",
    "POST",
    "/batches",
    (Operation.PRODUCE,),
    "Write a part of a batch, exactly once",
    BatchQuery,
    BatchPartResult,
    raw_body=OCTETS,
    audited=False,
)
LIST_BATCH_WRITERS: Final = ApiOperation(
    "listBatchWriters",
    "GET",
    "/batches",
    Need.SUPERUSER,
    "List the writers of batches",
    WritersQuery,
    Page[WriterView],
)

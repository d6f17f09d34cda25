"""Operations on the broker as a whole: state, statistics, settings, audit log and events."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicemq.management.destinations import Counters
from sluicemq.management.operation import (
    ApiOperation,
    KindName,
    Need,
    NoParameters,
    Page,
    PageQuery,
)

BrokerState = Literal["starting", "serving", "stopping", "failed"]


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """An effective setting. `value` is null for a secret.

    name    dotted name, as in the configuration file; for a listener, such as `listeners[0].url`
    unit    unit of a number: bytes, ms, s; otherwise ""
    source  `default`, a file, an environment variable, or the command line
    """

    name: str
    value: bool | int | float | str | None
    default: bool | int | float | str | None
    unit: str
    source: str
    description: str


MINUTES: Final = 10
"""Length of the history in an overview."""


class OverviewQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Options of the overview."""

    fresh: Annotated[
        bool,
        Meta(
            description="Do not reuse a response of the last second; superusers only. The totals "
            "are sampled every second all the same."
        ),
    ] = False


class HistoryQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Destination and period of the history."""

    destination: Annotated[
        str, Meta(description="Name of the destination; without it, totals.")
    ] = ""
    name_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    kind: Annotated[KindName, Meta(description="Kind of the destination.")] = "queue"
    minutes: Annotated[
        int, Meta(ge=1, le=60, description="Up to 60 for totals, up to 10 for a destination.")
    ] = MINUTES


class HistoryView(msgspec.Struct, kw_only=True, frozen=True):
    """Samples in ascending order of time; the last one was taken at `end` (ms since the epoch).

    publish_rate, deliver_rate  messages/s
    ready, unacked              number of messages
    loop_lag_ms, fdatasync_ms   p99 of event loop lag and fdatasync; empty for a destination
    """

    step_ms: int
    end: int
    publish_rate: list[float]
    deliver_rate: list[float]
    ready: list[int]
    unacked: list[int]
    loop_lag_ms: list[float]
    fdatasync_ms: list[float]


class QuantilesView(msgspec.Struct, frozen=True):
    """Quantiles of durations in about the last minute, in ms."""

    p50: float
    p99: float
    max: float


class TotalsView(Counters, kw_only=True, frozen=True):
    """Totals of all destinations and connections; `bytes` of bodies."""

    destinations: int
    queues: int
    topics: int
    temporary: int
    connections: int
    consumers: int
    transactions: int
    ready: int
    unacked: int
    bytes: int


class ProtocolView(msgspec.Struct, frozen=True):
    """Clients of one protocol."""

    connections: int
    publish_rate: float
    deliver_rate: float
    published: int
    delivered: int


class ListenerItem(msgspec.Struct, frozen=True):
    """An open listener; bytes of all its connections so far. `closed`: connections closed because
    of a limit or a deadline, by its name."""

    url: str
    protocol: str
    tls: bool
    connections: int
    max_connections: int
    accepted: int
    refused: int
    received_bytes: int
    sent_bytes: int
    closed: dict[str, int]


class InputItem(msgspec.Struct, frozen=True):
    """Unfinished input of all connections.

    buffered_bytes  size of the input
    limit_bytes     maximum size
    connections     number of connections with unfinished input
    paused          number of those whose reading is paused
    """

    buffered_bytes: int
    limit_bytes: int
    connections: int
    paused: int


class JournalStatsView(msgspec.Struct, kw_only=True, frozen=True):
    """Statistics of the journal, a few seconds old. `enabled` is false for a broker without one."""

    enabled: bool
    segments: int
    bytes: int
    durable_sequence: int
    live_records: int
    relocated_records: int
    group_commits: int
    records_written: int
    written_bytes: int
    fdatasync_ms: QuantilesView


class AlarmView(msgspec.Struct, frozen=True):
    """Condition that needs an operator; `code` is for programs, `message` for people."""

    code: str
    message: str


class OverviewView(msgspec.Struct, kw_only=True, frozen=True):
    """The broker as a whole."""

    version: str
    compiled: bool
    broker_id: str
    state: str
    time: int
    uptime_ms: int
    resident_memory_bytes: int
    message_memory_bytes: int
    message_memory_budget_bytes: int
    message_memory_limit_bytes: int
    input: InputItem
    totals: TotalsView
    protocols: dict[str, ProtocolView]
    listeners: list[ListenerItem]
    journal: JournalStatsView
    loop_lag_ms: QuantilesView
    alarms: list[AlarmView]
    history: HistoryView | UnsetType = UNSET


class StatusView(msgspec.Struct, frozen=True):
    """Identity of the broker: `broker_id` of its data directory, `pid` of its process."""

    version: str
    broker_id: str
    pid: int


class HealthView(msgspec.Struct, frozen=True):
    """State of the broker; `serving` while it accepts clients."""

    state: BrokerState


class ConfigurationQuery(PageQuery, frozen=True, kw_only=True):
    """Selection of settings."""

    filter: Annotated[str, Meta(description="Only names that contain this text.")] = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log. `time` in ms since the epoch.

    event       login | login failed | login refused | denied | change | user added | user changed |
                user removed | role added | role changed | role removed
    peer, user   address and user of the client; for changes of users, `user` is the changed user
                 and `changed_by` the user who made the change
    method       password | token | digest
    reason       reason for a refused login
    retry_after  seconds until another login attempt is accepted
    operation    requested operation
    action       for a change over HTTP, the operation's id in the OpenAPI document
    result       done, or the status of the error response
    omitted      number of further events from this address within a minute, each without a line
    """

    time: int
    event: str
    peer: str = ""
    user: str = ""
    method: str = ""
    reason: str = ""
    retry_after: float = 0.0
    operation: str = ""
    action: str = ""
    result: str = ""
    role: str = ""
    changed: str = ""
    changed_by: str = ""
    omitted: int = 0


EVENT_STREAM: Final = "text/event-stream"

GET_OVERVIEW: Final = ApiOperation(
    "getOverview",
    "GET",
    "/overview",
    Need.USER,
    "Show the overview of the broker",
    OverviewQuery,
    OverviewView,
)
GET_HISTORY: Final = ApiOperation(
    "getHistory",
    "GET",
    "/history",
    Need.USER,
    "Show the history of the last hour",
    HistoryQuery,
    HistoryView,
)
STREAM_EVENTS: Final = ApiOperation(
    "streamEvents",
    "GET",
    "/events",
    Need.USER,
    "Stream live statistics",
    NoParameters,
    bytes,
    media=EVENT_STREAM,
)
GET_STATUS: Final = ApiOperation(
    "getStatus",
    "GET",
    "/status",
    Need.USER,
    "Show the identity of the broker",
    NoParameters,
    StatusView,
)
GET_LIVENESS: Final = ApiOperation(
    "getLiveness",
    "GET",
    "/health/live",
    Need.NOTHING,
    "Check that the broker is alive",
    NoParameters,
    HealthView,
)
GET_READINESS: Final = ApiOperation(
    "getReadiness",
    "GET",
    "/health/ready",
    Need.NOTHING,
    "Check that the broker serves clients",
    NoParameters,
    HealthView,
)
LIST_SETTINGS: Final = ApiOperation(
    "listSettings",
    "GET",
    "/configuration",
    Need.SUPERUSER,
    "List the effective settings and their sources, except those of destinations",
    ConfigurationQuery,
    Page[SettingView],
)
LIST_AUDIT_ENTRIES: Final = ApiOperation(
    "listAuditEntries",
    "GET",
    "/audit",
    Need.SUPERUSER,
    "List the last entries of the audit log",
    PageQuery,
    Page[AuditEntry],
)
GET_OPENAPI_DOCUMENT: Final = ApiOperation(
    "getOpenApiDocument",
    "GET",
    "/openapi.json",
    Need.NOTHING,
    "Show the OpenAPI document",
    NoParameters,
    bytes,
)

"""Metrics in the text format of Prometheus, version 0.0.4.

    # HELP sluicemq_destination_messages_published_total Messages accepted.
    # TYPE sluicemq_destination_messages_published_total counter
    sluicemq_destination_messages_published_total{destination="orders",kind="queue"} 17

The client library of Prometheus takes 4 µs per sample (0.2 µs here), because it checks every
character of every name. A broker with a thousand destinations has 20,000 samples, and formatting
them blocks the event loop. The tests parse the output with that library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from sluicemq.model.histogram import BOUNDS, Distribution

BUCKET_STEP: Final = 2
"""Exports every n-th bucket; a factor of 2 between bounds is fine enough for charts."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Shape(StrEnum):
    """Type of a metric family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Family(NamedTuple):
    """Metric family.

    name    without the suffix of its type; ends in the unit if there is one
    unit    seconds, bytes, or "" for counts
    labels  in the order of the values
    """

    name: str
    shape: Shape
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def sample(self) -> str:
        """Name of its samples, without the further suffixes of histograms and summaries."""
        return f"{self.name}_total" if self.shape is Shape.COUNTER else self.name


def text_of(name: str) -> str:
    """Return a name as the value of a label; bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def labels_of(family: Family, values: Sequence[str]) -> str:
    """Return labels in the text format: `destination="orders",kind="queue"`."""
    return ",".join(
        f'{label}="{escape(value)}"' for label, value in zip(family.labels, values, strict=True)
    )


def escape(value: str) -> str:
    """Escape the value of a label, so that it ends at its closing quote."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(slots=True, eq=False)
class Exposition:
    """Collector of samples by family."""

    _lines: dict[Family, list[bytes]] = field(default_factory=dict)

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add one sample of a counter or gauge."""
        label_set = f"{{{labels_of(family, labels)}}}" if labels else ""
        self.add_lines(family, f"{family.sample}{label_set} {value}\n")

    def add_all(self, samples: Mapping[Family, float], *labels: str) -> None:
        """Add one sample of each of several counters and gauges, all with these labels."""
        for family, value in samples.items():
            self.add(family, value, *labels)

    def add_fields(self, families: Mapping[str, Family], source: object, *labels: str) -> None:
        """Add one sample of each family: the attribute of `source` with the family's key."""
        for name, family in families.items():
            self.add(family, getattr(source, name), *labels)

    def add_histogram(self, family: Family, distribution: Distribution, *labels: str) -> None:
        """Add a histogram of durations."""
        lines = []
        pairs = labels_of(family, labels)
        prefix = f"{family.name}_bucket{{{pairs}{',' if pairs else ''}le="
        total = 0
        for index, (bound, count) in enumerate(zip(BOUNDS, distribution.counts, strict=False)):
            total += count
            if index % BUCKET_STEP == 0:
                lines.append(f'{prefix}"{bound:.6g}"}} {total}\n')
        lines.append(f'{prefix}"+Inf"}} {distribution.count}\n')
        self.add_lines(family, "".join(lines))
        self.add_summary(family, distribution.count, distribution.sum, *labels)

    def add_summary(self, family: Family, count: int, total: float, *labels: str) -> None:
        """Add a summary: count and total."""
        label_set = f"{{{labels_of(family, labels)}}}" if labels else ""
        self.add_lines(
            family,
            f"{family.name}_count{label_set} {count}\n{family.name}_sum{label_set} {total}\n",
        )

    def add_lines(self, family: Family, text: str) -> None:
        """Add formatted sample lines, each with its line end."""
        self._lines.setdefault(family, []).append(text.encode())

    def text(self) -> bytes:
        """Return all families as text."""
        parts: list[bytes] = []
        for family, lines in self._lines.items():
            parts.append(_head(family).encode())
            parts += lines
        return b"".join(parts)


def _head(family: Family) -> str:
    help = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.sample} {help}\n# TYPE {family.sample} {family.shape}\n"


# --- Table of all metrics -------------------------------------------------------------------------
#
# Table of all metrics, with their types, units, labels and help texts.
#
# Tests compare docs/metrics.md, the dashboard and the alert rules with this table.

_COUNTER: Final = Shape.COUNTER
_GAUGE: Final = Shape.GAUGE

FAMILIES: Final[list[Family]] = []
"""In the order of the export."""


def _family(name: str, shape: Shape, unit: str, labels: tuple[str, ...], help: str) -> Family:
    family = Family(name, shape, unit, labels, help)
    FAMILIES.append(family)
    return family


# --- the broker ----------------------------------------------------------------------------------

BUILD: Final = _family(
    "sluicemq_build_info",
    _GAUGE,
    "",
    ("version", "python", "compiled"),
    "Version of the broker, version of Python, and true if the message path is compiled.",
)
DESTINATIONS: Final = _family(
    "sluicemq_destinations", _GAUGE, "", ("kind", "temporary"), "Queues and topics."
)
DESTINATIONS_LIMIT: Final = _family(
    "sluicemq_destinations_limit",
    _GAUGE,
    "",
    (),
    "Maximum number of destinations (broker.max_destinations).",
)
MESSAGES: Final = {
    "memory": _family(
        "sluicemq_message_memory_bytes", _GAUGE, "bytes", (), "Memory of the messages."
    ),
    "memory_budget": _family(
        "sluicemq_message_memory_budget_bytes",
        _GAUGE,
        "bytes",
        (),
        "Message memory above which bodies of journaled messages are read from the journal "
        "(broker.memory_budget).",
    ),
    "memory_limit": _family(
        "sluicemq_message_memory_limit_bytes",
        _GAUGE,
        "bytes",
        (),
        "Message memory at which messages that are not journaled are rejected "
        "(broker.memory_limit).",
    ),
}
ITERATIONS: Final = _family(
    "sluicemq_event_loop_iterations", _COUNTER, "", (), "Event loop iterations of the engine."
)
LOOP_LAG: Final = _family(
    "sluicemq_event_loop_lag_seconds",
    Shape.HISTOGRAM,
    "seconds",
    (),
    "Delay of timers of the event loop.",
)
TRANSACTIONS: Final = _family(
    "sluicemq_transactions", _GAUGE, "", ("state",), "Open and prepared transactions."
)
OLDEST_PREPARED: Final = _family(
    "sluicemq_transactions_oldest_prepared_age_seconds",
    _GAUGE,
    "seconds",
    (),
    "Age of the oldest prepared transaction; 0 if there is none.",
)

# --- destinations --------------------------------------------------------------------------------

_DESTINATION: Final = ("destination", "kind")


def _destination(name: str, shape: Shape, unit: str, help: str) -> Family:
    return _family(f"sluicemq_destination_{name}", shape, unit, _DESTINATION, help)


DESTINATION_COUNTERS: Final = {
    "published": _destination("messages_published", _COUNTER, "", "Messages published."),
    "delivered": _destination(
        "messages_delivered", _COUNTER, "", "Deliveries to consumers, including redeliveries."
    ),
    "redelivered": _destination("messages_redelivered", _COUNTER, "", "Redeliveries to consumers."),
    "acknowledged": _destination("messages_acknowledged", _COUNTER, "", "Acknowledged deliveries."),
    "expired": _destination("messages_expired", _COUNTER, "", "Messages that expired."),
    "dropped": _destination(
        "messages_dropped",
        _COUNTER,
        "",
        "Messages dropped because of a limit or after the maximum number of attempts, without a "
        "dead-letter queue.",
    ),
    "rejected": _destination(
        "messages_rejected", _COUNTER, "", "Messages rejected because of a limit."
    ),
    "dead_lettered": _destination(
        "messages_dead_lettered", _COUNTER, "", "Messages moved to a dead-letter queue."
    ),
    "published_bytes": _destination(
        "published_bytes", _COUNTER, "bytes", "Bytes of published bodies."
    ),
    "delivered_bytes": _destination(
        "delivered_bytes", _COUNTER, "bytes", "Bytes of delivered bodies."
    ),
}
"""Keyed by the name of the counter in broker/stats.py."""

DESTINATION_GAUGES: Final = {
    "ready": _destination(
        "messages_ready",
        _GAUGE,
        "",
        "Ready messages; for a topic, those of its longest subscription.",
    ),
    "unacked": _destination("messages_unacked", _GAUGE, "", "Unacked messages."),
    "scheduled": _destination(
        "messages_scheduled",
        _GAUGE,
        "",
        "Scheduled messages; they are included in the ready messages.",
    ),
    "bytes": _destination(
        "messages_bytes", _GAUGE, "bytes", "Bytes of the bodies of ready and unacked messages."
    ),
    "consumers": _destination("consumers", _GAUGE, "", "Consumers."),
    "subscriptions": _destination(
        "subscriptions", _GAUGE, "", "Subscriptions of a topic; 0 for a queue."
    ),
    "paused": _destination("paused", _GAUGE, "", "1 if delivery is paused."),
    "blocked": _destination(
        "publishes_blocked", _GAUGE, "", "Publishes that wait because the destination is full."
    ),
    "oldest": _destination(
        "oldest_message_age_seconds",
        _GAUGE,
        "seconds",
        "Age of the message that is delivered next; 0 without ready messages.",
    ),
    "max_messages": _destination(
        "messages_limit",
        _GAUGE,
        "",
        "Maximum number of ready messages (max_messages); 0 = no limit.",
    ),
    "max_bytes": _destination(
        "messages_limit_bytes",
        _GAUGE,
        "bytes",
        "Maximum size of ready messages (max_bytes); 0 = no limit.",
    ),
}

_SUBSCRIPTION: Final = ("destination", "subscription")


def _subscription(name: str, unit: str, help: str) -> Family:
    return _family(f"sluicemq_subscription_{name}", _GAUGE, unit, _SUBSCRIPTION, help)


SUBSCRIPTION_GAUGES: Final = (
    _subscription("messages_ready", "", "Ready messages of a durable or shared subscription."),
    _subscription("messages_unacked", "", "Unacked messages of the subscription."),
    _subscription(
        "messages_bytes", "bytes", "Bytes of the bodies of its ready and unacked messages."
    ),
    _subscription("consumers", "", "Consumers of the subscription."),
    _subscription(
        "oldest_message_age_seconds",
        "seconds",
        "Age of the message that it delivers next; 0 without ready messages.",
    ),
)

DEAD_LETTERS: Final = _family(
    "sluicemq_dead_letter_messages_ready",
    _GAUGE,
    "",
    (),
    "Ready messages of all dead-letter queues.",
)

# --- protocols, listeners, requests --------------------------------------------------------------

PROTOCOL_CONNECTIONS: Final = _family(
    "sluicemq_protocol_connections", _GAUGE, "", ("protocol",), "Connections."
)
TRAFFIC: Final = {
    "published": _family(
        "sluicemq_protocol_messages_published",
        _COUNTER,
        "",
        ("protocol",),
        "Messages published by clients of a protocol.",
    ),
    "delivered": _family(
        "sluicemq_protocol_messages_delivered",
        _COUNTER,
        "",
        ("protocol",),
        "Deliveries to consumers of a protocol.",
    ),
}
"""Keyed by the counter in broker/stats.py."""

_LISTENER: Final = ("listener", "protocol")
LISTENER: Final = {
    "connections": _family(
        "sluicemq_listener_connections", _GAUGE, "", _LISTENER, "Connections of a listener."
    ),
    "max_connections": _family(
        "sluicemq_listener_connections_limit",
        _GAUGE,
        "",
        _LISTENER,
        "Maximum number of connections (max_connections).",
    ),
    "accepted": _family(
        "sluicemq_listener_connections_accepted", _COUNTER, "", _LISTENER, "Accepted connections."
    ),
    "refused": _family(
        "sluicemq_listener_connections_refused",
        _COUNTER,
        "",
        _LISTENER,
        "Connections refused because of the limit.",
    ),
    "received_bytes": _family(
        "sluicemq_listener_received_bytes",
        _COUNTER,
        "bytes",
        _LISTENER,
        "Bytes received from clients.",
    ),
    "sent_bytes": _family(
        "sluicemq_listener_sent_bytes", _COUNTER, "bytes", _LISTENER, "Bytes sent to clients."
    ),
}
"""Keyed by the field of `ListenerItem`."""
LISTENER_CLOSED: Final = _family(
    "sluicemq_listener_connections_closed",
    _COUNTER,
    "",
    (*_LISTENER, "reason"),
    "Connections closed because of a limit or time-out; `reason` is its name.",
)
INPUT: Final = {
    "buffered_bytes": _family(
        "sluicemq_input_buffered_bytes",
        _GAUGE,
        "bytes",
        (),
        "Unfinished input of all connections.",
    ),
    "limit_bytes": _family(
        "sluicemq_input_limit_bytes",
        _GAUGE,
        "bytes",
        (),
        "Unfinished input above which connections are read one at a time "
        "(broker.input_memory_limit).",
    ),
    "paused": _family(
        "sluicemq_input_connections_paused",
        _GAUGE,
        "",
        (),
        "Connections whose reading is paused until there is memory for their input.",
    ),
}
"""Keyed by the field of `InputItem`."""

REQUESTS: Final = _family(
    "sluicemq_http_requests",
    _COUNTER,
    "",
    ("method", "route", "status"),
    "Requests to the HTTP API, by route.",
)
REQUEST_TIME: Final = _family(
    "sluicemq_http_request_duration_seconds",
    Shape.SUMMARY,
    "seconds",
    ("method", "route"),
    "Duration of requests; event streams count until they end.",
)
AUDIT: Final = _family(
    "sluicemq_audit_events",
    _COUNTER,
    "",
    ("event",),
    "Events of the audit log, including those without a line of their own, by event.",
)

# --- the journal ---------------------------------------------------------------------------------

JOURNAL: Final = {
    "segments": _family("sluicemq_journal_segments", _GAUGE, "", (), "Segment files."),
    "bytes": _family("sluicemq_journal_size_bytes", _GAUGE, "bytes", (), "Size of all segments."),
    "live": _family(
        "sluicemq_journal_live_records", _GAUGE, "", (), "Records that recovery would need."
    ),
    "durable": _family(
        "sluicemq_journal_durable_sequence",
        _GAUGE,
        "",
        (),
        "Sequence number up to which all records are on disk.",
    ),
    "groups": _family("sluicemq_journal_group_commits", _COUNTER, "", (), "Group commits."),
    "records": _family("sluicemq_journal_records_written", _COUNTER, "", (), "Records written."),
    "written_bytes": _family(
        "sluicemq_journal_written_bytes", _COUNTER, "bytes", (), "Bytes written."
    ),
}
"""Keyed by the field of `JournalStats`."""
JOURNAL_SYNC: Final = _family(
    "sluicemq_journal_fdatasync_duration_seconds",
    Shape.HISTOGRAM,
    "seconds",
    (),
    "Duration of fdatasync calls.",
)
DISK: Final = {
    "free": _family(
        "sluicemq_journal_disk_free_bytes",
        _GAUGE,
        "bytes",
        (),
        "Free space of the journal's file system that the broker's user may use.",
    ),
    "size": _family(
        "sluicemq_journal_disk_size_bytes",
        _GAUGE,
        "bytes",
        (),
        "Size of the journal's file system.",
    ),
    "level": _family(
        "sluicemq_journal_disk_space_level",
        _GAUGE,
        "",
        (),
        "0: enough free space; 1: low, persistent messages are rejected; 2: used up, delivery "
        "stops.",
    ),
    "threshold": _family(
        "sluicemq_journal_disk_free_limit_bytes",
        _GAUGE,
        "bytes",
        (),
        "Free space below which persistent messages are rejected.",
    ),
    "reserve": _family(
        "sluicemq_journal_reserve_bytes",
        _GAUGE,
        "bytes",
        (),
        "Rest of the reserve for acknowledgements on a full disk (journal.reserve_bytes).",
    ),
}
SLOT: Final = {
    "position": _family(
        "sluicemq_journal_slot_sequence",
        _GAUGE,
        "",
        ("slot",),
        "Sequence number up to which the reader has processed all records.",
    ),
    "lag": _family(
        "sluicemq_journal_slot_lag_records",
        _GAUGE,
        "",
        ("slot",),
        "Records that the reader has not processed.",
    ),
    "bytes": _family(
        "sluicemq_journal_slot_lag_bytes",
        _GAUGE,
        "bytes",
        ("slot",),
        "Size of the segments with records that the reader has not processed.",
    ),
    "limit_bytes": _family(
        "sluicemq_journal_slot_limit_bytes",
        _GAUGE,
        "bytes",
        ("slot",),
        "Maximum size of segments that are kept for this slot alone; beyond it the slot is lost.",
    ),
    "idle": _family(
        "sluicemq_journal_slot_idle_seconds",
        _GAUGE,
        "seconds",
        ("slot",),
        "Time since the reader last used the slot, while it retains segments.",
    ),
    "idle_timeout": _family(
        "sluicemq_journal_slot_idle_timeout_seconds",
        _GAUGE,
        "seconds",
        ("slot",),
        "Idle time after which the slot is lost (journal.slot_idle_timeout); absent if there is no "
        "limit.",
    ),
    "lost": _family(
        "sluicemq_journal_slot_lost",
        _GAUGE,
        "",
        ("slot",),
        "1 if segments that the slot needs have been deleted.",
    ),
}

# --- the process ---------------------------------------------------------------------------------

PROCESS: Final = {
    "cpu": _family("process_cpu_seconds", _COUNTER, "seconds", (), "CPU time, user and system."),
    "resident": _family(
        "process_resident_memory_bytes", _GAUGE, "bytes", (), "Resident memory of the process."
    ),
    "started": _family(
        "process_start_time_seconds",
        _GAUGE,
        "seconds",
        (),
        "Start time of the process since the epoch.",
    ),
    "files": _family("process_open_fds", _GAUGE, "", (), "Open file descriptors."),
    "files_limit": _family(
        "process_max_fds", _GAUGE, "", (), "Maximum number of open file descriptors."
    ),
    "threads": _family("process_threads", _GAUGE, "", (), "Threads."),
}
COLLECTIONS: Final = _family(
    "python_gc_collections",
    _COUNTER,
    "",
    ("generation",),
    "Garbage collections.",
)
PAUSES: Final = _family(
    "sluicemq_gc_pause_seconds",
    Shape.HISTOGRAM,
    "seconds",
    (),
    "Pauses of the process by the garbage collector.",
)
SPANS: Final = _family(
    "sluicemq_tracing_spans",
    _COUNTER,
    "",
    ("result",),
    "Spans that were exported, rejected by the collector (failed), or dropped because it was too "
    "slow.",
)
SCRAPE: Final = _family(
    "sluicemq_scrape_duration_seconds",
    _GAUGE,
    "seconds",
    (),
    "Time to collect the metrics of this response.",
)
SERIES_LIMIT: Final = _family(
    "sluicemq_metrics_destinations_limit",
    _GAUGE,
    "",
    (),
    "Maximum number of destinations with time series of their own (metrics.max_destinations).",
)

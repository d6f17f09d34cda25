"""Every metric there is, with its unit and what it says: the one table of them. docs/metrics.md has
the same (a test compares), and so do the dashboard and the alert rules, which know no others."""

from __future__ import annotations

from typing import Final

from sluicemq.admin.metrics.exposition import Family, Shape

_COUNTER: Final = Shape.COUNTER
_GAUGE: Final = Shape.GAUGE

ALL: Final[list[Family]] = []
"""In the order in which they are exported."""


def _family(name: str, shape: Shape, unit: str, labels: tuple[str, ...], help: str) -> Family:
    family = Family(name, shape, unit, labels, help)
    ALL.append(family)
    return family


# --- the broker ----------------------------------------------------------------------------------

BUILD: Final = _family(
    "sluicemq_build",
    Shape.INFO,
    "",
    ("version", "python", "compiled"),
    "The program: its version, that of Python, and whether its hot modules are compiled.",
)
DESTINATIONS: Final = _family(
    "sluicemq_destinations", _GAUGE, "", ("kind", "temporary"), "Queues and topics that exist."
)
DESTINATIONS_LIMIT: Final = _family(
    "sluicemq_destinations_limit", _GAUGE, "", (), "How many may exist (broker.max_destinations)."
)
MESSAGE_MEMORY: Final = _family(
    "sluicemq_message_memory_bytes", _GAUGE, "bytes", (), "Messages held in memory."
)
MESSAGE_BUDGET: Final = _family(
    "sluicemq_message_memory_budget_bytes",
    _GAUGE,
    "bytes",
    (),
    "Beyond it, bodies of journaled messages are read back when needed (broker.memory_budget).",
)
MESSAGE_LIMIT: Final = _family(
    "sluicemq_message_memory_limit_bytes",
    _GAUGE,
    "bytes",
    (),
    "At it, messages that are not journaled are refused (broker.memory_limit).",
)
TURNS: Final = _family(
    "sluicemq_engine_turns", _COUNTER, "", (), "Turns that the engine has ended."
)
LOOP_LAG: Final = _family(
    "sluicemq_loop_lag_seconds",
    Shape.HISTOGRAM,
    "seconds",
    (),
    "How much later than asked for the event loop called back.",
)
TRANSACTIONS: Final = _family(
    "sluicemq_transactions", _GAUGE, "", ("state",), "Transactions, open and prepared."
)
OLDEST_PREPARED: Final = _family(
    "sluicemq_transactions_oldest_prepared_seconds",
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
    "published": _destination("published_messages", _COUNTER, "", "Messages accepted."),
    "delivered": _destination(
        "delivered_messages", _COUNTER, "", "Deliveries to consumers, those after the first too."
    ),
    "redelivered": _destination(
        "redelivered_messages", _COUNTER, "", "Deliveries of a message after its first."
    ),
    "settled": _destination("acknowledged_messages", _COUNTER, "", "Deliveries acknowledged."),
    "expired": _destination(
        "expired_messages", _COUNTER, "", "Messages whose time to live was over."
    ),
    "dropped": _destination(
        "dropped_messages",
        _COUNTER,
        "",
        "Messages given up, by a limit or after too many attempts, without a dead-letter queue.",
    ),
    "rejected": _destination(
        "rejected_messages", _COUNTER, "", "Messages refused to their producer by a limit."
    ),
    "dead_lettered": _destination(
        "dead_lettered_messages", _COUNTER, "", "Messages moved to a dead-letter queue."
    ),
    "bytes_in": _destination("received_bytes", _COUNTER, "bytes", "Bodies accepted."),
    "bytes_out": _destination("sent_bytes", _COUNTER, "bytes", "Bodies delivered."),
}
"""By the name that broker/stats.py has for it."""

WAITING: Final = _destination(
    "waiting_messages", _GAUGE, "", "Messages waiting; of a topic, in its longest subscription."
)
UNACKED: Final = _destination(
    "unacknowledged_messages", _GAUGE, "", "Deliveries not acknowledged yet."
)
DELAYED: Final = _destination(
    "delayed_messages", _GAUGE, "", "Of those waiting, messages whose time has not come."
)
BYTES: Final = _destination("bytes", _GAUGE, "bytes", "Bodies waiting and not acknowledged yet.")
CONSUMERS: Final = _destination("consumers", _GAUGE, "", "Consumers.")
SUBSCRIPTIONS: Final = _destination(
    "subscriptions", _GAUGE, "", "Subscriptions of a topic; 0 of a queue."
)
PAUSED: Final = _destination("paused", _GAUGE, "", "1 if nothing is delivered until it is resumed.")
PARKED: Final = _destination(
    "blocked_messages", _GAUGE, "", "Messages of producers that wait for room."
)
OLDEST: Final = _destination(
    "oldest_message_seconds",
    _GAUGE,
    "seconds",
    "Time since the message that is next was sent; 0 if none waits.",
)
LIMIT_MESSAGES: Final = _destination(
    "limit_messages", _GAUGE, "", "Messages that may wait (max_messages); 0 = no limit."
)
LIMIT_BYTES: Final = _destination(
    "limit_bytes", _GAUGE, "bytes", "Bodies that may wait (max_bytes); 0 = no limit."
)
DESTINATION_GAUGES: Final = (
    WAITING,
    UNACKED,
    DELAYED,
    BYTES,
    CONSUMERS,
    SUBSCRIPTIONS,
    PAUSED,
    PARKED,
    OLDEST,
    LIMIT_MESSAGES,
    LIMIT_BYTES,
)

_SUBSCRIPTION: Final = ("destination", "subscription")


def _subscription(name: str, unit: str, help: str) -> Family:
    return _family(f"sluicemq_subscription_{name}", _GAUGE, unit, _SUBSCRIPTION, help)


SUBSCRIPTION_GAUGES: Final = (
    _subscription("waiting_messages", "", "Messages waiting in a durable or shared subscription."),
    _subscription("unacknowledged_messages", "", "Its deliveries not acknowledged yet."),
    _subscription("bytes", "bytes", "Its bodies waiting and not acknowledged yet."),
    _subscription("consumers", "", "Its consumers."),
    _subscription(
        "oldest_message_seconds",
        "seconds",
        "Time since the message that it delivers next was sent; 0 if none waits.",
    ),
)

DEAD_LETTERS: Final = _family(
    "sluicemq_dead_letters", _GAUGE, "", (), "Messages waiting in all dead-letter queues."
)

# --- protocols, listeners, requests --------------------------------------------------------------

PROTOCOL_CONNECTIONS: Final = _family(
    "sluicemq_protocol_connections", _GAUGE, "", ("protocol",), "Connections."
)
PROTOCOL_IN: Final = _family(
    "sluicemq_protocol_published_messages",
    _COUNTER,
    "",
    ("protocol",),
    "Messages accepted from clients of a protocol.",
)
PROTOCOL_OUT: Final = _family(
    "sluicemq_protocol_delivered_messages",
    _COUNTER,
    "",
    ("protocol",),
    "Deliveries to consumers of a protocol.",
)

_LISTENER: Final = ("listener", "protocol")
LISTENER_CONNECTIONS: Final = _family(
    "sluicemq_listener_connections", _GAUGE, "", _LISTENER, "Connections of a listener."
)
LISTENER_LIMIT: Final = _family(
    "sluicemq_listener_connections_limit",
    _GAUGE,
    "",
    _LISTENER,
    "How many it may have (max_connections).",
)
LISTENER_ACCEPTED: Final = _family(
    "sluicemq_listener_accepted_connections", _COUNTER, "", _LISTENER, "Connections accepted."
)
LISTENER_REFUSED: Final = _family(
    "sluicemq_listener_refused_connections",
    _COUNTER,
    "",
    _LISTENER,
    "Connections refused because there were too many.",
)
LISTENER_IN: Final = _family(
    "sluicemq_listener_received_bytes", _COUNTER, "bytes", _LISTENER, "Bytes received by it."
)
LISTENER_OUT: Final = _family(
    "sluicemq_listener_sent_bytes", _COUNTER, "bytes", _LISTENER, "Bytes sent by it."
)
LISTENER_CLOSED: Final = _family(
    "sluicemq_listener_closed_connections",
    _COUNTER,
    "",
    (*_LISTENER, "reason"),
    "Connections closed because of a limit or a deadline, by its name.",
)
INPUT_BYTES: Final = _family(
    "sluicemq_input_buffered_bytes",
    _GAUGE,
    "bytes",
    (),
    "Unfinished input of all connections.",
)
INPUT_LIMIT: Final = _family(
    "sluicemq_input_limit_bytes",
    _GAUGE,
    "bytes",
    (),
    "Beyond it one connection with unfinished input is read at a time (broker.input_memory_limit).",
)
INPUT_SUSPENDED: Final = _family(
    "sluicemq_input_suspended_connections",
    _GAUGE,
    "",
    (),
    "Connections that are not read until there is room for their input.",
)

REQUESTS: Final = _family(
    "sluicemq_http_requests",
    _COUNTER,
    "",
    ("method", "route", "status"),
    "Requests answered by the HTTP API, by what the path stands for.",
)
REQUEST_TIME: Final = _family(
    "sluicemq_http_request_seconds",
    Shape.SUMMARY,
    "seconds",
    ("method", "route"),
    "Time to answer them; streams count until they end.",
)
AUDIT: Final = _family(
    "sluicemq_audit_events", _COUNTER, "", ("event",), "Lines of the audit log, by what they tell."
)

# --- the journal ---------------------------------------------------------------------------------

JOURNAL_SEGMENTS: Final = _family("sluicemq_journal_segments", _GAUGE, "", (), "Segment files.")
JOURNAL_BYTES: Final = _family(
    "sluicemq_journal_size_bytes", _GAUGE, "bytes", (), "All segments together."
)
JOURNAL_LIVE: Final = _family(
    "sluicemq_journal_live_records", _GAUGE, "", (), "Records that wait for their end."
)
JOURNAL_DURABLE: Final = _family(
    "sluicemq_journal_durable_sequence",
    _GAUGE,
    "",
    (),
    "Sequence number up to which everything is on disk.",
)
JOURNAL_GROUPS: Final = _family(
    "sluicemq_journal_groups", _COUNTER, "", (), "Groups of records written together."
)
JOURNAL_RECORDS: Final = _family(
    "sluicemq_journal_written_records", _COUNTER, "", (), "Records in those groups."
)
JOURNAL_WRITTEN: Final = _family(
    "sluicemq_journal_written_bytes", _COUNTER, "bytes", (), "Bytes of those groups."
)
JOURNAL_SYNC: Final = _family(
    "sluicemq_journal_fdatasync_seconds",
    Shape.HISTOGRAM,
    "seconds",
    (),
    "Time that fdatasync took.",
)
DISK_FREE: Final = _family(
    "sluicemq_journal_disk_free_bytes",
    _GAUGE,
    "bytes",
    (),
    "Room left to this user on the file system that has the journal.",
)
DISK_SIZE: Final = _family(
    "sluicemq_journal_disk_size_bytes", _GAUGE, "bytes", (), "Size of that file system."
)
DISK_LEVEL: Final = _family(
    "sluicemq_journal_space_level",
    _GAUGE,
    "",
    (),
    "0: enough free space; 1: low, persistent messages are refused; 2: used up, nothing is "
    "delivered.",
)
DISK_THRESHOLD: Final = _family(
    "sluicemq_journal_low_space_bytes",
    _GAUGE,
    "bytes",
    (),
    "Free space below which persistent messages are refused.",
)
DISK_RESERVE: Final = _family(
    "sluicemq_journal_reserve_bytes",
    _GAUGE,
    "bytes",
    (),
    "What is left of the reserve for acknowledgements on a full disk (journal.reserve_bytes).",
)
SLOT_POSITION: Final = _family(
    "sluicemq_journal_slot_position_sequence",
    _GAUGE,
    "",
    ("slot",),
    "Sequence number up to which a reader has done everything.",
)
SLOT_LAG: Final = _family(
    "sluicemq_journal_slot_lag_records",
    _GAUGE,
    "",
    ("slot",),
    "Sequence numbers between that and the durable end.",
)
SLOT_BYTES: Final = _family(
    "sluicemq_journal_slot_lag_bytes",
    _GAUGE,
    "bytes",
    ("slot",),
    "Segments that have something it has not done.",
)
SLOT_LIMIT: Final = _family(
    "sluicemq_journal_slot_limit_bytes",
    _GAUGE,
    "bytes",
    ("slot",),
    "What may be kept for it alone, before it is lost.",
)
SLOT_IDLE: Final = _family(
    "sluicemq_journal_slot_idle_seconds",
    _GAUGE,
    "seconds",
    ("slot",),
    "How long it has held segments back without a word from its reader.",
)
SLOT_IDLE_LIMIT: Final = _family(
    "sluicemq_journal_slot_idle_limit_seconds",
    _GAUGE,
    "seconds",
    ("slot",),
    "After which it is lost (journal.slot_idle_timeout); absent if there is no limit.",
)
SLOT_LOST: Final = _family(
    "sluicemq_journal_slot_lost", _GAUGE, "", ("slot",), "1 if segments it needed are gone."
)

# --- the process ---------------------------------------------------------------------------------

CPU: Final = _family(
    "process_cpu_seconds", _COUNTER, "seconds", (), "Processor time, user and system."
)
RESIDENT: Final = _family(
    "process_resident_memory_bytes", _GAUGE, "bytes", (), "Memory of the process that is in RAM."
)
STARTED: Final = _family(
    "process_start_time_seconds", _GAUGE, "seconds", (), "When it started, since the epoch."
)
FILES: Final = _family("process_open_fds", _GAUGE, "", (), "Open files and sockets.")
FILES_LIMIT: Final = _family("process_max_fds", _GAUGE, "", (), "How many it may have.")
THREADS: Final = _family("process_threads", _GAUGE, "", (), "Threads.")
COLLECTIONS: Final = _family(
    "python_gc_collections",
    _COUNTER,
    "",
    ("generation",),
    "Runs of the garbage collector.",
)
PAUSES: Final = _family(
    "sluicemq_gc_pause_seconds",
    Shape.HISTOGRAM,
    "seconds",
    (),
    "How long those runs stopped the program.",
)
SPANS: Final = _family(
    "sluicemq_tracing_spans",
    _COUNTER,
    "",
    ("result",),
    "Spans exported, refused by the collector (failed), or dropped because it was too slow.",
)
SCRAPE: Final = _family(
    "sluicemq_scrape_seconds",
    _GAUGE,
    "seconds",
    (),
    "Time from the request to the last figure of this answer.",
)
SERIES_LIMIT: Final = _family(
    "sluicemq_metrics_destinations_limit",
    _GAUGE,
    "",
    (),
    "Destinations with figures of their own (metrics.max_destinations).",
)

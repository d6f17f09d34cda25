"""A vibemq.db with the tables, columns and values that VibeMQ 1.8.0 writes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE queues (
    name            TEXT PRIMARY KEY,
    options_json    TEXT NOT NULL,
    created_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE TABLE messages (
    id                  TEXT PRIMARY KEY,
    queue_name          TEXT NOT NULL,
    payload_json        TEXT,
    timestamp           TEXT NOT NULL,
    headers_json        TEXT,
    version             INTEGER NOT NULL DEFAULT 1,
    priority            INTEGER NOT NULL DEFAULT 1,
    delivery_attempts   INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (queue_name) REFERENCES queues(name) ON DELETE CASCADE
);
CREATE INDEX ix_messages_queue_timestamp ON messages(queue_name, timestamp);
CREATE INDEX ix_messages_queue_priority  ON messages(queue_name, priority DESC, timestamp);
CREATE TABLE dead_letters (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id      TEXT NOT NULL,
    message_json    TEXT NOT NULL,
    reason          INTEGER NOT NULL,
    failed_at       TEXT NOT NULL
);
CREATE INDEX ix_dead_letters_failed_at ON dead_letters(failed_at);
"""
OPTIONS = {
    "mode": 0,
    "maxQueueSize": 500,
    "messageTtl": None,
    "enableDeadLetterQueue": True,
    "deadLetterQueueName": None,
    "overflowStrategy": 1,
    "maxRetryAttempts": 5,
}


class Store:
    """The file. `path` must not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(SCHEMA)

    def execute(self, sql: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(sql, values)

    def queue(self, name: str, **options: Any) -> None:
        text = json.dumps({**OPTIONS, **options}, separators=(",", ":"))
        created = "2026-02-18T10:00:00.1234567Z"
        self.execute("INSERT INTO queues VALUES (?, ?, ?)", name, text, created)

    def message(
        self,
        identity: str,
        queue: str,
        payload: str | None,
        timestamp: str = "2026-02-18T10:30:00.1234567Z",
        headers: dict[str, Any] | None = None,
        priority: int = 1,
        attempts: int = 0,
    ) -> None:
        text = json.dumps(headers, separators=(",", ":")) if headers else None
        values = (identity, queue, payload, timestamp, text, 1, priority, attempts)
        self.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values)

    def messages(self, queue: str, count: int) -> None:
        """Messages 0 to count - 1, one a 100 ns; ids and payloads are their numbers."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany(
                "INSERT INTO messages VALUES (?, ?, ?, ?, NULL, 1, 1, 0)",
                [
                    (f"{queue}-{n}", queue, str(n), f"2026-02-18T10:30:00.{n:07}Z")
                    for n in range(count)
                ],
            )

    def dead(self, message: dict[str, Any], reason: int) -> None:
        failed = "2026-02-19T00:00:00Z"
        self.execute(
            "INSERT INTO dead_letters (message_id, message_json, reason, failed_at)"
            " VALUES (?, ?, ?, ?)",
            *(message["id"], json.dumps(message, separators=(",", ":")), reason, failed),
        )

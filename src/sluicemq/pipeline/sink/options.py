"""Options of a write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sluicemq.clients.http import PATIENCE, HttpTarget, target
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.catalog import NOT_HANDED_ON, own_options

DEAD_LETTERS: Final = "sluicemq.sink.dlq"
"""Default dead-letter queue (option deadLetterQueue)."""
PART_BYTES: Final = 16 * 1024 * 1024
PART_ROWS: Final = 16_384

_KNOWN: Final = {
    name.lower(): name
    for name in (
        "url",
        "user",
        "password",
        "token",
        "destination",
        "badRows",
        "deadLetterQueue",
        "transactionBytes",
        "transactionRows",
        "writeId",
        "batchId",
        "retryTimeout",
    )
}
WRITE_ONLY: Final = frozenset(_KNOWN) - {"url", "user", "password", "token"}
"""Options, in lower case, that identify a table or view as one for writing."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark adds; a path is that of `save(path)`."""
_NUMBER: Final = re.compile(r"[1-9]\d{0,9}\Z|0\Z", re.ASCII)
_WRITE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")


class BadRows(StrEnum):
    """Handling of rows that are not valid messages.

    FAIL         the write fails at the first bad row
    DROP         bad rows are dropped and counted
    DEAD_LETTER  bad rows go to the dead-letter queue with the reason, in the same transaction
    """

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


class SinkOptions(NamedTuple):
    """Options of a write, created on the driver and sent to the tasks.

    destination  destination of rows that have none, "" = required in each row; topic: it is a topic
    part_bytes   approximate size of a transaction in bytes
    part_rows    maximum number of rows of a transaction
    write_id     identity of a repeatable write; "" = none
    batch        index of the write within `write_id`
    patience     seconds for which a part is retried while the broker is unavailable or full
    """

    target: HttpTarget
    destination: str = ""
    topic: bool = False
    bad_rows: BadRows = BadRows.FAIL
    dead_letters: str = DEAD_LETTERS
    part_bytes: int = PART_BYTES
    part_rows: int = PART_ROWS
    write_id: str = ""
    batch: int = 0
    patience: float = PATIENCE


def read(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes; case is ignored. Raises ConfigurationError."""
    options_by_name = own_options(options, _KNOWN)
    unknown = sorted(set(options_by_name) - set(_KNOWN) - _SPARKS_OWN)
    if unknown:
        raise ConfigurationError(
            f"a write to sluicemq has no option {', '.join(unknown)}; "
            f"there are {', '.join(_KNOWN.values())}"
        )
    if "path" in options_by_name:
        raise ConfigurationError(
            "messages are written to a running broker: set the option url, and call save() "
            "without a path"
        )
    if "url" not in options_by_name:
        raise ConfigurationError(
            "the option url names the HTTP listener of a broker, such as http://localhost:7680. "
            + NOT_HANDED_ON
        )
    destination = options_by_name.get("destination", "")
    topic = destination.startswith("topic:")
    try:
        bad_rows = BadRows(options_by_name.get("badrows", BadRows.FAIL).lower())
    except ValueError:
        raise ConfigurationError(
            f"badRows is {', '.join(BadRows)}, not {options_by_name['badrows']!r}"
        ) from None
    if not options_by_name.get("deadletterqueue", DEAD_LETTERS):
        raise ConfigurationError("deadLetterQueue names a queue")
    write_id = options_by_name.get("writeid", "")
    if "writeid" in options_by_name and not _WRITE_ID.match(write_id):
        raise ConfigurationError("writeId has 1 to 128 characters of ASCII, and no blanks")
    if "batchid" in options_by_name and not write_id:
        raise ConfigurationError("batchId counts the writes of one writeId: set writeId, too")
    return SinkOptions(
        target(options_by_name),
        destination.removeprefix("topic:") if topic else destination,
        topic,
        bad_rows,
        options_by_name.get("deadletterqueue", DEAD_LETTERS),
        _number(options_by_name, "transactionBytes", PART_BYTES, 1),
        _number(options_by_name, "transactionRows", PART_ROWS, 1),
        write_id,
        _number(options_by_name, "batchId", 0, 0),
        _number(options_by_name, "retryTimeout", int(PATIENCE), 0),
    )


def _number(options_by_name: Mapping[str, str], name: str, usual: int, least: int) -> int:
    text = options_by_name.get(name.lower())
    if text is None:
        return usual
    if not _NUMBER.match(text) or int(text) < least:
        raise ConfigurationError(f"{name} is a whole number from {least} on, not {text!r}")
    return int(text)

"""The options of a write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.catalog import NOT_HANDED_ON, own_options
from sluicemq.pipeline.http_client import PATIENCE, HttpTarget, target

DEAD_LETTERS: Final = "sluicemq.sink.dlq"
"""Where dead letters go unless the option deadLetterQueue says otherwise."""
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
"""Options, in lower case, by which a table or view is one to write to."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""What Spark hands on beside our options; a path would be that of `save(path)`."""
_NUMBER: Final = re.compile(r"[1-9]\d{0,9}\Z|0\Z", re.ASCII)
_WRITE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")


class BadRows(StrEnum):
    """What becomes of rows that are no messages.

    FAIL         the write fails at the first
    DROP         they are left out, and counted
    DEAD_LETTER  they go to the dead-letter queue with the reason, in the same transaction
    """

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


class SinkOptions(NamedTuple):
    """How to write; made on the driver, sent to the tasks.

    destination  for rows that name none, "" = they have to; topic: that is a topic
    part_bytes   a partition is written in transactions of about so many bytes ...
    part_rows    ... and at most so many rows
    write_id     "" = none was chosen
    batch        counts the writes of one `write_id`
    patience     seconds for which a part is sent again while the broker is away or full
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
    """The options as Spark hands them over: names in any case. Raises ConfigurationError."""
    given = own_options(options, _KNOWN)
    unknown = sorted(set(given) - set(_KNOWN) - _SPARKS_OWN)
    if unknown:
        raise ConfigurationError(
            f"a write to sluicemq has no option {', '.join(unknown)}; "
            f"there are {', '.join(_KNOWN.values())}"
        )
    if "path" in given:
        raise ConfigurationError(
            "messages are written to a running broker: name it by the option url, and call save() "
            "without a path"
        )
    if "url" not in given:
        raise ConfigurationError(
            "the option url names the HTTP listener of a broker, such as http://localhost:7680. "
            + NOT_HANDED_ON
        )
    destination = given.get("destination", "")
    topic = destination.startswith("topic:")
    try:
        bad_rows = BadRows(given.get("badrows", BadRows.FAIL).lower())
    except ValueError:
        raise ConfigurationError(
            f"badRows is {', '.join(BadRows)}, not {given['badrows']!r}"
        ) from None
    if not given.get("deadletterqueue", DEAD_LETTERS):
        raise ConfigurationError("deadLetterQueue names a queue")
    write_id = given.get("writeid", "")
    if "writeid" in given and not _WRITE_ID.match(write_id):
        raise ConfigurationError("writeId has 1 to 128 characters of ASCII, and no blanks")
    if "batchid" in given and not write_id:
        raise ConfigurationError("batchId counts the writes of one writeId: name that, too")
    return SinkOptions(
        target(given),
        destination.removeprefix("topic:") if topic else destination,
        topic,
        bad_rows,
        given.get("deadletterqueue", DEAD_LETTERS),
        _number(given, "transactionBytes", PART_BYTES, 1),
        _number(given, "transactionRows", PART_ROWS, 1),
        write_id,
        _number(given, "batchId", 0, 0),
        _number(given, "retryTimeout", int(PATIENCE), 0),
    )


def _number(given: Mapping[str, str], name: str, usual: int, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return usual
    if not _NUMBER.match(text) or int(text) < least:
        raise ConfigurationError(f"{name} is a whole number from {least} on, not {text!r}")
    return int(text)

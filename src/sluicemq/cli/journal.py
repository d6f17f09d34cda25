"""`sluicemq journal …`: check, dump and compact a journal, manage retention slots.

DIR is a data directory or the journal in it; the default is the configured data directory.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from sluicemq.broker import Broker, describe, recover, snapshot
from sluicemq.cli.console import (
    Column,
    Exit,
    JsonFlag,
    complain,
    err,
    moment,
    out,
    print_json,
    printable,
    quantity,
    show,
    size,
    table,
)
from sluicemq.cli.serve import load_flags
from sluicemq.journal import FileJournal
from sluicemq.journal.format import Cause, RecordType, decode_depth, decode_redelivered
from sluicemq.journal.inspect import Entry, InspectionReport
from sluicemq.journal.inspect import check as check_journal
from sluicemq.journal.inspect import dump as dump_journal
from sluicemq.journal.log import compact as compact_journal
from sluicemq.journal.segment import read_identity
from sluicemq.journal.slots import DEFAULT_SLOT_LIMIT, Slot, Slots
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError, JournalError
from sluicemq.server.clock import SystemClock
from sluicemq.server.settings import unknown
from sluicemq.server.units import Unit

JOURNAL_DIRECTORY: Final = "journal"
"""Name of the journal directory within the data directory."""
BODY_PREVIEW: Final = 60
"""Maximum number of characters of a body in a line of `dump`."""

app = typer.Typer(
    help="Check, dump and compact the journal, manage retention slots.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DirectoryArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[DIR]", help="Data directory; default: the configured one."),
]


@app.command()
def check(directory: DirectoryArgument = None, as_json: JsonFlag = False) -> None:
    """Verify every record, checksum and index. Changes nothing; may run while a broker is running.

    Exits with code 1 if anything is damaged.
    """
    place = locate(directory)
    with err().status(f"checking {escape(str(place))}"):
        report = check_journal(place)
    if as_json:
        print_json(report)
    else:
        _print_report(report, place, out())
    if report.problems:
        raise typer.Exit(Exit.REFUSED)


@app.command()
def dump(
    directory: DirectoryArgument = None,
    since: Annotated[int, typer.Option("--from", min=0, help="First sequence number.")] = 0,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only records of this type; repeatable.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only records of this queue.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only records of this topic.")
    ] = None,
    message: Annotated[
        int, typer.Option("--message", min=0, help="Only records of this message.")
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Maximum number of records; 0 = all.")
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print the records, one per line (--json: one object per line, with bodies)."""
    if queue is not None and topic is not None:
        raise ConfigurationError("give either --queue or --topic")
    address = None
    if queue is not None or topic is not None:
        kind = Kind.QUEUE if queue is not None else Kind.TOPIC
        address = Address(kind, queue if queue is not None else topic or "")
    entries = dump_journal(
        locate(directory),
        sequence=since,
        types=[_record_type(name) for name in types or ()],
        address=address,
        reference=message,
    )
    for entry in islice(entries, limit or None):
        if as_json:
            print_json(describe_entry(entry))
        else:
            print(_line(entry))


@app.command()
def compact(directory: DirectoryArgument = None, as_json: JsonFlag = False) -> None:
    """Reclaim space that no live record needs. The broker must be stopped."""
    place = locate(directory)
    with err().status(f"compacting {escape(str(place))}"):
        before, after = compact_journal(place, load_flags(None, None).config.journal, _adopt)
    if as_json:
        print_json({"before": before, "after": after})
    else:
        print(f"{size(before.bytes)} before, {size(after.bytes)} now")
        if after.bytes >= before.bytes:
            err().print("No space could be reclaimed: all records are live or retained by a slot.")


def _adopt(journal: FileJournal) -> None:
    """Replay the journal as a broker would, so that a snapshot of its present state can be
    taken."""
    broker = Broker(journal, SystemClock())
    recover(broker, journal.recovery)
    journal.snapshot_source = partial(snapshot, broker)


@app.command()
def slots(
    directory: DirectoryArgument = None,
    create: Annotated[
        str | None, typer.Option("--create", metavar="NAME", help="Create a slot.")
    ] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="NAME", help="Remove a slot.")
    ] = None,
    position: Annotated[
        int, typer.Option("--position", min=0, help="With --create: the last sequence number read.")
    ] = 0,
    limit: Annotated[
        str | None,
        typer.Option("--limit", help="With --create: maximum journal retained, such as 5GiB."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the retention slots, whose positions retain segments for their readers; or change
    them."""
    kept = Slots(locate(directory))
    if create is not None and delete is not None:
        raise ConfigurationError("give either --create or --delete")
    if create is None and (position or limit is not None):
        raise ConfigurationError("--position and --limit go with --create")
    if create is not None:
        kept.create(
            create,
            position,
            int(quantity("--limit", limit, Unit.BYTES)) if limit else DEFAULT_SLOT_LIMIT,
        )
    elif delete is not None:
        kept.drop(delete)
    found = kept.list()
    if as_json:
        print_json(found)
    elif found:
        show(table(_SLOTS, found.items()))
    else:
        err().print("There are no slots.")


_SLOTS: Final[tuple[Column[tuple[str, Slot]], ...]] = (
    Column("Slot", lambda item: item[0]),
    Column("Position", lambda item: str(item[1].position), right=True),
    Column("Limit", lambda item: size(item[1].limit_bytes), right=True),
    Column("Created", lambda item: moment(item[1].created), whole=True),
    Column("State", lambda item: "lost" if item[1].lost else "held", whole=True),
)


def locate(directory: Path | None) -> Path:
    """Return the journal's directory. Raises JournalError if there is none, JournalDamaged."""
    place = load_flags(None, None).config.broker.data_dir if directory is None else directory
    if not place.is_dir():
        raise JournalError(f"there is no directory {place}; name the broker's data directory")
    inner = place / JOURNAL_DIRECTORY
    place = inner if inner.is_dir() else place
    # checked here, because the functions below would create a missing journal
    if read_identity(place) is None:
        raise JournalError(f"there is no journal in {place}; name the broker's data directory")
    return place


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return a record as JSON-able data; empty fields are omitted."""
    record = entry.record
    document: dict[str, Any] = {
        "sequence": record.sequence,
        "type": RecordType(record.type).name.lower(),
        "time": datetime.fromtimestamp(record.time / 1e6, UTC).isoformat(),
        "file": entry.file.name,
        "offset": entry.offset,
    }
    if entry.address is not None:
        document["destination"] = _text(str(entry.address))
    if record.reference:
        document["reference"] = record.reference
    document.update(_details(entry))
    return document


def _details(entry: Entry) -> Iterator[tuple[str, Any]]:
    record, message = entry.record, entry.message
    if record.type == RecordType.COMPLETED:
        yield "outcome", Cause(record.kind).label
        yield "subscription", record.subscription
        yield "sequences", record.sequences
    elif record.type == RecordType.DELIVERED:
        yield "subscription", record.subscription
        yield "sequences", record.sequences
    elif record.type == RecordType.REDELIVERED:
        subscription, sequences, attempts = decode_redelivered(record.body)
        yield "subscription", subscription
        yield "sequences", sequences
        yield "attempts", attempts
    elif record.type == RecordType.DEPTH:
        ready, unacked, consumers = decode_depth(record.body)
        yield "ready", ready
        yield "unacked", unacked
        yield "consumers", consumers
    elif fields := describe(record.type, record.body):
        for name, value in fields.items():
            yield name, _plain(value)
    elif message is not None:
        yield "protocol", message.origin.name.lower()
        yield "body_kind", message.kind.name.lower()
        yield "durability", message.durability.name.lower()
        yield "priority", message.priority
        for name in ("expiration", "deliver_at", "message_id", "correlation_id", "type"):
            if value := getattr(message, name):
                yield f"message_{name}" if name == "type" else name, _plain(value)
        if message.reply_to is not None:
            yield "reply_to", _text(str(message.reply_to))
        if message.properties:
            yield "properties", {_text(k): _plain(v) for k, v in message.properties.items()}
        try:
            yield "body", message.body.decode()
        except UnicodeDecodeError:
            yield "body_base64", base64.b64encode(message.body).decode()


def _line(entry: Entry) -> str:
    record, message = entry.record, entry.message
    time = (
        datetime.fromtimestamp(record.time / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    )
    parts = [f"{record.sequence:>10}", time, f"{RecordType(record.type).name.lower():<20}"]
    if entry.address is not None:
        parts.append(printable(str(entry.address)))
    if record.lists_messages:
        cause = [Cause(record.kind).label] if record.type == RecordType.COMPLETED else []
        numbers = ", ".join(map(str, record.sequences[:8]))
        more = f" and {len(record.sequences) - 8} more" if len(record.sequences) > 8 else ""
        parts.append(" ".join([*cause, f"{numbers}{more}"]))
    elif record.type == RecordType.DEPTH:
        ready, unacked, consumers = decode_depth(record.body)
        parts.append(f"{ready} ready, {unacked} unacked, {consumers} consumers")
    elif record.type == RecordType.CLOCK_STEP:
        parts.append("wall clock set by {step_ms} ms".format(**describe(record.type, record.body)))
    elif record.type == RecordType.BATCH_PART:
        part = describe(record.type, record.body)
        final = ", final" if part["final"] else ""
        parts.append(
            f"{printable(part['writer'])}, batch {part['batch']}, partition {part['partition']}, "
            f"part {part['part']}{final}: {part['rows']} rows"
        )
    elif record.reference:
        parts.append(f"about {record.reference}")
    if message is not None:
        body = (
            message.body[: 4 * BODY_PREVIEW]
            .decode("utf-8", "backslashreplace")
            .replace("\n", "\\n")
        )
        text = printable(body)
        parts.append(
            f"{len(message.body)} bytes: {text[:BODY_PREVIEW]}{'…' * (len(text) > BODY_PREVIEW)}"
        )
    return "  ".join(parts)


def _print_report(report: InspectionReport, place: Path, console: Console) -> None:
    console.print(
        f"{place}: {report.segments} segments, {size(report.bytes)}, {report.records} records, "
        f"{report.live} live",
        markup=False,
    )
    for name, count in sorted(report.types.items()):
        console.print(f"  {name.lower():<18}{count:>12}", markup=False)
    if report.unsealed:
        console.print(f"  {size(report.unsealed)} behind the durable end", markup=False)
    for problem in report.problems:
        complain(str(problem))
    if not report.problems:
        console.print("No damage.")


def _record_type(name: str) -> RecordType:
    words = [each.name.lower() for each in RecordType]
    if name.lower() not in words:
        raise unknown("--type", name, words)
    return RecordType[name.upper()]


def _plain(value: Any) -> Any:
    """Return a property as a JSON value."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()

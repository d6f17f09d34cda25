"""`sluicemq journal …`: check, dump and compact a journal, manage retention slots. DIR is a data
directory or the journal in it; the default is the configured data directory.

`sluicemq backup …` and `sluicemq restore`: create, verify, list and restore backups.
"""

from __future__ import annotations

import base64
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from sluicemq.broker import Broker, EngineSettings, describe, recover, snapshot
from sluicemq.cli.api import Api, CommandResult, action_command, list_result, print_result
from sluicemq.cli.console import (
    Column,
    JsonFlag,
    body_fields,
    choice_of,
    err,
    escape_bytes,
    moment,
    naming_file,
    number,
    print_json,
    printable,
    quantity,
    size,
)
from sluicemq.cli.location import BrokerLocation, load_flags
from sluicemq.journal import FileJournal, inspect, log, stored_backup
from sluicemq.journal.backup import create as create_backup
from sluicemq.journal.files import JOURNAL_NAME, journal_directory
from sluicemq.journal.format import Cause, RecordType, decode_deliveries, decode_depth
from sluicemq.journal.segment import read_identity
from sluicemq.journal.slots import Slot, Slots, now_ms
from sluicemq.management.journal import (
    CREATE_BACKUP,
    LIST_BACKUPS,
    BackupRequest,
    BackupView,
)
from sluicemq.management.operation import Body, PageQuery
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import ConfigurationError, ConnectionLost, JournalError, RequestRefused
from sluicemq.security.records import USERS_NAME
from sluicemq.server.clock import SystemClock
from sluicemq.server.configuration_reference import CONFIGURATION_NAME, EffectiveConfiguration
from sluicemq.server.settings import Unit

BODY_PREVIEW: Final = 60
"""Maximum number of characters of a body in a line of `dump`."""
MAX_NUMBERS: Final = 8
"""Maximum number of elements of a list in such a line."""
_RECORD_TYPES: Final = {record_type.name.lower(): record_type for record_type in RecordType}

app = typer.Typer(
    help="Check, dump and compact the journal, manage retention slots.",
    no_args_is_help=True,
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
    journal_dir = locate(directory)
    with err().status(f"checking {escape(str(journal_dir))}"):
        report = inspect.check(journal_dir)
    errors = [str(problem) for problem in report.problems]
    output = _report_text(report, journal_dir)
    print_result(CommandResult(report, output=output, errors=errors), as_json)


@app.command()
def dump(
    directory: DirectoryArgument = None,
    since: Annotated[int, typer.Option("--from", min=0, help="First sequence number.")] = 0,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            parser=choice_of("--type", "type", _RECORD_TYPES),
            help="Only records of this type; repeatable.",
        ),
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
        int,
        typer.Option(
            "--limit", "-n", min=0, max=sys.maxsize, help="Maximum number of records; 0 = all."
        ),
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print the records, one per line (--json: one object per line, with bodies)."""
    names = ((Kind.QUEUE, queue), (Kind.TOPIC, topic))
    addresses = [Address(kind, name) for kind, name in names if name is not None]
    if len(addresses) > 1:
        raise ConfigurationError("give either --queue or --topic")
    entries = inspect.dump(
        locate(directory),
        sequence=since,
        types=[_RECORD_TYPES[name] for name in types or ()],
        address=next(iter(addresses), None),
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
    journal_dir = locate(directory)
    with err().status(f"compacting {escape(str(journal_dir))}"):
        before, after = log.compact(journal_dir, load_flags(None, None).config.journal, _replay)
    hint = "No space could be reclaimed: all records are live or retained by a slot."
    result = CommandResult(
        {"before": before, "after": after},
        hint if after.bytes >= before.bytes else "",
        output=f"{size(before.bytes)} before, {size(after.bytes)} now",
    )
    print_result(result, as_json)


def _replay(journal: FileJournal) -> None:
    """Replay the journal as a broker would, so that a snapshot of its present state can be
    taken. The broker's own configuration may not be known here, so nothing may be forgotten for a
    default: unused destinations that it never deletes, and batch writers."""
    settings = EngineSettings(
        default_destination=DestinationSettings(idle_timeout=0), max_batch_writers=sys.maxsize
    )
    broker = Broker(journal, SystemClock(), settings)
    recover(broker, journal.recovery)
    journal.set_snapshot_source(partial(snapshot, broker))


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
        typer.Option(
            "--limit",
            help="With --create: maximum journal retained, such as 5GiB; default: "
            "journal.slot_limit_bytes of the broker.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the retention slots, whose positions retain segments for their readers; or change
    them."""
    store = Slots(locate(directory), limit_bytes=0)  # the broker applies its setting
    if create is not None and delete is not None:
        raise ConfigurationError("give either --create or --delete")
    if create is None and (position or limit is not None):
        raise ConfigurationError("--position and --limit require --create")
    if create is not None:
        limit_bytes = None if limit is None else int(quantity("--limit", limit, Unit.BYTES))
        store.create(create, position, limit_bytes)
    elif delete is not None:
        store.delete(delete)
    slots_by_name = store.list()
    result = list_result(slots_by_name.items(), _SLOTS, "There are no slots.")
    print_result(result._replace(document=slots_by_name), as_json)


_SLOTS: Final[tuple[Column[tuple[str, Slot]], ...]] = (
    Column("Slot", lambda item: item[0]),
    Column("Position", lambda item: str(item[1].position), align_right=True),
    Column(
        "Limit",
        lambda item: size(item[1].limit_bytes) if item[1].limit_bytes else "default",
        align_right=True,
    ),
    Column("Created", lambda item: moment(item[1].created), no_fold=True),
    Column("State", lambda item: _slot_state(item[1]), no_fold=True),
)


def _slot_state(slot: Slot) -> str:
    return "expired" if slot.is_expired(now_ms()) else "lost" if slot.lost else "held"


def locate(directory: Path | None) -> Path:
    """Return the journal's directory. Raises JournalError if there is none, JournalDamaged."""
    journal_dir = load_flags(None, None).config.broker.data_dir if directory is None else directory
    if not journal_dir.is_dir():
        raise JournalError(f"there is no directory {journal_dir}; name the broker's data directory")
    journal_dir = journal_directory(journal_dir)
    # checked here, because the functions below would create a missing journal
    if read_identity(journal_dir) is None:
        raise JournalError(
            f"there is no journal in {journal_dir}; name the broker's data directory"
        )
    return journal_dir


def describe_entry(entry: inspect.Entry) -> dict[str, Any]:
    """Return a record as JSON-able data; empty fields are omitted."""
    record = entry.record
    address = {} if entry.address is None else {"destination": escape_bytes(str(entry.address))}
    return {
        "sequence": record.sequence,
        "type": RecordType(record.type).name.lower(),
        "time": datetime.fromtimestamp(record.time / 1e6, UTC).isoformat(),
        "file": entry.file.name,
        "offset": entry.offset,
        **address,
        **dict(_details(entry)),
    }


def _details(entry: inspect.Entry) -> Iterator[tuple[str, Any]]:
    record, message = entry.record, entry.message
    if record.reference:
        yield "reference", record.reference
    match record.type:
        case RecordType.COMPLETED:
            yield "outcome", Cause(record.kind).label
            yield "subscription", record.subscription
            yield "sequences", record.sequences
        case RecordType.DELIVERED:
            yield "subscription", record.subscription
            yield "sequences", record.sequences
        case RecordType.REDELIVERED:
            names = ("subscription", "sequences", "attempts")
            yield from zip(names, decode_deliveries(record.body), strict=True)
        case RecordType.DEPTH:
            names = ("ready", "unacked", "consumers")
            yield from zip(names, decode_depth(record.body), strict=True)
        case _ if fields := describe(record.type, record.body):
            for name, value in fields.items():
                yield name, _plain(value)
        case _ if message is not None:
            yield "protocol", message.origin.name.lower()
            yield "body_kind", message.kind.name.lower()
            yield "durability", message.durability.name.lower()
            yield "priority", message.priority
            for name in ("expiration", "deliver_at", "message_id", "correlation_id", "type"):
                if value := getattr(message, name):
                    yield f"message_{name}" if name == "type" else name, _plain(value)
            if message.reply_to is not None:
                yield "reply_to", escape_bytes(str(message.reply_to))
            if message.properties:
                yield (
                    "properties",
                    {escape_bytes(k): _plain(v) for k, v in message.properties.items()},
                )
            yield from body_fields(message.body).items()


def _line(entry: inspect.Entry) -> str:
    record, message = entry.record, entry.message
    time = (
        datetime.fromtimestamp(record.time / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    )
    parts = [f"{record.sequence:>10}", time, f"{RecordType(record.type).name.lower():<20}"]
    if entry.address is not None:
        parts.append(printable(str(entry.address)))
    if message is None:
        parts += [f"{name} {_value_text(value)}" for name, value in _details(entry)]
    else:
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


def _value_text(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return printable(str(value))
    suffix = f" and {len(value) - MAX_NUMBERS} more" if len(value) > MAX_NUMBERS else ""
    return ", ".join(map(str, value[:MAX_NUMBERS])) + suffix


def _report_text(report: inspect.InspectionReport, journal_dir: Path) -> str:
    lines = [
        f"{journal_dir}: {report.segments} segments, {size(report.bytes)}, "
        f"{report.records} records, {report.live} live",
        *(f"  {name.lower():<18}{count:>12}" for name, count in sorted(report.types.items())),
    ]
    if report.unsealed:
        lines.append(
            f"  {size(report.unsealed)} after the durable end: being written, or left by a crash"
        )
    if report.preallocated:
        lines.append(f"  {size(report.preallocated)} preallocated for further records")
    if not report.problems:
        lines.append("No damage.")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Return a property as a JSON value."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return escape_bytes(value) if isinstance(value, str) else value


# --- `sluicemq backup …` and `sluicemq restore` ---------------------------------------------------
#
# Without --url the commands read the files of a data directory, also while its broker runs. With
# --url the broker creates the backup itself in its configured backup directory.

backup = typer.Typer(
    help="Back up a running or stopped broker; list and verify backups.",
    no_args_is_help=True,
)

BACKUP_COLUMNS: Final[tuple[Column[BackupView], ...]] = (
    Column("Backup", lambda item: item.name),
    Column(
        "Created",
        lambda item: moment(item.created) if item.complete else "unfinished",
        no_fold=True,
    ),
    Column("Size", lambda item: size(item.bytes), align_right=True),
    Column("Copied", lambda item: size(item.copied_bytes), align_right=True),
    Column("Last sequence", lambda item: number(item.last_sequence), align_right=True),
    Column("Broker ID", lambda item: item.broker_id[:16], no_fold=True, optional=True),
)

BackupArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory of the backup.", show_default=False)
]


@action_command(backup, "create", open_resource=nullcontext)
def create(
    location: BrokerLocation,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="New or empty directory; with --url, a name in the broker's backup directory.",
            show_default=False,
        ),
    ],
    incremental_from: Annotated[
        Path | None,
        typer.Option(
            "--incremental-from",
            metavar="DIR",
            help="Earlier backup: segments that it contains are not copied but hard-linked.",
        ),
    ] = None,
    link: Annotated[
        bool,
        typer.Option("--hard-links", help="Hard-link sealed segments of the data directory, too."),
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(
            "--max-rate", metavar="SIZE", help="Maximum bytes copied per second, such as 50MB."
        ),
    ] = None,
) -> CommandResult:
    """Back up the journal, the users and the configuration of a running or stopped broker."""
    limit = int(quantity("--max-rate", rate, Unit.BYTES)) if rate is not None else 0
    if location.local:
        with naming_file(directory):
            manifest = _copy_files(location, directory, incremental_from, link, limit)
    else:
        manifest = _request_backup(location, directory, incremental_from, link, limit)
    return CommandResult(
        manifest,
        output=f"{directory}: {size(manifest.bytes)}, of which {size(manifest.copied_bytes)} were "
        f"copied; all records up to sequence number {manifest.last_sequence}",
    )


@backup.command()
def verify(
    directory: BackupArgument,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only compare checksums; do not read records.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare a backup with its checksums and check that a broker can start from it.

    Exits with code 1 if the backup is damaged.
    """
    manifest = stored_backup.read_manifest(directory)
    with _progress("verifying", manifest.bytes) as bar:
        verdict = stored_backup.verify(
            directory, records=not quick, advance=partial(bar.advance, bar.task_ids[0])
        )
    problems = verdict.problems
    records = f", {verdict.records} records, {verdict.live} live" if verdict.records else ""
    summary = f"{directory}: {verdict.files} files, {size(verdict.bytes)}{records}. No damage."
    result = CommandResult(verdict, output=None if problems else summary, errors=problems)
    print_result(result, as_json)


@action_command(backup, "list", open_resource=nullcontext)
def list_backups(
    location: BrokerLocation,
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="Directory of the backups; default: broker.backup_dir."
        ),
    ] = None,
) -> CommandResult:
    """List the backups in a directory, or with --url those in the broker's directory."""
    if location.local:
        config = load_flags(location.config, location.data_dir).config
        backup_dir = directory or config.broker.backup_dir
        if backup_dir is None:
            raise ConfigurationError(
                "name the directory: sluicemq backup list DIR; or set broker.backup_dir"
            )
        backups = stored_backup.find_backups(backup_dir)
    else:
        if directory is not None:
            raise ConfigurationError("--url lists the broker's own backups; leave out DIR")
        with Api(location.target()) as api:
            backups = list(api.items(LIST_BACKUPS, PageQuery()))
    return list_result(
        backups, BACKUP_COLUMNS, "There are no backups. Create one: sluicemq backup create DIR"
    )


restore_app = typer.Typer()


@restore_app.command("restore")
def restore(
    directory: BackupArgument,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            "-d",
            metavar="NEW",
            help="New or empty data directory.",
            show_default=False,
        ),
    ],
    keep_broker_id: Annotated[
        bool,
        typer.Option(
            "--keep-broker-id",
            help="Keep the broker id, so that pipelines continue with their checkpoints. Only if "
            "none of them has read beyond the end of the backup.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Restore a backup into a new data directory."""
    manifest = stored_backup.read_manifest(directory)
    with _progress("restoring", manifest.bytes) as bar:
        restored = stored_backup.restore(
            directory,
            data_dir,
            keep_broker_id=keep_broker_id,
            advance=partial(bar.advance, bar.task_ids[0]),
        )
    hints = []
    if not keep_broker_id:
        hints.append(
            "It has a new broker id: pipelines that read the old journal need new checkpoints."
        )
    configuration = data_dir / CONFIGURATION_NAME
    if configuration.exists():
        arguments = ["--config", str(configuration), "--data-dir", str(data_dir)]
        hints.append(f"Start it: {shlex.join(['sluicemq', 'serve', *arguments])}")
    document = {
        "data_dir": str(data_dir),
        "broker_id": restored.identity,
        "last_sequence": manifest.last_sequence,
        "next_sequence": restored.next_sequence,
    }
    summary = f"{data_dir}: all records up to sequence number {manifest.last_sequence}"
    print_result(CommandResult(document, "\n".join(hints), output=summary), as_json)


def _copy_files(
    location: BrokerLocation, directory: Path, previous: Path | None, link: bool, rate: int
) -> stored_backup.Manifest:
    """Copy the files of a data directory without the broker's help."""
    config = load_flags(location.config, location.data_dir).config

    def read_extras() -> dict[str, bytes]:
        extras = EffectiveConfiguration(config).sources()
        with suppress(ConnectionLost, RequestRefused), Api(location.target()) as api:
            # a running broker knows the configuration it was started with
            backups = api.call(LIST_BACKUPS, PageQuery())
            extras[CONFIGURATION_NAME] = backups.configuration.encode()
            users = Path(backups.users_file)
            if users.exists():
                extras[USERS_NAME] = users.read_bytes()
        return extras

    with _progress("copying") as bar:
        return create_backup(
            config.broker.data_dir / JOURNAL_NAME,
            directory,
            read_extras=read_extras,
            previous=previous,
            link=link,
            rate=rate,
            on_progress=lambda progress: _show_progress(bar, *progress),
        )


def _request_backup(
    location: BrokerLocation, directory: Path, previous: Path | None, link: bool, rate: int
) -> stored_backup.Manifest:
    """Request the backup from the broker."""
    body = BackupRequest(
        directory=str(directory),
        hard_links=link,
        max_rate=rate,
        incremental_from=str(previous) if previous is not None else None,
    )
    with Api(location.target()) as api, _progress("copying") as bar:
        for line in api.lines(CREATE_BACKUP, Body(body=body)):
            if line["state"] == "done":
                return msgspec.convert(line["backup"], stored_backup.Manifest)
            if line["state"] == "failed":
                raise JournalError(line["error"]["detail"])
            _show_progress(bar, line["processed"], line["total"])
    raise ConnectionLost("the broker closed the connection, and the backup is incomplete")


def _progress(description: str, total: int = 0) -> Progress:
    """Return a progress bar with one task, for a terminal; 0 = the number of bytes is unknown."""
    console = err()
    columns = (TextColumn(description), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar.add_task(description, total=total or None)
    return bar


def _show_progress(bar: Progress, copied: int, total: int) -> None:
    bar.update(bar.task_ids[0], completed=copied, total=total or None)

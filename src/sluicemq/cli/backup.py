"""`sluicemq backup …` and `sluicemq restore`: create, verify, list and restore backups.

Without --url the command reads the files of a data directory, also while its broker runs. With
--url the broker creates the backup itself in its configured backup directory.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from sluicemq.cli.api import Api, CommandResult, action_command, listing
from sluicemq.cli.console import (
    Column,
    Exit,
    JsonFlag,
    complain,
    err,
    moment,
    number,
    print_json,
    quantity,
    size,
)
from sluicemq.cli.location import BrokerLocation, load_flags
from sluicemq.journal.backup import create as create_backup
from sluicemq.journal.backup_restore import restore as restore_backup
from sluicemq.journal.manifest import JOURNAL_NAME, Manifest, catalogue, read_manifest
from sluicemq.journal.manifest import verify as verify_backup
from sluicemq.management.journal import (
    CREATE_BACKUP,
    LIST_BACKUPS,
    BackupRequest,
    BackupView,
    CreateBackup,
)
from sluicemq.management.operation import PageQuery
from sluicemq.model.errors import ConfigurationError, ConnectionLost, JournalError, RequestRefused
from sluicemq.server.backups import CONFIGURATION_NAME, USERS_NAME, sources
from sluicemq.server.units import Unit

app = typer.Typer(
    help="Back up a broker, running or stopped; see what backups there are, and whether they are "
    "sound.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

COLUMNS: Final[tuple[Column[BackupView], ...]] = (
    Column("Backup", lambda item: item.name),
    Column(
        "Created",
        lambda item: moment(item.created) if item.complete else "unfinished",
        whole=True,
    ),
    Column("Size", lambda item: size(item.bytes), right=True),
    Column("Copied", lambda item: size(item.copied_bytes), right=True),
    Column("Last sequence", lambda item: number(item.last_sequence), right=True),
    Column("Broker ID", lambda item: item.broker_id[:16], whole=True, optional=True),
)

BackupArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory of the backup.", show_default=False)
]


@action_command(app, "create", opening=nullcontext)
def create(
    place: BrokerLocation,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory to be made; with --url a name within the broker's backup directory.",
            show_default=False,
        ),
    ],
    incremental_from: Annotated[
        Path | None,
        typer.Option(
            "--incremental-from",
            metavar="DIR",
            help="An earlier backup: what it has is not copied again but shared with it.",
        ),
    ] = None,
    link: Annotated[
        bool,
        typer.Option(
            "--hard-links", help="Share what does not change with the data directory, too."
        ),
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
    if place.local:
        manifest = _create(place, directory, incremental_from, link, limit)
    else:
        manifest = _ask(place, directory, incremental_from, link, limit)
    return CommandResult(
        manifest,
        output=f"{directory}: {size(manifest.bytes)}, of which {size(manifest.copied_bytes)} were "
        f"copied; everything up to number {manifest.last_sequence}",
    )


@app.command()
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
    manifest = read_manifest(directory)
    with _progress("verifying", manifest.bytes) as bar:
        advance = partial(bar.advance, bar.task_ids[0])
        verdict = verify_backup(directory, records=not quick, advance=advance)
    if as_json:
        print_json(verdict)
    else:
        for problem in verdict.problems:
            complain(problem)
        looked = f", {verdict.records} records, {verdict.live} live" if verdict.records else ""
        if not verdict.problems:
            print(f"{directory}: {verdict.files} files, {size(verdict.bytes)}{looked}. No damage.")
    if verdict.problems:
        raise typer.Exit(Exit.REFUSED)


@action_command(app, "list", opening=nullcontext)
def list_backups(
    place: BrokerLocation,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Where the backups are; default: the configured."),
    ] = None,
) -> CommandResult:
    """List the backups in a directory, or those that a broker has made in its own."""
    if place.local:
        where = directory or load_flags(place.config, place.data_dir).config.broker.backup_dir
        if where is None:
            raise ConfigurationError(
                "name the directory: sluicemq backup list DIR; or set broker.backup_dir"
            )
        found = catalogue(where)
    else:
        if directory is not None:
            raise ConfigurationError("--url lists the broker's own backups; leave out DIR")
        with Api(place.target()) as api:
            found = [each for page in api.pages(LIST_BACKUPS, PageQuery()) for each in page.items]
    return listing(found, COLUMNS, "There are no backups. sluicemq backup create DIR makes one.")


restore_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@restore_app.command("restore")
def restore(
    directory: BackupArgument,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            "-d",
            metavar="NEW",
            help="Data directory to be made: one that is empty or not there.",
            show_default=False,
        ),
    ],
    keep_broker_id: Annotated[
        bool,
        typer.Option(
            "--keep-broker-id",
            help="It is the same journal to its readers; only if no pipeline has read more of it "
            "than the backup has.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a data directory of a backup, from which a broker can start."""
    manifest = read_manifest(directory)
    with _progress("restoring", manifest.bytes) as bar:
        advance = partial(bar.advance, bar.task_ids[0])
        restored = restore_backup(
            directory, data_dir, keep_broker_id=keep_broker_id, advance=advance
        )
    if as_json:
        print_json(
            {
                "data_dir": str(data_dir),
                "broker_id": restored.identity,
                "last_sequence": manifest.last_sequence,
                "next_sequence": restored.next_sequence,
            }
        )
        return
    print(f"{data_dir} has everything up to number {manifest.last_sequence}")
    if not keep_broker_id:
        err().print(
            "It has an identity of its own: pipelines that read the old journal need new "
            "checkpoints.",
            markup=False,
        )
    configuration = data_dir / CONFIGURATION_NAME
    if configuration.exists():
        err().print(
            f"Start it: sluicemq serve --config {configuration} --data-dir {data_dir}",
            markup=False,
        )


# --- creation -------------------------------------------------------------------------------------


def _create(
    place: BrokerLocation, directory: Path, previous: Path | None, link: bool, rate: int
) -> Manifest:
    """Copy the files of a data directory without the broker's help."""
    config = load_flags(place.config, place.data_dir).config
    extras = sources(config)
    with suppress(ConnectionLost, RequestRefused), Api(place.target()) as api:
        # a running broker knows the configuration it was started with
        running = api.call(LIST_BACKUPS, PageQuery())
        extras[CONFIGURATION_NAME] = running.configuration.encode()
        users = Path(running.users_file)
        if users.exists():
            extras[USERS_NAME] = users.read_bytes()
    with _progress("copying") as bar:
        return create_backup(
            config.broker.data_dir / JOURNAL_NAME,
            directory,
            extras=extras,
            previous=previous,
            link=link,
            rate=rate,
            on_progress=lambda progress: _show(bar, *progress),
        )


def _ask(
    place: BrokerLocation, directory: Path, previous: Path | None, link: bool, rate: int
) -> Manifest:
    """Request the backup from the broker."""
    body = BackupRequest(
        directory=str(directory),
        hard_links=link,
        max_rate=rate,
        incremental_from=str(previous) if previous is not None else None,
    )
    with Api(place.target()) as api, _progress("copying") as bar:
        for line in api.lines(CREATE_BACKUP, CreateBackup(body=body)):
            if line["state"] == "done":
                return msgspec.convert(line["backup"], Manifest)
            if line["state"] == "failed":
                raise JournalError(line["error"]["detail"])
            _show(bar, line["processed"], line["total"])
    raise ConnectionLost("the broker closed the connection, and the backup is incomplete")


def _progress(what: str, total: int = 0) -> Progress:
    """Return a progress bar with one task, for a terminal; 0 = the number of bytes is unknown."""
    console = err()
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar.add_task(what, total=total or None)
    return bar


def _show(bar: Progress, copied: int, total: int) -> None:
    bar.update(bar.task_ids[0], completed=copied, total=total or None)

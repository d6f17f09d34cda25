"""`sluicemq migrate openmq|vibemq|phpmq`: migrate, or report what a migration would do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Final

import typer

from sluicemq.cli.console import (
    JsonFlag,
    UsageError,
    complain,
    err,
    out,
    print_json,
    printable,
)
from sluicemq.cli.migration_report import MigrationReport, as_data, as_text
from sluicemq.journal.writer import write_whole
from sluicemq.migrate import configuration
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.transfer import Interrupted, imported_before, transfer
from sluicemq.model.destination import Address
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.loading import load

CONFIG_NAME: Final = "sluicemq.toml"
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as in shells."""

app = typer.Typer(
    help="Migrate from Open MQ, VibeMQ or PHPMQ: configuration, users and ready messages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DataDirOption = Annotated[
    Path, typer.Option("--to", metavar="DATA_DIR", help="Data directory of the (stopped) broker.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Where to write the configuration; default: sluicemq.toml in DATA_DIR. A file that is "
        "there is never changed.",
    ),
]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Report what would be done, and change nothing.")
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="FILE", help="SQLite file, if it is not where SOURCE specifies."
    ),
]


@app.command()
def openmq(
    source: Annotated[
        Path,
        typer.Argument(
            help="Directory of the instance (…/instances/imqbroker), or its config.properties."
        ),
    ],
    to: DataDirOption,
    config: ConfigOption = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    ignore_lock: Annotated[
        bool,
        typer.Option("--ignore-lock", help="Ignore a lock file left over from a killed broker."),
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="List damaged records of the store and continue."),
    ] = False,
) -> None:
    """Migrate from Open MQ (Message Queue 4.0 to 6.x with a file store)."""
    from sluicemq.migrate.openmq.instance import inspect_source

    _migrate(
        lambda: inspect_source(source, ignore_lock, skip_damaged), to, config, dry_run, as_json
    )


@app.command()
def vibemq(
    source: Annotated[
        Path, typer.Argument(help="appsettings.json, vibemq.db, or their directory.")
    ],
    to: DataDirOption,
    config: ConfigOption = None,
    store: StoreOption = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Stop at an invalid queue or row instead of setting it aside."
        ),
    ] = False,
    fan_out_rows: Annotated[
        bool,
        typer.Option(
            "--fan-out-rows",
            help="Import the rows of FanOutWithoutAck queues, also those that were delivered.",
        ),
    ] = False,
    auth_db: Annotated[
        Path | None,
        typer.Option(
            "--auth-db",
            metavar="FILE",
            help="The user database; default: auth.db, or what the settings say, beside the rest.",
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            "--settings", metavar="FILE", help="The settings, if SOURCE is not or has not them."
        ),
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option(
            "--env",
            metavar="FILE",
            help="File with VibeMQ's environment variables, such as VibeMQ__Port=2925.",
        ),
    ] = None,
    without_users: Annotated[
        bool, typer.Option("--without-users", help="Do not migrate users.")
    ] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Migrate from VibeMQ (1.4 to 1.8 with SQLite storage)."""
    from sluicemq.migrate.vibemq import inspect_source
    from sluicemq.migrate.vibemq.users import UsersSource

    if without_users and auth_db is not None:
        raise UsageError("give either --auth-db or --without-users, not both")
    users = UsersSource(auth_db, without_users)
    _migrate(
        lambda: inspect_source(
            source,
            store,
            settings=settings,
            environment=env,
            users=users,
            strict=strict,
            fan_out_rows=fan_out_rows,
        ),
        to,
        config,
        dry_run,
        as_json,
    )


@app.command()
def phpmq(
    source: Annotated[Path, typer.Argument(help="The XML configuration, or the SQLite file.")],
    to: DataDirOption,
    config: ConfigOption = None,
    store: StoreOption = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Migrate from PHPMQ (with SQLite storage in a file)."""
    from sluicemq.migrate.phpmq import inspect_source

    _migrate(lambda: inspect_source(source, store), to, config, dry_run, as_json)


def _migrate(
    inspect_source: Callable[[], Plan], to: Path, config: Path | None, dry_run: bool, as_json: bool
) -> None:
    try:
        _run(inspect_source, to, config, dry_run, as_json)
    except Interrupted as stopped:
        complain(str(stopped))
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        complain("interrupted. Run the same command again to go on: nothing is imported twice")
        raise typer.Exit(INTERRUPTED) from None


def _run(
    inspect_source: Callable[[], Plan], to: Path, config: Path | None, dry_run: bool, as_json: bool
) -> None:
    data_dir = to.resolve()
    file = (config or data_dir / CONFIG_NAME).resolve()
    with err().status("reading the source"):
        plan = inspect_source()
    text = configuration.render(plan, data_dir)
    outcome = None
    written = False
    before = 0
    if dry_run:
        before = len(imported_before(data_dir))
        plan.notes += [f"the source is in use: {use}" for use in plan.change_detector.used.values()]
    else:
        with err().status("importing"):
            outcome = transfer(plan, data_dir, _configured(file))
        # again: some items are found only during the transfer
        text = configuration.render(plan, data_dir)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text.encode(), mode=0o640)
            written = True
    report = MigrationReport(
        plan=plan,
        data_dir=data_dir,
        config=file,
        text=text,
        written=written,
        problems=configuration.problems(plan),
        outcome=outcome,
        before=before,
    )
    if as_json:
        print_json(as_data(report))
    else:
        console = out()
        for line in as_text(report):
            console.print(printable(line), markup=False)
        if outcome is not None:
            err().print(f"Next: sluicemq serve --config {file}", markup=False)


def _configured(file: Path) -> Collection[Address]:
    """Return the destinations of an existing configuration file, if it is readable."""
    try:
        return load(file).config.destinations if file.exists() else ()
    except ConfigurationError:
        return ()

"""`sluicemq migrate openmq|vibemq|phpmq`: migrate, or report what a migration would do."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from sluicemq.cli.api import CommandResult, print_result
from sluicemq.cli.console import (
    JsonFlag,
    UsageError,
    err,
    print_error,
    printable,
    stop_on_signals,
)
from sluicemq.journal.files import write_atomically
from sluicemq.migrate import configuration
from sluicemq.migrate.plan import SET_ASIDE, Plan
from sluicemq.migrate.transfer import (
    Interrupted,
    Ledger,
    MigrationOutcome,
    transfer,
)
from sluicemq.model.destination import Address
from sluicemq.model.errors import ConfigurationError
from sluicemq.security.passwords import scheme_of
from sluicemq.security.records import UserRecord
from sluicemq.server.config import Config
from sluicemq.server.loading import load

# --- Report ---------------------------------------------------------------------------------------

MAX_LINES = 40
"""Maximum number of lines of one type in text output; `--json` lists all."""


class MigrationReport(msgspec.Struct, kw_only=True):
    """The whole report. `outcome`: in a dry run, only messages imported before; `written`: the
    configuration file was written; `problems`: reasons for which a broker would not start with
    it."""

    plan: Plan
    data_dir: Path
    config: Path
    text: str
    written: bool
    problems: list[str]
    outcome: MigrationOutcome
    dry_run: bool


def as_data(report: MigrationReport) -> dict[str, object]:
    """Return the report for `--json`."""
    plan = report.plan
    outcome = report.outcome
    return {
        "source": {"kind": plan.kind, "place": str(plan.source_path)},
        "dry_run": report.dry_run,
        "data_dir": str(report.data_dir),
        "config": {
            "file": str(report.config),
            "written": report.written,
            "text": report.text,
            "problems": report.problems,
        },
        "destinations": [
            {
                "kind": address.kind.name.lower(),
                "name": printable(address.name),
                "waiting": plan.counts[address],
                "imported": outcome.imported[address],
                "declared": address in plan.destinations,
                "kept": address in outcome.existing_destinations,
            }
            for address in _addresses(plan)
        ],
        "subscriptions": [
            {"topic": s.topic, "name": s.name, "selector": s.selector} for s in plan.subscriptions
        ],
        "users": [
            {
                "name": name,
                "login": _login(record),
                "added": name in outcome.users,
            }
            for name, record in plan.users.items()
        ],
        "transactions": [branch.xid.hex() for branch in plan.prepared_transactions],
        "messages": {
            "waiting": sum(plan.counts.values()),
            "imported": sum(outcome.imported.values()),
            "imported_before": outcome.imported_earlier,
            "unwanted": outcome.unmatched,
            "older_than_ttl": plan.expired_count,
        },
        "set_aside": {
            "file": str(outcome.set_aside_file) if outcome.set_aside_file else None,
            "rows": dict(plan.set_aside),
        },
        "left": [item._asdict() for item in plan.skipped],
        "notes": plan.notes,
    }


def as_text(report: MigrationReport) -> Iterator[str]:
    """Return the lines of the text output."""
    plan = report.plan
    outcome = report.outcome
    mode = "  (dry run: nothing is changed)" if report.dry_run else ""
    yield f"{plan.kind}: {plan.source_path}{mode}"
    yield ""
    yield from _config_lines(report)
    yield from _section(
        "destinations", [_destination(report, address) for address in _addresses(plan)]
    )
    if plan.subscriptions:
        names = [
            f"{subscription.name} of topic {subscription.topic}"
            for subscription in plan.subscriptions
        ]
        yield from _section("durable subscriptions", names)
    if plan.prepared_transactions:
        count = len(plan.prepared_transactions)
        yield f"prepared transactions: {count}, to be recovered by their coordinators"
    if plan.users:
        yield from _section("users", [_user(report, name) for name in plan.users])
    total = sum(plan.counts.values())
    if report.dry_run:
        yield f"messages: {total} ready, {outcome.imported_earlier} of any source imported before"
    else:
        imported = sum(outcome.imported.values())
        yield f"messages: {imported} imported, {outcome.imported_earlier} by earlier runs"
        if outcome.unmatched:
            yield f"  {outcome.unmatched} of topics match no subscription"
    if plan.expired_count:
        yield f"  {plan.expired_count} were older than their queue's messageTtl, which restarts"
    if plan.set_aside:
        suffix = f" in {outcome.set_aside_file}" if outcome.set_aside_file else ""
        yield f"set aside, not imported: {sum(plan.set_aside.values())} rows{suffix}"
        yield from (f"  {count} {SET_ASIDE[name]}" for name, count in plan.set_aside.items())
    if plan.notes:
        yield ""
        yield from (f"note: {note}" for note in plan.notes)
    if plan.skipped:
        yield ""
        lines = [f"{item.what} {item.name}: {item.reason}" for item in plan.skipped]
        yield from _section("not migrated", lines)


def _section(title: str, lines: list[str]) -> Iterator[str]:
    """Yield the number of lines and at most MAX_LINES of them."""
    yield f"{title}: {len(lines)}"
    yield from (f"  {line}" for line in lines[:MAX_LINES])
    if len(lines) > MAX_LINES:
        yield f"  … and {len(lines) - MAX_LINES} more; --json lists all"


def _config_lines(report: MigrationReport) -> Iterator[str]:
    if report.written:
        yield f"configuration: {report.config}"
    else:
        if report.dry_run:
            yield f"configuration, for {report.config}:"
        else:
            yield f"configuration: {report.config} exists and is not changed; add what it lacks:"
        yield from (f"  {line}" for line in report.text.splitlines())
    for problem in report.problems:
        yield f"  to be corrected before the start: {problem}"


def _destination(report: MigrationReport, address: Address) -> str:
    suffix = (
        " (exists, with its own settings)"
        if address in report.outcome.existing_destinations
        else ""
    )
    ready = report.plan.counts[address]
    return f"{address.kind.name.lower()} {address.name}: {ready} ready{suffix}"


def _user(report: MigrationReport, name: str) -> str:
    exists = not report.dry_run and name not in report.outcome.users
    suffix = " (exists: not changed)" if exists else ""
    return f"{name}: {_login(report.plan.users[name])}{suffix}"


def _addresses(plan: Plan) -> list[Address]:
    return sorted({*plan.destinations, *plan.counts})


def _login(user: UserRecord) -> str:
    if user.password:
        return "the same password as before" if scheme_of(user.password) == "bcrypt" else "password"
    if user.digest:
        return "the same password as before, by digest (JMS clients)"
    return "token" if user.tokens else "needs a new password: sluicemq users passwd"


# --- `sluicemq migrate …` -------------------------------------------------------------------------

CONFIG_NAME: Final = "sluicemq.toml"
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as in shells."""

app = typer.Typer(
    help="Migrate from Open MQ, VibeMQ or PHPMQ: configuration, users and ready messages.",
    no_args_is_help=True,
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
        help="Configuration file to write; default: sluicemq.toml in DATA_DIR. An existing file is "
        "not changed.",
    ),
]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Report what the migration would do, without changes.")
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
            metavar="SOURCE",
            help="Directory of the instance (…/instances/imqbroker), or its config.properties.",
        ),
    ],
    to: DataDirOption,
    config: ConfigOption = None,
    ignore_lock: Annotated[
        bool,
        typer.Option("--ignore-lock", help="Ignore a lock file left over from a killed broker."),
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="List damaged records of the store and continue."),
    ] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Migrate from Open MQ (Message Queue 4.0 to 6.x with a file store)."""
    from sluicemq.migrate.openmq import inspect_source

    _migrate(
        lambda: inspect_source(source, ignore_lock, skip_damaged), to, config, dry_run, as_json
    )


@app.command()
def vibemq(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="appsettings.json, vibemq.db, or their directory."),
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
            help="The user database; default: auth.db, or the one in the settings, near SOURCE.",
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="The settings, if they are not in SOURCE."),
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

    if without_users and auth_db is not None:
        raise UsageError("give either --auth-db or --without-users, not both")
    _migrate(
        lambda: inspect_source(
            source,
            store,
            settings=settings,
            environment=env,
            users=auth_db,
            without_users=without_users,
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
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="The XML configuration, or the SQLite file.")
    ],
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
    except (Interrupted, KeyboardInterrupt) as error:
        print_error(
            str(error)
            or "interrupted. Run the same command again to continue: nothing is imported twice"
        )
        raise typer.Exit(INTERRUPTED) from None


def _run(
    inspect_source: Callable[[], Plan], to: Path, config: Path | None, dry_run: bool, as_json: bool
) -> None:
    data_dir = to.resolve()
    file = (config or data_dir / CONFIG_NAME).resolve()
    with err().status("reading the source"):
        plan = inspect_source()
    if dry_run:
        outcome = MigrationOutcome(imported_earlier=len(Ledger(data_dir).keys))
        plan.notes += [f"the source is in use: {use}" for use in plan.change_detector.used.values()]
    else:
        with err().status("importing"), stop_on_signals(signal.SIGINT) as interrupted:
            existing = _existing_configuration(file)
            outcome = transfer(
                plan,
                data_dir,
                existing.destinations,
                interrupted.is_set,
                existing.auth.users_file,
            )
    # now, because the transfer finds some of the items that are not migrated
    text = configuration.render(plan, data_dir)
    written = not dry_run and not file.exists()
    if written:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode(), mode=0o640)
    report = MigrationReport(
        plan=plan,
        data_dir=data_dir,
        config=file,
        text=text,
        written=written,
        problems=configuration.problems(plan),
        outcome=outcome,
        dry_run=dry_run,
    )
    serve = ["sluicemq", "serve", "--config", str(file)]
    if not written:
        serve += ["--data-dir", str(data_dir)]  # the existing file may name another one
    next_step = "" if dry_run else f"Next: {shlex.join(serve)}"
    text_output = "\n".join(map(printable, as_text(report)))
    print_result(CommandResult(as_data(report), next_step, output=text_output), as_json)


def _existing_configuration(file: Path) -> Config:
    """Return the settings in the configuration file; the defaults if it is missing or invalid."""
    try:
        return load(file).config if file.exists() else Config()
    except ConfigurationError:
        return Config()

"""`sluicemq users …`: who may log in, with which passwords and tokens.

The commands change the file of the user database; a running broker takes notice by itself. Secrets
are typed without echo, or come from standard input or a file: never from the command line, which
everybody on the machine can read.
"""

from __future__ import annotations

import getpass
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sluicemq.cli.console import JsonFlag, err, out, print_json, printable
from sluicemq.cli.serve import ConfigOption, DataDirOption, load_flags
from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.server.identity import changes
from sluicemq.server.identity.passwords import (
    MAX_JAVA_PASSWORD,
    MAX_PASSWORD,
    check_password,
    digest_form,
    hash_password,
    read_secret_file,
)
from sluicemq.server.identity.records import Database, TokenRecord, UserRecord
from sluicemq.server.identity.store import UserStore
from sluicemq.server.identity.tokens import make_token
from sluicemq.server.units import Unit, parse_quantity

app = typer.Typer(
    help="Add, remove and list users, their passwords and tokens.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
tokens = typer.Typer(help="Secrets that stand for a user.", no_args_is_help=True)
app.add_typer(tokens, name="token")

UserArgument = Annotated[str, typer.Argument(metavar="USER", show_default=False)]
StdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]
FileOption = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Read it from a file's first line."),
]


@app.command()
def add(
    user: UserArgument,
    superuser: Annotated[
        bool, typer.Option("--superuser", help="May do everything, and manage users.")
    ] = False,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Assign a role; repeat for several.")
    ] = None,
    password_stdin: StdinOption = False,
    password_file: FileOption = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Only tokens and listeners (user=…) admit it.")
    ] = False,
    allow_digest: Annotated[
        bool,
        typer.Option(
            "--allow-digest",
            help="Keep what JMS digest logins need, too: it is as good as the password.",
        ),
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a user. Without permissions it may do nothing; see `sluicemq permissions grant`."""
    store = open_store(config, data_dir)
    now = int(time.time())
    if no_password and (password_stdin or password_file or allow_digest):
        raise ConfigurationError("--no-password leaves nothing for the other options to set")
    password = "" if no_password else read_password(password_stdin, password_file)
    record = UserRecord(
        password=hash_password(password) if password else "",
        digest=digest_form(user, password) if allow_digest else "",
        superuser=superuser,
        roles=tuple(dict.fromkeys(role or ())),
        created=now,
        updated=now,
    )
    change(store, lambda database: changes.add_user(database, user, record))
    tell(as_json, {"added": user}, f"Added {user}.")


@app.command("list")
def list_users(
    config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """List the users; no secrets."""
    database = open_store(config, data_dir).read()
    users = [
        {
            "name": name,
            "superuser": user.superuser,
            "password": bool(user.password),
            "digest": bool(user.digest),
            "roles": list(user.roles),
            "permissions": len(user.permissions),
            "tokens": len(user.tokens),
            "created": user.created,
            "updated": user.updated,
        }
        for name, user in sorted(database.users.items())
    ]
    if as_json:
        print_json(users)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("user", "logs in with", "rights", "since"):
        table.add_column(column)
    for name, user in sorted(database.users.items()):
        table.add_row(name, _means(user), _rights(user), _date(user.created))
    out().print(table, markup=False)


@app.command()
def remove(
    user: UserArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Even the last superuser, and the last user.")
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove a user and its tokens. Connections that it has already go on."""
    store = open_store(config, data_dir)

    def without(database: Database) -> Database:
        if force:
            return changes.without_user(database, user)
        if [*database.users] == [user]:
            raise AccessError(
                f"{user} is the last user; a broker started without users asks nobody who they "
                "are. Remove it with --force if that is what you want"
            )
        return changes.remove_user(database, user)

    change(store, without)
    tell(as_json, {"removed": user}, f"Removed {user}.")


@app.command()
def passwd(
    user: UserArgument,
    password_stdin: StdinOption = False,
    password_file: FileOption = None,
    allow_digest: Annotated[
        bool | None,
        typer.Option(
            "--allow-digest/--no-digest",
            help="Keep what JMS digest logins need, or no longer (default: as it was).",
        ),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Set a user's password."""
    store = open_store(config, data_dir)
    if user not in store.read().users:
        raise AccessError(f"there is no user {user!r}")
    password = read_password(password_stdin, password_file)
    hashed, digest = hash_password(password), digest_form(user, password)
    now = int(time.time())
    change(store, lambda db: changes.set_password(db, user, hashed, digest, now, allow_digest))
    tell(as_json, {"changed": user}, f"{user} has a new password.")


@tokens.command("add")
def add_token(
    user: UserArgument,
    label: Annotated[str, typer.Option("--label", help="What it is for.")] = "",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Valid for so long, as 90d or 12h."),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token for a user, and show it: once, as only its SHA-256 is kept."""
    store = open_store(config, data_dir)
    now = int(time.time())
    token, record = make_token(label, now, now + _seconds(expires) if expires else 0)
    change(store, lambda database: changes.add_token(database, user, record, now))
    if as_json:
        print_json({"user": user, "id": record.id, "token": token, "expires": record.expires})
    else:
        sys.stdout.write(token + "\n")
        err().print(f"This is token {record.id} of {user}. It is not shown again.")


@tokens.command("list")
def list_tokens(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", show_default=False)] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List tokens, of one user or of all. The tokens themselves are not known."""
    users = open_store(config, data_dir).read().users
    if user is not None and user not in users:
        raise AccessError(f"there is no user {user!r}")
    names = sorted(users) if user is None else [user]
    found = [(name, token) for name in names for token in users[name].tokens]
    if as_json:
        keys = ("id", "label", "created", "expires")
        print_json([{"user": n, **{key: getattr(t, key) for key in keys}} for n, t in found])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("user", "token", "label", "since", "expires"):
        table.add_column(column)
    for name, token in found:
        table.add_row(name, token.id, printable(token.label), _date(token.created), _expiry(token))
    out().print(table, markup=False)


@tokens.command("remove")
def remove_token(
    user: UserArgument,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as listed.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token void."""
    store = open_store(config, data_dir)
    now = int(time.time())
    change(store, lambda database: changes.remove_token(database, user, token, now))
    tell(as_json, {"removed": token}, f"Removed token {token} of {user}.")


def open_store(config: Path | None, data_dir: Path | None) -> UserStore:
    """The user database of the broker that these options mean."""
    return UserStore(load_flags(config, data_dir).config.users_file)


def change(store: UserStore, what: changes.Change) -> None:
    """Carry it out in the name of whoever runs this command."""
    store.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    store.change(what, f"{name} on the command line")


def tell(as_json: bool, document: dict[str, Any], text: str) -> None:
    """What has been done."""
    if as_json:
        print_json(document)
    else:
        err().print(printable(text), markup=False)


def read_password(from_stdin: bool, file: Path | None) -> str:
    """From where the options say, else typed twice. ConfigurationError, AccessError."""
    if from_stdin and file is not None:
        raise ConfigurationError("give either --password-stdin or --password-file, not both")
    if file is not None:
        password = read_secret_file(file)
    elif from_stdin:
        try:
            password = sys.stdin.readline(MAX_PASSWORD + 2).rstrip("\r\n")
        except UnicodeDecodeError:
            raise AccessError("the password on standard input is not text") from None
    elif sys.stdin.isatty():
        password = getpass.getpass("Password: ", sys.stderr)
        if password != getpass.getpass("Again: ", sys.stderr):
            raise AccessError("the two passwords differ; nothing has been changed")
    else:
        raise ConfigurationError(
            "there is no terminal to ask for the password; give it with --password-stdin or "
            "--password-file"
        )
    check_password(password)
    if len(password.encode()) > MAX_JAVA_PASSWORD:
        err().print(
            f"Java JMS clients send only the first {MAX_JAVA_PASSWORD} bytes of a password, unless "
            "they log in by digest: they will not get in with this one."
        )
    return password


def _seconds(text: str) -> int:
    try:
        return int(parse_quantity(text, Unit.SECONDS))
    except ValueError as error:
        raise ConfigurationError(f"--expires: {error}") from None


def _means(user: UserRecord) -> str:
    means = [
        *(["password"] if user.password else []),
        *(["digest"] if user.digest else []),
        *([f"{len(user.tokens)} tokens"] if user.tokens else []),
    ]
    return ", ".join(means) or "-"


def _rights(user: UserRecord) -> str:
    if user.superuser:
        return "superuser"
    return ", ".join([f"{len(user.permissions)} permissions", *user.roles])


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _expiry(token: TokenRecord) -> str:
    if not token.expires:
        return "never"
    return f"{_date(token.expires)}{' (over)' if time.time() >= token.expires else ''}"

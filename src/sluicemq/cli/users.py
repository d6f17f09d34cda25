"""`sluicemq users …`: users, their passwords and tokens.

Secrets are typed without echo, or read from standard input or a file, never from the command line,
which every user of the machine can read.
"""

from __future__ import annotations

import getpass
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from sluicemq.cli.accounts import Accounts, LoginPolicy, accounts_at
from sluicemq.cli.api import noted
from sluicemq.cli.broker_location import LoginPasswordFileOption
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    query_command,
)
from sluicemq.cli.console import UsageError, err
from sluicemq.cli.destinations import Listing
from sluicemq.cli.tables import Column, Item, moment, table
from sluicemq.model.errors import AccessDenied, AccessError
from sluicemq.security.passwords import (
    MAX_JAVA_PASSWORD,
    MAX_PASSWORD,
    check_password,
    password_warnings,
    read_secret_file,
)
from sluicemq.server.units import Unit, parse_quantity

app = typer.Typer(
    cls=Listing,
    help="Add, remove and list users, their passwords and tokens. Default: list.",
    pretty_exceptions_enable=False,
)
tokens = typer.Typer(
    cls=Listing,
    help="Create, list and revoke access tokens. Default: list.",
    pretty_exceptions_enable=False,
)
app.add_typer(tokens, name="token")

UserArgument = Annotated[str, typer.Argument(metavar="USER", show_default=False)]
StdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="Read the password from a file's first line."
    ),
]

_USERS: Final = (
    Column("User", lambda item: str(item["name"])),
    Column("Login by", lambda item: _means(item)),
    Column("Permissions", lambda item: _rights(item)),
    Column("Created", lambda item: _date(item["created"]), whole=True, optional=True),
)
_TOKENS: Final = (
    Column("User", lambda item: str(item["user"])),
    Column("Token", lambda item: str(item["id"])),
    Column("Label", lambda item: str(item["label"])),
    Column("Created", lambda item: _date(item["created"]), whole=True, optional=True),
    Column("Expires", lambda item: _expiry(item), whole=True),
)


@query_command(app, "list", opening=accounts_at)
def list_users(accounts: Accounts) -> QueryResult:
    """List the users without their secrets."""
    found = accounts.users()
    if not found:
        return QueryResult(
            [],
            None,
            "There are no users: anyone who reaches a port may do everything. Add the first one:\n"
            "  sluicemq users add root --superuser",
        )
    return QueryResult(found, table(_USERS, found))


@action_command(app, "add", opening=accounts_at, login=LoginPasswordFileOption)
def add(
    accounts: Accounts,
    user: UserArgument,
    superuser: Annotated[
        bool, typer.Option("--superuser", help="May do everything, and manage users.")
    ] = False,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Assign a role; repeatable.")
    ] = None,
    password_stdin: StdinOption = False,
    new_password_file: FileOption = None,
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
) -> ActionResult:
    """Add a user. Without permissions it may do nothing; see `sluicemq permissions grant`."""
    if no_password and (password_stdin or new_password_file or allow_digest):
        raise UsageError("--no-password leaves nothing for the other options to set")
    password = "" if no_password else read_password(password_stdin, new_password_file)
    first = not accounts.users()
    accounts.add(user, password, superuser, list(dict.fromkeys(role or ())), allow_digest)
    if not first:
        return ActionResult({"added": user}, f"Added {user}.")
    policy = accounts.login_policy()
    document = {
        "added": user,
        "first": True,
        "login_required": policy.required != "never",
        "open_listeners": policy.open_listeners,
    }
    return ActionResult(document, "\n".join([f"Added {user}, the first user.", *_effect(policy)]))


@action_command(app, "remove", opening=accounts_at)
def remove(
    accounts: Accounts,
    user: UserArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove the last superuser or the last user.")
    ] = False,
    yes: YesFlag = False,
) -> ActionResult:
    """Remove a user and its tokens. Its existing connections stay open."""
    confirm(f"Remove {user}, with its permissions and tokens?", yes)
    try:
        accounts.remove(user, force)
    except AccessDenied as error:
        if " is the last " in str(error):
            noted(error, "--force removes it all the same.")
        raise
    return ActionResult({"removed": user}, f"Removed {user}.")


@action_command(app, "passwd", opening=accounts_at, login=LoginPasswordFileOption)
def passwd(
    accounts: Accounts,
    user: UserArgument,
    password_stdin: StdinOption = False,
    new_password_file: FileOption = None,
    allow_digest: Annotated[
        bool | None,
        typer.Option(
            "--allow-digest/--no-digest",
            help="Keep what JMS digest logins need, or no longer (default: as it was).",
        ),
    ] = None,
) -> ActionResult:
    """Set a user's password."""
    password = read_password(password_stdin, new_password_file)
    accounts.set_password(user, password, allow_digest)
    return ActionResult({"changed": user}, f"{user} has a new password.")


@action_command(tokens, "add", opening=accounts_at)
def add_token(
    accounts: Accounts,
    user: UserArgument,
    label: Annotated[str, typer.Option("--label", help="Purpose of the token.")] = "",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Validity, such as 90d or 12h."),
    ] = None,
) -> ActionResult:
    """Create a token for a user and print it once; the broker stores only its SHA-256."""
    until = int(time.time()) + _seconds(expires) if expires else 0
    token = accounts.add_token(user, label, until)
    document = {"user": user, **{key: token[key] for key in ("id", "token", "expires")}}
    text = f"This is token {token['id']} of {user}. It is not shown again."
    return ActionResult(document, text, output=str(token["token"]))


@query_command(tokens, "list", opening=accounts_at)
def list_tokens(
    accounts: Accounts,
    user: Annotated[str | None, typer.Argument(metavar="[USER]", show_default=False)] = None,
) -> QueryResult:
    """List the tokens of one user or of all, without their secrets."""
    users = accounts.users()
    if user is not None and user not in {each["name"] for each in users}:
        raise AccessError(f"there is no user {user!r}")
    found = [
        {"user": each["name"], **token}
        for each in users
        if user in (None, each["name"])
        for token in each["tokens"]
    ]
    if not found:
        return QueryResult([], None, "There are no tokens.")
    return QueryResult(found, table(_TOKENS, found))


@action_command(tokens, "remove", opening=accounts_at)
def remove_token(
    accounts: Accounts,
    user: UserArgument,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Token id, as listed.")],
    yes: YesFlag = False,
) -> ActionResult:
    """Revoke a token."""
    confirm(f"Make token {token} of {user} void?", yes)
    accounts.remove_token(user, token)
    return ActionResult({"removed": token}, f"Removed token {token} of {user}.")


def _effect(policy: LoginPolicy) -> list[str]:
    """Return what the first user changes for clients, and which listeners stay open."""
    lines = []
    if policy.required == "never":
        lines.append("Clients still need no login: auth.required is never.")
    elif not policy.running:
        lines.append(
            "No broker is running here. When it starts, VibeMQ, JMQ and HTTP require a login."
        )
    elif policy.required == "auto":
        lines.append(
            "VibeMQ, JMQ and HTTP require a login from now on. Clients of theirs that were "
            "connected without one are disconnected."
        )
    if policy.open_listeners:
        lines.append(
            "Protocols without logins stay open to anyone who reaches these listeners: "
            f"{', '.join(policy.open_listeners)}. To close one, give it the rights of a user "
            '(?user=NAME in its URL) or set auth.required = "always".'
        )
    return lines


def read_password(from_stdin: bool, file: Path | None) -> str:
    """Read the password from the given source, else prompt twice. Raises UsageError,
    AccessError."""
    if from_stdin and file is not None:
        raise UsageError("give either --password-stdin or --password-file, not both")
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
        raise UsageError(
            "there is no terminal to ask for the password; give it with --password-stdin or "
            "--password-file"
        )
    check_password(password)
    for warning in password_warnings(password):
        err().print(f"Warning: {warning}.")
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
        raise UsageError(f"--expires: {error}") from None


def _means(user: Item) -> str:
    means = [
        *([_password(user)] if user["has_password"] else []),
        *(["digest"] if user["allow_digest"] else []),
        *([f"{len(user['tokens'])} tokens"] if user["tokens"] else []),
    ]
    return ", ".join(means) or "-"


def _password(user: Item) -> str:
    # the default hash is not listed; the other marks users without a login since the migration
    return "password (bcrypt)" if user["password_scheme"] == "bcrypt" else "password"


def _rights(user: Item) -> str:
    if user["superuser"]:
        return "superuser"
    return ", ".join([f"{len(user['permissions'])} permissions", *user["roles"]])


def _date(seconds: int) -> str:
    return moment(seconds * 1000)


def _expiry(token: Item) -> str:
    if not token["expires"]:
        return "never"
    return f"{_date(token['expires'])}{' (expired)' if time.time() >= token['expires'] else ''}"

"""`sluicemq users …`: users, their passwords and tokens. `sluicemq permissions …`: permissions of
users and roles on destinations.

Secrets are typed without echo, or read from standard input or a file, never from the command line,
which every user of the machine can read. The commands use the API of a running broker or, if no
broker runs, the file of the user database; both return the same results and raise the same errors.
"""

from __future__ import annotations

import errno
import getpass
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import UNSET
from msgspec.structs import asdict

from sluicemq.cli.api import (
    Api,
    CommandResult,
    OperationCaller,
    YesFlag,
    action_command,
    confirm,
    list_result,
    query_command,
    utf8_error,
)
from sluicemq.cli.console import Column, UsageError, choice_of, err, moment, quantity
from sluicemq.cli.destinations import DefaultListGroup
from sluicemq.cli.location import (
    BrokerLocation,
    LoginPasswordFileOption,
    ask_password,
    load_flags,
)
from sluicemq.management.broker import LIST_SETTINGS, ConfigurationQuery, SettingView
from sluicemq.management.operation import (
    AnswerT,
    ApiOperation,
    NamedBody,
    NamePath,
    Page,
    ParametersT,
    implementations,
    implements,
)
from sluicemq.management.users import (
    ASSIGN_ROLE,
    CREATE_TOKEN,
    DELETE_ROLE,
    DELETE_TOKEN,
    DELETE_USER,
    GRANT_ROLE_PERMISSION,
    GRANT_USER_PERMISSION,
    LIST_ROLES,
    LIST_USERS,
    PUT_ROLE,
    PUT_USER,
    REVOKE_ROLE_PERMISSION,
    REVOKE_USER_PERMISSION,
    WITHDRAW_ROLE,
    AccountQuery,
    AssignedRole,
    DeleteUser,
    PermissionRequest,
    PermissionView,
    PutRole,
    PutUser,
    RevokePermission,
    RoleView,
    TokenPath,
    TokenRequest,
    TokenView,
    UserRequest,
    UserView,
)
from sluicemq.model.access import Operation
from sluicemq.model.errors import AccessDenied, AccessError
from sluicemq.model.url import Url
from sluicemq.security.access import is_open
from sluicemq.security.files import read_secret_file
from sluicemq.security.passwords import (
    MAX_JAVA_PASSWORD,
    MAX_PASSWORD,
    check_password,
    hash_password,
    password_warnings,
)
from sluicemq.security.records import Change, Database, UserStore
from sluicemq.security.user_service import UserService
from sluicemq.server.config import Config
from sluicemq.server.configuration_reference import EffectiveConfiguration
from sluicemq.server.listener_settings import WITH_LOGINS
from sluicemq.server.settings import Unit

# --- Access to users and roles --------------------------------------------------------------------


@contextmanager
def open_accounts(location: BrokerLocation) -> Iterator[Accounts]:
    """Open the users of the broker at `location`. Their methods raise the API's errors or
    AccessError."""
    if location.local and not _is_listening(location.socket()):
        yield FileAccounts(load_flags(location.config, location.data_dir).config)
        return
    with Api(location.target()) as api:
        yield api


def _is_listening(path: Path) -> bool:
    """Return whether a process listens on the socket; a socket without access permission counts."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            error = probe.connect_ex(str(path))
        except OSError:
            return False  # the path is too long for a socket
    return error not in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


class FileAccounts(OperationCaller):
    """Accounts in the user database of a stopped broker, and its settings. Implements
    `UserDirectory` and `UserCall`; changes are recorded under the system user's name."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = UserStore(config.users_file)
        service = UserService(self)
        self._methods = dict([*implementations(service), *implementations(self)])
        self.note = ""
        self.status = 0

    @implements(LIST_SETTINGS)
    async def settings(self, call: object, query: ConfigurationQuery) -> Page[SettingView]:
        """Return a page of the settings with which the broker would start."""
        settings = EffectiveConfiguration(self._config).settings()
        return query.page([setting for setting in settings if query.filter in setting.name])

    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        # On the file, no operation waits, so that its coroutine ends at the first step and needs no
        # event loop: the caller may be inside one.
        steps = self._methods[operation](self, parameters).__await__()
        try:
            next(steps)
        except StopIteration as stop:
            answer: AnswerT = stop.value
            return answer
        except UnicodeEncodeError as error:
            raise utf8_error(error) from None
        raise RuntimeError(f"{operation.operation_id} waited although the users are in a file")

    @property
    def database(self) -> Database:
        """Current users and roles."""
        return self._store.read()

    @property
    def by(self) -> str:
        """Author of the changes, for the audit log."""
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            name = str(os.getuid())
        return f"{name} on the command line"

    def hash(self, password: str) -> str:
        """Return the hash of a new password. Raises AccessError."""
        return hash_password(password, self._config.auth.min_password_length)

    def now(self) -> int:
        """Return the time in seconds since the epoch."""
        return int(time.time())

    async def apply(self, change: Change, by: str) -> None:
        """Apply a change to the file. Raises AccessError."""
        self._store.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.change(change, by)


Accounts = Api | FileAccounts


def login_policy(accounts: Accounts) -> tuple[str, list[str]]:
    """Return `auth.required`, and the URLs of the listeners of protocols without logins whose
    clients have all permissions even if there are users."""
    settings = {
        item.name: item.value for item in accounts.items(LIST_SETTINGS, ConfigurationQuery())
    }
    required, insecure = str(settings["auth.required"]), bool(settings["insecure_public"])
    open_urls = []
    for name, value in settings.items():
        if name.startswith("listeners[") and name.endswith("].url"):
            listener, url = name.removesuffix("url"), Url.parse(str(value))
            user = str(settings.get(f"{listener}user") or "")
            needs_login = (
                url.protocol in WITH_LOGINS
                or settings.get(f"{listener}client_certificate") == "required"
            )
            if not needs_login and is_open(url, user, required, insecure):
                open_urls.append(str(value))
    return required, open_urls


# --- `sluicemq users …` ---------------------------------------------------------------------------

app = typer.Typer(
    cls=DefaultListGroup,
    help="Add, remove and list users, their passwords and tokens. Default: list.",
)
tokens = typer.Typer(
    cls=DefaultListGroup,
    help="Create, list and revoke access tokens. Default: list.",
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

_USERS: Final[tuple[Column[UserView], ...]] = (
    Column("User", lambda item: item.name),
    Column("Login by", lambda item: _login_methods(item)),
    Column("Permissions", lambda item: _granted_rights(item)),
    Column("Created", lambda item: moment(item.created), no_fold=True, optional=True),
)
_TOKENS: Final[tuple[Column[tuple[str, TokenView]], ...]] = (
    Column("User", lambda item: item[0]),
    Column("Token", lambda item: item[1].id),
    Column("Label", lambda item: item[1].label),
    Column("Created", lambda item: moment(item[1].created), no_fold=True, optional=True),
    Column("Expires", lambda item: _expiry(item[1]), no_fold=True),
)


@query_command(app, "list", open_resource=open_accounts)
def list_users(accounts: Accounts) -> CommandResult:
    """List the users without their secrets."""
    return list_result(
        accounts.items(LIST_USERS, AccountQuery()),
        _USERS,
        "There are no users. A broker that starts without users permits everything to anyone who "
        "reaches a port. Add the first one:\n"
        "  sluicemq users add root --superuser",
    )


@action_command(app, "add", open_resource=open_accounts, login=LoginPasswordFileOption)
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
        bool, typer.Option("--no-password", help="Log in by tokens and listeners (user=…) only.")
    ] = False,
    allow_digest: Annotated[
        bool,
        typer.Option(
            "--allow-digest",
            help="Also store the secret of JMS digest logins: as good as the password.",
        ),
    ] = False,
) -> CommandResult:
    """Add a user. Without permissions it may do nothing; see `sluicemq permissions grant`."""
    if no_password and (password_stdin or new_password_file or allow_digest):
        raise UsageError("--no-password excludes the other options about the password")
    password = "" if no_password else read_password(password_stdin, new_password_file)
    first = not list(accounts.items(LIST_USERS, AccountQuery()))
    body = UserRequest(
        password=password or UNSET,
        superuser=superuser,
        roles=list(dict.fromkeys(role or ())),
        allow_digest=allow_digest if password else UNSET,
    )
    accounts.call(PUT_USER, PutUser(name=user, expect="new", body=body))
    if not first:
        return CommandResult({"added": user}, f"Added {user}.")
    required, open_listeners = login_policy(accounts)
    document = {
        "added": user,
        "first": True,
        "login_required": required != "never",
        "open_listeners": open_listeners,
    }
    effect = _effect(isinstance(accounts, Api), required, open_listeners)
    return CommandResult(document, "\n".join([f"Added {user}, the first user.", *effect]))


@action_command(app, "remove", open_resource=open_accounts)
def remove(
    accounts: Accounts,
    user: UserArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove the last superuser or the last user.")
    ] = False,
    yes: YesFlag = False,
) -> CommandResult:
    """Remove a user and its tokens. Its existing connections stay open."""
    confirm(f"Remove {user}, with its permissions and tokens?", yes)
    try:
        accounts.call(DELETE_USER, DeleteUser(name=user, force=force))
    except AccessDenied as error:
        if " is the last " in str(error):
            error.add_note("--force removes it all the same.")
        raise
    return CommandResult({"removed": user}, f"Removed {user}.")


@action_command(app, "passwd", open_resource=open_accounts, login=LoginPasswordFileOption)
def passwd(
    accounts: Accounts,
    user: UserArgument,
    password_stdin: StdinOption = False,
    new_password_file: FileOption = None,
    allow_digest: Annotated[
        bool | None,
        typer.Option(
            "--allow-digest/--no-digest",
            help="Store the secret of JMS digest logins, or not (default: unchanged).",
        ),
    ] = None,
) -> CommandResult:
    """Set a user's password."""
    password = read_password(password_stdin, new_password_file)
    digest = UNSET if allow_digest is None else allow_digest
    body = UserRequest(password=password, allow_digest=digest)
    accounts.call(PUT_USER, PutUser(name=user, expect="existing", body=body))
    return CommandResult({"changed": user}, f"{user} has a new password.")


@action_command(tokens, "add", open_resource=open_accounts)
def add_token(
    accounts: Accounts,
    user: UserArgument,
    label: Annotated[str, typer.Option("--label", help="Purpose of the token.")] = "",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Validity, such as 90d or 12h."),
    ] = None,
) -> CommandResult:
    """Create a token for a user and print it once; the broker stores only its SHA-256."""
    expiry = 0
    if expires is not None:
        expiry = (int(time.time()) + int(quantity("--expires", expires, Unit.SECONDS))) * 1000
    request = NamedBody(name=user, body=TokenRequest(label=label, expires=expiry))
    token = accounts.call(CREATE_TOKEN, request)
    text = f"This is token {token.id} of {user}. It is not shown again."
    return CommandResult({"user": user, **asdict(token)}, text, output=token.token)


@query_command(tokens, "list", open_resource=open_accounts)
def list_tokens(
    accounts: Accounts,
    user: Annotated[str | None, typer.Argument(metavar="[USER]", show_default=False)] = None,
) -> CommandResult:
    """List the tokens of one user or of all, without their secrets."""
    users = list(accounts.items(LIST_USERS, AccountQuery()))
    if user is not None and user not in {account.name for account in users}:
        raise AccessError(f"the user {user!r} does not exist")
    rows = [
        (account.name, token)
        for account in users
        if user in (None, account.name)
        for token in account.tokens
    ]
    document = [{"user": name, **asdict(token)} for name, token in rows]
    return list_result(rows, _TOKENS, "There are no tokens.")._replace(document=document)


@action_command(tokens, "remove", open_resource=open_accounts)
def remove_token(
    accounts: Accounts,
    user: UserArgument,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Token id, as listed.")],
    yes: YesFlag = False,
) -> CommandResult:
    """Revoke a token."""
    confirm(f"Revoke token {token} of {user}?", yes)
    accounts.call(DELETE_TOKEN, TokenPath(name=user, id=token))
    return CommandResult({"removed": token}, f"Revoked token {token} of {user}.")


def _effect(running: bool, required: str, open_listeners: list[str]) -> list[str]:
    """Return what the first user changes for clients, and which listeners stay open."""
    lines = []
    if required == "never":
        lines.append("Clients still need no login: auth.required is never.")
    elif not running:
        lines.append(
            "No broker is running here. When it starts, VibeMQ, JMQ and HTTP require a login."
        )
    elif required == "auto":
        lines.append(
            "VibeMQ, JMQ and HTTP require a login from now on. Clients of theirs that were "
            "connected without one are disconnected."
        )
    if open_listeners:
        lines.append(
            "Protocols without logins stay open to anyone who reaches these listeners: "
            f"{', '.join(open_listeners)}. To close one, give it the rights of a user "
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
        password = ask_password("Password: ")
        if password != ask_password("Again: "):
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
            "they log in by digest: they cannot log in with this one."
        )
    return password


def _login_methods(user: UserView) -> str:
    # the default hash is not listed; the other marks users without a login since the migration
    password = "password (bcrypt)" if user.password_scheme == "bcrypt" else "password"
    methods = [
        *([password] if user.has_password else []),
        *(["digest"] if user.allow_digest else []),
        *([f"{len(user.tokens)} tokens"] if user.tokens else []),
    ]
    return ", ".join(methods) or "-"


def _granted_rights(user: UserView) -> str:
    if user.superuser:
        return "superuser"
    return ", ".join([f"{len(user.permissions)} permissions", *user.roles])


def _expiry(token: TokenView) -> str:
    if not token.expires:
        return "never"
    is_expired = time.time() * 1000 >= token.expires
    return f"{moment(token.expires)}{' (expired)' if is_expired else ''}"


# --- `sluicemq permissions …` ---------------------------------------------------------------------

ALL: Final = "all"

permissions_app = typer.Typer(
    cls=DefaultListGroup,
    help="Permissions of users and roles on destinations. Default: list.",
)
roles = typer.Typer(
    cls=DefaultListGroup,
    help="Named sets of permissions for several users. Default: list.",
)
permissions_app.add_typer(roles, name="role")

GranteeArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A user, or a role with --role.", show_default=False)
]
RoleFlag = Annotated[bool, typer.Option("--role", help="NAME is a role.")]
PatternArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="Pattern of destination names; * = any characters.",
        show_default=False,
    ),
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", show_default=False)]


class PermissionRow(PermissionView, kw_only=True, frozen=True, omit_defaults=True):
    """Permission of a user or of a role; `through` is the user's role that has it."""

    user: str = ""
    role: str = ""
    through: str


_PERMISSIONS: Final[tuple[Column[PermissionRow], ...]] = (
    Column("User or role", lambda item: item.user or f"role {item.role}"),
    Column("Pattern", lambda item: item.pattern),
    Column("Letter case", lambda item: "ignored" if item.ignore_case else ""),
    Column("Operations", lambda item: " ".join(item.operations)),
    Column("Through", lambda item: item.through),
)
_ROLES: Final[tuple[Column[RoleView], ...]] = (
    Column("Role", lambda item: item.name),
    Column("Permissions", lambda item: str(len(item.permissions)), align_right=True),
    Column("Users", lambda item: ", ".join(item.users)),
)


@action_command(permissions_app, "grant", open_resource=open_accounts)
def grant(
    accounts: Accounts,
    grantee: GranteeArgument,
    pattern: PatternArgument,
    operation: Annotated[
        list[str],
        typer.Argument(
            metavar="OPERATION...",
            parser=choice_of("OPERATION", "operation", (*Operation, ALL)),
            help=f"{', '.join(Operation)}, or {ALL}.",
            show_default=False,
        ),
    ],
    role: RoleFlag = False,
    ignore_case: Annotated[
        bool,
        typer.Option("--ignore-case", help="Match names case-insensitively, as in VibeMQ."),
    ] = False,
) -> CommandResult:
    """Grant operations on destinations; replaces an existing grant for exactly that pattern."""
    operations = [item for item in Operation if item in operation or ALL in operation]
    body = PermissionRequest(pattern=pattern, operations=operations, ignore_case=ignore_case)
    granting: ApiOperation[NamedBody[PermissionRequest], Any] = (
        GRANT_ROLE_PERMISSION if role else GRANT_USER_PERMISSION
    )
    accounts.call(granting, NamedBody(name=grantee, body=body))
    names = list(map(str, operations))
    return CommandResult(
        {
            "grantee": grantee,
            "role": role,
            "pattern": pattern,
            "operations": names,
            "ignore_case": ignore_case,
        },
        f"{grantee} may {', '.join(names)} {pattern}"
        f"{' in any letter case' if ignore_case else ''}.",
    )


@action_command(permissions_app, "revoke", open_resource=open_accounts)
def revoke(
    accounts: Accounts, grantee: GranteeArgument, pattern: PatternArgument, role: RoleFlag = False
) -> CommandResult:
    """Revoke the grant for exactly that pattern."""
    holders: ApiOperation[AccountQuery, Page[Any]] = LIST_ROLES if role else LIST_USERS
    for account in accounts.items(holders, AccountQuery()):
        if account.name == grantee and pattern not in {
            permission.pattern for permission in account.permissions
        }:
            raise AccessError(f"{grantee} has no permission for the pattern {pattern!r}")
    revoking = REVOKE_ROLE_PERMISSION if role else REVOKE_USER_PERMISSION
    accounts.call(revoking, RevokePermission(name=grantee, pattern=pattern))
    return CommandResult(
        {"grantee": grantee, "role": role, "pattern": pattern},
        f"{grantee} has no permission for {pattern} any more.",
    )


@query_command(permissions_app, "list", open_resource=open_accounts)
def list_permissions(
    accounts: Accounts,
    grantee: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A user, or a role with --role.", show_default=False),
    ] = None,
    role: RoleFlag = False,
) -> CommandResult:
    """List permissions of one user, of one role, or of all. A user's list includes its roles'."""
    all_roles = list(accounts.items(LIST_ROLES, AccountQuery()))
    all_users = [] if role else list(accounts.items(LIST_USERS, AccountQuery()))
    chosen_users = [account for account in all_users if grantee in (None, account.name)]
    chosen_roles = [
        holder for holder in all_roles if grantee is None or (role and grantee == holder.name)
    ]
    if grantee is not None and not (chosen_users or chosen_roles):
        raise AccessError(f"the {'role' if role else 'user'} {grantee!r} does not exist")
    of_roles = {holder.name: holder.permissions for holder in all_roles}
    rows = [row for user in chosen_users for row in _permission_rows(user, of_roles)]
    rows += [
        _row(permission, role=holder.name)
        for holder in chosen_roles
        for permission in holder.permissions
    ]
    empty = "No permissions have been granted." if grantee is None else "Nothing."
    return list_result(rows, _PERMISSIONS, empty)


@query_command(roles, "list", open_resource=open_accounts)
def list_roles(accounts: Accounts) -> CommandResult:
    """List the roles and their users."""
    return list_result(accounts.items(LIST_ROLES, AccountQuery()), _ROLES, "There are no roles.")


@action_command(roles, "add", open_resource=open_accounts)
def add_role(accounts: Accounts, role: RoleArgument) -> CommandResult:
    """Create a role without permissions."""
    accounts.call(PUT_ROLE, PutRole(name=role, expect="new"))
    return CommandResult({"added": role}, f"Added the role {role}.")


@action_command(roles, "remove", open_resource=open_accounts)
def remove_role(accounts: Accounts, role: RoleArgument) -> CommandResult:
    """Remove a role that is assigned to no user."""
    accounts.call(DELETE_ROLE, NamePath(name=role))
    return CommandResult({"removed": role}, f"Removed the role {role}.")


@action_command(roles, "assign", open_resource=open_accounts)
def assign(accounts: Accounts, role: RoleArgument, user: UserArgument) -> CommandResult:
    """Assign a role to a user."""
    accounts.call(ASSIGN_ROLE, AssignedRole(name=user, role=role))
    return CommandResult({"assigned": role, "user": user}, f"{user} has the role {role}.")


@action_command(roles, "unassign", open_resource=open_accounts)
def unassign(accounts: Accounts, role: RoleArgument, user: UserArgument) -> CommandResult:
    """Remove a role from a user."""
    accounts.call(WITHDRAW_ROLE, AssignedRole(name=user, role=role))
    return CommandResult({"unassigned": role, "user": user}, f"{user} has no role {role} any more.")


def _permission_rows(
    user: UserView, of_roles: dict[str, list[PermissionView]]
) -> list[PermissionRow]:
    rows: list[PermissionRow] = []
    if user.superuser:
        full_grant = PermissionView("*", list(Operation), False)
        rows.append(_row(full_grant, user=user.name, through="superuser"))
    rows += [_row(permission, user=user.name) for permission in user.permissions]
    for role in user.roles:
        rows += [
            _row(permission, user=user.name, through=role) for permission in of_roles.get(role, ())
        ]
    return rows


def _row(
    permission: PermissionView, *, user: str = "", role: str = "", through: str = ""
) -> PermissionRow:
    return PermissionRow(**asdict(permission), user=user, role=role, through=through)

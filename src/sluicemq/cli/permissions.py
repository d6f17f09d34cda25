"""`sluicemq permissions …`: permissions of users and roles on destinations."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from sluicemq.cli.accounts import Accounts, accounts_at
from sluicemq.cli.command_helpers import ActionResult, QueryResult, action_command, query_command
from sluicemq.cli.console import no_such
from sluicemq.cli.destinations import Listing
from sluicemq.cli.tables import Column, Item, table
from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import AccessError

ALL: Final = "all"

app = typer.Typer(
    cls=Listing,
    help="Permissions of users and roles on destinations. Default: list.",
    pretty_exceptions_enable=False,
)
roles = typer.Typer(
    cls=Listing,
    help="Named sets of permissions for several users. Default: list.",
    pretty_exceptions_enable=False,
)
app.add_typer(roles, name="role")

WhoArgument = Annotated[
    str, typer.Argument(metavar="WHO", help="A user, or a role with --role.", show_default=False)
]
RoleFlag = Annotated[bool, typer.Option("--role", help="WHO is a role.")]
PatternArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="Pattern of destination names; * = any characters.",
        show_default=False,
    ),
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", show_default=False)]
UserArgument = Annotated[str, typer.Argument(metavar="USER", show_default=False)]

_PERMISSIONS: Final = (
    Column(
        "User or role", lambda item: str(item["user"] if "user" in item else f"role {item['role']}")
    ),
    Column("Pattern", lambda item: str(item["pattern"])),
    Column("Letter case", lambda item: "ignored" if item["ignore_case"] else ""),
    Column("Operations", lambda item: " ".join(item["operations"])),
    Column("Through", lambda item: str(item["through"])),
)
_ROLES: Final = (
    Column("Role", lambda item: str(item["name"])),
    Column("Permissions", lambda item: str(len(item["permissions"])), right=True),
    Column("Users", lambda item: ", ".join(item["users"])),
)


@action_command(app, "grant", opening=accounts_at)
def grant(
    accounts: Accounts,
    who: WhoArgument,
    pattern: PatternArgument,
    operation: Annotated[
        list[str],
        typer.Argument(
            metavar="OPERATION...",
            help=f"{', '.join(Operation)}, or {ALL}.",
            show_default=False,
        ),
    ],
    role: RoleFlag = False,
    ignore_case: Annotated[
        bool,
        typer.Option("--ignore-case", help="Match names case-insensitively, as in VibeMQ."),
    ] = False,
) -> ActionResult:
    """Grant operations on destinations; replaces an existing grant for exactly that pattern."""
    permission = Permission(pattern, _operations(operation), ignore_case)
    if role:
        accounts.grant_role(who, permission)
    else:
        accounts.grant(who, permission)
    words = [str(each) for each in Operation if each in permission.operations]
    return ActionResult(
        {
            "who": who,
            "role": role,
            "pattern": pattern,
            "operations": words,
            "ignore_case": ignore_case,
        },
        f"{who} may {', '.join(words)} {pattern}{' in any letter case' if ignore_case else ''}.",
    )


@action_command(app, "revoke", opening=accounts_at)
def revoke(
    accounts: Accounts, who: WhoArgument, pattern: PatternArgument, role: RoleFlag = False
) -> ActionResult:
    """Revoke the grant for exactly that pattern."""
    there = accounts.roles() if role else accounts.users()
    for each in there:
        if each["name"] == who and pattern not in {p["pattern"] for p in each["permissions"]}:
            raise AccessError(f"{who} has no permission for the pattern {pattern!r}")
    if role:
        accounts.revoke_role(who, pattern)
    else:
        accounts.revoke(who, pattern)
    return ActionResult(
        {"who": who, "role": role, "pattern": pattern},
        f"{who} has no permission for {pattern} any more.",
    )


@query_command(app, "list", opening=accounts_at)
def list_permissions(
    accounts: Accounts,
    who: Annotated[
        str | None,
        typer.Argument(metavar="[WHO]", help="A user, or a role with --role.", show_default=False),
    ] = None,
    role: RoleFlag = False,
) -> QueryResult:
    """List permissions of one user, of one role, or of all. A user's list includes its roles'."""
    of_roles = {each["name"]: each["permissions"] for each in accounts.roles()}
    users = {} if role else {each["name"]: each for each in accounts.users()}
    if who is not None and who not in (of_roles if role else users):
        raise AccessError(f"there is no {'role' if role else 'user'} {who!r}")
    rows: list[Item] = []
    for name, user in users.items():
        if who in (None, name):
            rows += [{"user": name, **each} for each in _rights(user, of_roles)]
    if role or who is None:
        for name, permissions in of_roles.items():
            if who in (None, name):
                rows += [{"role": name, **each, "through": ""} for each in permissions]
    if not rows:
        return QueryResult(
            [], None, "No permissions have been granted." if who is None else "Nothing."
        )
    return QueryResult(rows, table(_PERMISSIONS, rows))


@query_command(roles, "list", opening=accounts_at)
def list_roles(accounts: Accounts) -> QueryResult:
    """List the roles and their users."""
    found = accounts.roles()
    if not found:
        return QueryResult([], None, "There are no roles.")
    return QueryResult(found, table(_ROLES, found))


@action_command(roles, "add", opening=accounts_at)
def add_role(accounts: Accounts, role: RoleArgument) -> ActionResult:
    """Create a role without permissions."""
    accounts.add_role(role)
    return ActionResult({"added": role}, f"Added the role {role}.")


@action_command(roles, "remove", opening=accounts_at)
def remove_role(accounts: Accounts, role: RoleArgument) -> ActionResult:
    """Remove a role that is assigned to no user."""
    accounts.remove_role(role)
    return ActionResult({"removed": role}, f"Removed the role {role}.")


@action_command(roles, "assign", opening=accounts_at)
def assign(accounts: Accounts, role: RoleArgument, user: UserArgument) -> ActionResult:
    """Assign a role to a user."""
    accounts.assign(role, user)
    return ActionResult({"assigned": role, "user": user}, f"{user} has the role {role}.")


@action_command(roles, "unassign", opening=accounts_at)
def unassign(accounts: Accounts, role: RoleArgument, user: UserArgument) -> ActionResult:
    """Remove a role from a user."""
    accounts.unassign(role, user)
    return ActionResult({"unassigned": role, "user": user}, f"{user} has no role {role} any more.")


def _operations(words: list[str]) -> frozenset[Operation]:
    known = {str(operation): operation for operation in Operation}
    found: set[Operation] = set()
    for word in words:
        if word.lower() == ALL:
            found.update(Operation)
        elif word.lower() in known:
            found.add(known[word.lower()])
        else:
            raise no_such("OPERATION", "operation", word.lower(), [*known, ALL])
    return frozenset(found)


def _rights(user: Item, of_roles: dict[str, Any]) -> list[Item]:
    rows: list[Item] = []
    if user["superuser"]:
        everything = [str(each) for each in Operation]
        rows.append(
            {
                "pattern": "*",
                "operations": everything,
                "ignore_case": False,
                "through": "superuser",
            }
        )
    rows += [{**each, "through": ""} for each in user["permissions"]]
    for role in user["roles"]:
        rows += [{**each, "through": role} for each in of_roles.get(role, ())]
    return rows

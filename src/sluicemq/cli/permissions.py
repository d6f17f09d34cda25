"""`sluicemq permissions …`: what users and roles may do, on which destinations."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.table import Table

from sluicemq.cli.console import JsonFlag, out, print_json, printable
from sluicemq.cli.serve import ConfigOption, DataDirOption
from sluicemq.cli.users import change, open_store, tell
from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.server.address import nearest
from sluicemq.server.identity import changes

ALL = "all"

app = typer.Typer(
    help="What users and roles may do, on which destinations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
roles = typer.Typer(help="Permissions under a name, for several users.", no_args_is_help=True)
app.add_typer(roles, name="role")

WhoArgument = Annotated[
    str, typer.Argument(metavar="WHO", help="A user, or a role with --role.", show_default=False)
]
RoleFlag = Annotated[bool, typer.Option("--role", help="WHO is a role.")]
PatternArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN", help="Names of destinations; * = any characters.", show_default=False
    ),
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", show_default=False)]
UserArgument = Annotated[str, typer.Argument(metavar="USER", show_default=False)]


@app.command()
def grant(
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
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Permit operations on destinations; replaces what was permitted for exactly that pattern."""
    permission = Permission(pattern, _operations(operation))
    store = open_store(config, data_dir)
    now = int(time.time())
    if role:
        change(store, lambda database: changes.grant_role(database, who, permission))
    else:
        change(store, lambda database: changes.grant(database, who, permission, now))
    shown = _shown(permission)
    words = ", ".join(shown["operations"])
    tell(as_json, {"who": who, "role": role, **shown}, f"{who} may {words} {pattern}.")


@app.command()
def revoke(
    who: WhoArgument,
    pattern: PatternArgument,
    role: RoleFlag = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take back what was permitted for exactly that pattern."""
    store = open_store(config, data_dir)
    now = int(time.time())
    database = store.read()
    if who in (database.roles if role else database.users):
        had = database.roles[who] if role else database.users[who].permissions
        if pattern not in {permission.pattern for permission in had}:
            raise AccessError(f"{who} has no permission for the pattern {pattern!r}")
    if role:
        change(store, lambda database: changes.revoke_role(database, who, pattern))
    else:
        change(store, lambda database: changes.revoke(database, who, pattern, now))
    tell(
        as_json,
        {"who": who, "role": role, "pattern": pattern},
        f"{who} has no permission for {pattern} any more.",
    )


@app.command("list")
def list_permissions(
    who: Annotated[
        str | None,
        typer.Argument(metavar="[WHO]", help="A user, or a role with --role.", show_default=False),
    ] = None,
    role: RoleFlag = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List permissions: of one user, of one role, or all. A user's are with those of its roles."""
    database = open_store(config, data_dir).read()
    kinds: list[tuple[str, list[str]]] = []
    if who is None:
        if not role:
            kinds.append(("user", sorted(database.users)))
        kinds.append(("role", sorted(database.roles)))
    else:
        kind = "role" if role else "user"
        if who not in (database.roles if role else database.users):
            raise AccessError(f"there is no {kind} {who!r}")
        kinds.append((kind, [who]))
    rows: list[dict[str, Any]] = []
    for kind, names in kinds:
        for name in names:
            if kind == "role":
                found = [("", permission) for permission in database.roles[name]]
            else:
                user = database.users[name]
                found = [("", permission) for permission in user.permissions]
                found += [(each, p) for each in user.roles for p in database.roles[each]]
                if user.superuser:
                    found.insert(0, ("superuser", Permission("*", frozenset(Operation))))
            rows += [{kind: name, **_shown(p), "through": through} for through, p in found]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("who", "pattern", "operations", "through"):
        table.add_column(column)
    for row in rows:
        name = row["user"] if "user" in row else f"role {row['role']}"
        table.add_row(name, printable(row["pattern"]), " ".join(row["operations"]), row["through"])
    out().print(table, markup=False)


@roles.command("add")
def add_role(
    role: RoleArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a role, without permissions yet."""
    change(open_store(config, data_dir), lambda database: changes.add_role(database, role))
    tell(as_json, {"added": role}, f"Added the role {role}.")


@roles.command("remove")
def remove_role(
    role: RoleArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove a role that no user has."""
    change(open_store(config, data_dir), lambda database: changes.remove_role(database, role))
    tell(as_json, {"removed": role}, f"Removed the role {role}.")


@roles.command("assign")
def assign(
    role: RoleArgument,
    user: UserArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give a role to a user."""
    now = int(time.time())
    change(open_store(config, data_dir), lambda db: changes.assign(db, role, user, now))
    tell(as_json, {"assigned": role, "user": user}, f"{user} has the role {role}.")


@roles.command("withdraw")
def withdraw(
    role: RoleArgument,
    user: UserArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take a role from a user."""
    now = int(time.time())
    change(open_store(config, data_dir), lambda db: changes.withdraw(db, role, user, now))
    tell(as_json, {"withdrawn": role, "user": user}, f"{user} has no role {role} any more.")


def _operations(words: list[str]) -> frozenset[Operation]:
    known = {str(operation): operation for operation in Operation}
    found: set[Operation] = set()
    for word in words:
        if word.lower() == ALL:
            found.update(Operation)
        elif word.lower() in known:
            found.add(known[word.lower()])
        else:
            guess = nearest(word.lower(), [*known, ALL])
            hint = f"did you mean {guess}?" if guess else f"there are {', '.join([*known, ALL])}"
            raise ConfigurationError(f"there is no operation {word!r}; {hint}")
    return frozenset(found)


def _shown(permission: Permission) -> dict[str, Any]:
    operations = [str(each) for each in Operation if each in permission.operations]
    return {"pattern": permission.pattern, "operations": operations}

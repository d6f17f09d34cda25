"""The plan's settings as a configuration file, and its users in the user database.

Comments in the file state the origin of migrated settings, and the settings that were not migrated
are listed at the end, so that the file documents the migration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from sluicemq.migrate.plan import NewUser, Plan
from sluicemq.model.destination import DestinationSettings
from sluicemq.model.errors import ConfigurationError
from sluicemq.security.records import Database, UserStore, add_user
from sluicemq.server.configuration_reference import value_text
from sluicemq.server.loading import SECTIONS, load
from sluicemq.server.settings import settings_of

_DEFAULTS: Final = ("broker", "default_destination")
USERS_FILE: Final = "users.json"
ACTOR: Final = "sluicemq migrate"
"""Actor in the audit log."""


def render(plan: Plan, data_dir: Path) -> str:
    """Return the file's text."""
    lines = [f"# Moved in from {plan.kind}: {_printable(str(plan.place))}"]
    defaults = plan.defaults or DestinationSettings()
    values = {("broker", "data_dir"): str(data_dir), **plan.settings}
    for section, struct in SECTIONS.items():
        found = []
        for name, setting in settings_of(struct).items():
            value: object = values.get((*section, name))
            if section == _DEFAULTS and getattr(defaults, name) != setting.default:
                value = getattr(defaults, name)
            if value is not None:
                comment = plan.comments.get(".".join((*section, name)))
                behind = f"  # {_printable(comment)}" if comment else ""
                found.append(f"{name} = {value_text(value, setting.unit)}{behind}")
        if found:
            lines += ["", f"[{'.'.join(section)}]", *found]
    for listener in plan.listeners:
        lines.append("")
        if comment := plan.comments.get(listener.url):
            lines.append(f"# {_printable(comment)}")
        lines += ["[[listeners]]", f"url = {value_text(listener.url)}"]
        for option, value in listener.options.items():
            lines.append(f"{option} = {value_text(value)}")
    if plan.left:
        lines += ["", "# Not carried over:"]
        lines += [
            f"#   {_printable(f'{left.what} {left.name}: {left.reason}')}" for left in plan.left
        ]
    return "\n".join(lines) + "\n"


def problems(plan: Plan) -> list[str]:
    """Return the problems that would keep a broker from starting with the plan's settings and
    users."""
    with tempfile.TemporaryDirectory() as directory:
        add_users(plan.users, Path(directory))
        file = Path(directory, "sluicemq.toml")
        file.write_text(render(plan, Path(directory)), encoding="utf-8")
        try:
            return list(load(file).config.problems())
        except ConfigurationError as error:
            return [str(error).removeprefix(f"{file}: ")]


def add_users(users: list[NewUser], data_dir: Path) -> tuple[list[str], list[str]]:
    """Add users to the user database of the data directory; existing users are never changed.
    Returns the names of those added and of those that existed already. Raises
    AccessError, ConfigurationError, OSError."""
    if not users:
        return [], []
    store = UserStore(data_dir / USERS_FILE)
    before = store.read().users
    known = [user.name for user in users if user.name in before]

    def add(database: Database) -> Database:
        for user in users:
            if user.name not in database.users:
                database = add_user(database, user.name, user.record)
        return database

    if len(known) < len(users):
        store.change(add, ACTOR)
    return [user.name for user in users if user.name not in before], known


def _printable(text: str) -> str:
    """Return text for a comment: TOML allows no control characters in one."""
    encodable = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in encodable)

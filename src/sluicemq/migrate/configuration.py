"""The plan's settings as a configuration file. Comments state the origin of migrated settings, and
the settings that were not migrated are listed at the end, so that the file documents the
migration."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluicemq.migrate.plan import Plan
from sluicemq.migrate.users import add_users
from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.loading import SECTIONS, load
from sluicemq.server.settings import Setting, settings_of
from sluicemq.server.units import Unit, format_quantity

_DEFAULTS: Final = ("broker", "default_destination")


def render(plan: Plan, data_dir: Path) -> str:
    """Return the file's text."""
    lines = [f"# Moved in from {plan.kind}: {_printable(str(plan.place))}"]
    values = {("broker", "data_dir"): str(data_dir), **plan.settings}
    for section, struct in SECTIONS.items():
        found = []
        if section == _DEFAULTS:
            found = list(_destination(plan.defaults or DestinationSettings()))
        for name, setting in settings_of(struct).items():
            path = (*section, name)
            if path in values and path != _DEFAULTS:
                found += _assignment(plan, ".".join(path), setting, values[path])
        if found:
            lines += ["", f"[{'.'.join(section)}]", *found]
    for listener in plan.listeners:
        lines.append("")
        if comment := plan.comments.get(listener.url):
            lines.append(f"# {_printable(comment)}")
        lines += ["[[listeners]]", f"url = {_quoted(listener.url)}"]
        for option, value in listener.options.items():
            lines.append(f"{option} = {_plain(value)}")
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


def _destination(settings: DestinationSettings) -> Iterator[str]:
    usual = DestinationSettings()
    for name, setting in settings_of(DestinationSettings).items():
        value = getattr(settings, name)
        if value != getattr(usual, name):
            yield f"{name} = {_value(setting, value)}"


def _assignment(plan: Plan, path: str, setting: Setting, value: object) -> Iterator[str]:
    comment = plan.comments.get(path)
    behind = f"  # {_printable(comment)}" if comment else ""
    yield f"{setting.name} = {_value(setting, value)}{behind}"


def _value(setting: Setting, value: object) -> str:
    if isinstance(value, Overflow):
        return _quoted(value.value)
    if setting.unit not in (None, Unit.MODE) and isinstance(value, int | float) and value:
        return _quoted(format_quantity(value, setting.unit))
    return _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else _quoted(str(value))


def _quoted(text: str) -> str:
    # a TOML basic string is a JSON string, except that it must not contain DEL
    return json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f")


def _printable(text: str) -> str:
    """Return text for a comment: TOML allows no control characters in one."""
    encodable = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in encodable)

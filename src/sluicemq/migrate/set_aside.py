"""Rows that are set aside: not imported but written to a file in the data directory.

    set-aside-vibemq.jsonl    {"sort": "dropped", "reason": "…", "table": "messages", "id": …}

A line is one row of the source in JSON: why it is there, and its columns. Text stands as it is,
bytes that are not UTF-8 as {"base64": "…"}. A later run whose rows differ writes a file of its own,
`set-aside-vibemq-2.jsonl`; no file is ever changed.
"""

from __future__ import annotations

import base64
import filecmp
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from sluicemq.migrate.plan import Plan

_encode = msgspec.json.Encoder().encode


def write_aside(plan: Plan, directory: Path, pause: Callable[[], None]) -> Path | None:
    """Write the rows that the plan sets aside. Returns the file, or None if there are none.

    `pause` is called between two rows and may raise; the file is deleted then. Raises SourceError,
    OSError.
    """
    if not plan.set_aside:
        return None
    temporary = directory / f"set-aside-{plan.kind}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            for row in plan.aside():
                pause()
                columns = {name: _encodable(value) for name, value in row.row.items()}
                file.write(_encode({"sort": row.sort, "reason": row.reason, **columns}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return _keep(temporary, directory, plan.kind)
    finally:
        temporary.unlink(missing_ok=True)


def _keep(temporary: Path, directory: Path, kind: str) -> Path:
    """Rename the file to the first unused name, unless an existing file of that kind is
    identical."""
    number = 1
    while True:
        path = directory / f"set-aside-{kind}{f'-{number}' if number > 1 else ''}.jsonl"
        if not path.exists():
            temporary.rename(path)
            return path
        if filecmp.cmp(path, temporary, shallow=False):
            return path
        number += 1


def _encodable(value: object) -> object:
    """Return a column's value as a JSON value."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value

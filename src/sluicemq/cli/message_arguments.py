"""Bodies, properties and times of messages on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicemq.cli.console import UsageError, err
from sluicemq.server.units import Unit, parse_quantity

BodiesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BODY]...", help="Message bodies, one message each."),
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="File with one message body; repeatable."),
]
TYPES: Final = {"string": str, "boolean": bool, "int": int, "float": float}
_TRUTH: Final = {"true": True, "false": False}


def parse_properties(given: list[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` (text) or `NAME:TYPE=VALUE`. Raises UsageError."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name, colon, kind = name.partition(":")
        if not equals or not name:
            raise UsageError(f"--property {text!r}: write NAME=VALUE or NAME:TYPE=VALUE")
        if colon and kind not in TYPES:
            raise UsageError(
                f"--property {text!r}: there is no type {kind!r}; there are {', '.join(TYPES)}"
            )
        kind = kind or "string"
        try:
            read: Any = _TRUTH[value.lower()] if kind == "boolean" else TYPES[kind](value)
        except (ValueError, KeyError):
            raise UsageError(f"--property {text!r}: {value!r} is no {kind}") from None
        found[name] = {"type": kind, "value": read}
    return found


def read_standard_input() -> bytes:
    """Return the message on standard input; prompts on a terminal. Raises UsageError if it is
    empty: the program that should have written it has probably failed."""
    if sys.stdin.isatty():
        err().print("[dim]Type the message; Ctrl-D ends it.[/]")
    content = sys.stdin.buffer.read()
    if not content:
        raise UsageError(
            "standard input is empty, so nothing was sent; an empty message is the argument ''"
        )
    return content


def parse_milliseconds(option: str, text: str | None) -> int | None:
    """Parse a time such as 30s. Raises UsageError."""
    if text is None:
        return None
    try:
        value = parse_quantity(text if not text.isdecimal() else f"{text}s", Unit.MILLISECONDS)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    return round(value)

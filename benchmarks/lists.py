"""Lists on the command line of `bench`: `--size 100,1KiB --protocol phpmq,msglite+unix`.

All functions raise typer.BadParameter, which names the option and its valid values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer
from benchmarks.load.receiver import STAMP_BYTES
from benchmarks.load.server import PROTOCOLS, TRANSPORTS

from sluicemq.server.settings import Unit, parse_quantity

LARGEST: Final = 1024**2
"""Maximum number of bytes of a body."""


def numbers(option: str, text: str, maximum: int) -> list[int]:
    """Parse whole numbers from 1 to `maximum`."""
    values = []
    for item in _items(option, text):
        if not (item.isascii() and item.isdigit()) or not 1 <= int(item[:20]) <= maximum:
            raise _bad_parameter(option, f"{item!r} is not a number from 1 to {maximum:,}")
        values.append(int(item))
    return values


def sizes(option: str, text: str) -> list[int]:
    """Parse body sizes: at least the 8 bytes of the time, at most 1 MiB."""
    values = []
    for item in _items(option, text):
        try:
            size = parse_quantity(item, Unit.BYTES)
        except ValueError as error:
            raise _bad_parameter(option, str(error)) from None
        if not isinstance(size, int) or not STAMP_BYTES <= size <= LARGEST:
            raise _bad_parameter(option, f"{item} is not from {STAMP_BYTES} to {LARGEST:,} bytes")
        values.append(size)
    return values


def choices(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """Parse words out of `allowed`."""
    items = _items(option, text)
    for item in items:
        if item not in allowed:
            raise _bad_parameter(option, f"{item!r} is not one of {', '.join(allowed)}")
    return items


def transports(option: str, text: str) -> list[tuple[str, str]]:
    """Parse protocols with their transports: `phpmq` is TCP, `phpmq+unix` a Unix socket."""
    transports_by_name = {
        protocol if transport == "tcp" else f"{protocol}+{transport}": (protocol, transport)
        for protocol in PROTOCOLS
        for transport in TRANSPORTS
    }
    return [transports_by_name[item] for item in choices(option, text, list(transports_by_name))]


def single_value(option: str, values: list[int]) -> int:
    """Return the only item of a list; more are an error."""
    if len(values) != 1:
        raise _bad_parameter(option, "takes one value here, not a list")
    return values[0]


def _items(option: str, text: str) -> list[str]:
    items = list(dict.fromkeys(item.strip() for item in text.split(",")))
    if not all(items):
        raise _bad_parameter(option, f"{text!r} is no list of values with commas between them")
    return items


def _bad_parameter(option: str, what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint=option)

"""Java's property files (java.util.Properties, "load").

    # comment, or ! comment
    key = value      key: value      key value      long value \\
                                                    that goes on

Bytes are ISO 8859-1; `\\uXXXX` is any other UTF-16 unit.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sluicemq.migrate.source_files import Damage

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SIGNS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS: Final = " \t\f"


class PropertyValue(NamedTuple):
    """Value of a key, with its line."""

    text: str
    line: int


def parse(content: bytes, where: str) -> dict[str, PropertyValue]:
    """Parse values by key; of a repeated key the last one counts. Raises Damage with the line."""
    found: dict[str, PropertyValue] = {}
    logical = ""
    began = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", content.decode("latin-1")), 1):
        line = raw.lstrip(_BLANKS)
        if not logical:
            if not line or line[0] in "#!":
                continue
            began = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            logical += line[:-1]
            continue
        _take(logical + line, found, began, where)
        logical = ""
    if logical:
        _take(logical, found, began, where)
    return found


def _take(line: str, found: dict[str, PropertyValue], number: int, where: str) -> None:
    end = _key_end(line)
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    key = _unescaped(line[:end], number, where)
    found[key] = PropertyValue(_unescaped(rest, number, where), number)


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
        elif line[position] in "=: \t\f":
            return position
        else:
            position += 1
    return len(line)


def _unescaped(text: str, number: int, where: str) -> str:
    def plain(match: re.Match[str]) -> str:
        sign = match[1]
        if sign == "u":
            raise Damage(f"{where}, line {number}: \\u is followed by four hexadecimal digits")
        if sign[0] == "u" and len(sign) == 5:
            return chr(int(sign[1:], 16))
        return _SIGNS.get(sign, sign)

    units = _ESCAPE.sub(plain, text)
    # Java encodes one character as a surrogate pair of two units
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

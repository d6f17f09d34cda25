"""Patterns of LIKE (JMS 1.1 section 3.8.1.1): % is any characters, _ is one, line ends included."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

LIMIT: Final = 1024
"""Characters of a pattern: a match takes at most this many steps for each of the value's."""


class Wildcard(Enum):
    """What stands in a pattern for other characters."""

    ONE = "_"
    ANY = "%"


Part = str | Wildcard
"""Characters that stand for themselves, or a wildcard."""


def split(pattern: str, escape: str) -> list[Part]:
    """The parts of a pattern. A character after `escape` ("" = none) stands for itself.

    Raises ValueError, with a text, if nothing follows an escape or the pattern is too long.
    """
    if len(pattern) > LIMIT:
        raise ValueError(f"a pattern of at most {LIMIT} characters")
    parts: list[Part] = []
    plain = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, "")
            if not following:
                raise ValueError(f"a character after the escape {escape} that ends the pattern")
            plain += following
        elif character in "%_":
            if plain:
                parts.append(plain)
                plain = ""
            wildcard = Wildcard(character)
            if wildcard is Wildcard.ONE or parts[-1:] != [wildcard]:
                parts.append(wildcard)
        else:
            plain += character
    if plain:
        parts.append(plain)
    return parts


def matcher(parts: list[Part]) -> Callable[[str], object]:
    """A function that tells, by truth, whether a whole string matches."""
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts)).__eq__
    match parts:
        case [str(prefix), Wildcard.ANY]:
            return lambda value: value.startswith(prefix)
        case [Wildcard.ANY, str(suffix)]:
            return lambda value: value.endswith(suffix)
        case [Wildcard.ANY, str(infix), Wildcard.ANY]:
            return lambda value: infix in value
    return re.compile(_expression(parts), re.DOTALL).fullmatch


def _expression(parts: list[Part]) -> str:
    """Between two % the first place that fits is as good as any other, so each is atomic: a
    match never goes back over what it has found, however many % there are."""
    runs = [""]
    for part in parts:
        if part is Wildcard.ANY:
            runs.append("")
        else:
            runs[-1] += "." if isinstance(part, Wildcard) else re.escape(part)
    if len(runs) == 1:
        return runs[0]
    return runs[0] + "".join(f"(?>.*?{run})" for run in runs[1:-1]) + ".*" + runs[-1]

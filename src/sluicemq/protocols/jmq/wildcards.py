"""Wildcard topic names (Open MQ 4.2 and later).

A name consists of elements joined by `.`. In a wildcard `*` matches one element and `**` one or
more. `>` after the last element, without a dot, matches further elements: zero or more after a
name, one or more after `*` and `**`. A single `>` matches every name. Open MQ refuses a dot before
`>`; this broker accepts it.
"""

from __future__ import annotations

import re
from typing import Final

_SIGNS: Final = re.compile(r"[*>]")


def is_wildcard(name: str) -> bool:
    """Return whether the name contains wildcards. `Pattern` may still reject it."""
    return _SIGNS.search(name) is not None


class Pattern:
    """Parsed wildcard. Raises ValueError if a wildcard is not a whole element: `a.b*`."""

    __slots__ = ("_elements", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._elements: list[str] = []
        """Elements of the pattern; `*` matches one element, `>` zero or more."""
        open_ended = text.endswith(">")
        for element in text.removesuffix(">").removesuffix("." if open_ended else "").split("."):
            if element == "**":
                self._elements += ("*", ">")
            elif element == "*" or (element and not is_wildcard(element)):
                self._elements.append(element)
            elif text != ">":
                raise ValueError(f"{text[:80]!r} is no wildcard: {element!r} is no element")
        if open_ended:
            self._elements += ("*", ">") if text.endswith("*>") else (">",)

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches a topic name. The name must not be a wildcard."""
        elements = name.split(".")
        pattern = self._elements
        at = place = 0
        many = taken = -1
        while place < len(elements):
            sign = pattern[at] if at < len(pattern) else ""
            if sign == ">":
                many, taken = at, place
                at += 1
            elif sign in ("*", elements[place]) and elements[place]:
                at += 1
                place += 1
            elif many >= 0:  # backtrack: the last `>` consumes one more element
                taken += 1
                at, place = many + 1, taken
            else:
                return False
        return all(sign == ">" for sign in pattern[at:])

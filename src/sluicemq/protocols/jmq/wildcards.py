"""Names that stand for several topics (Open MQ 4.2 and later).

A name is made of elements joined by `.`. In a wildcard `*` stands for one of them, `**` for one or
more, and `>` behind the last element, without a dot, for any number of further ones: none too
behind a name, at least one behind `*` and `**`. Alone it stands for every name. The original
refuses a dot before `>`; here it makes no difference.
"""

from __future__ import annotations

import re
from typing import Final

_SIGNS: Final = re.compile(r"[*>]")


def is_wildcard(name: str) -> bool:
    """Whether the name stands for others; `Pattern` may still find that it is none that can."""
    return _SIGNS.search(name) is not None


class Pattern:
    """See the module. Raises ValueError where a wildcard is not a whole element: `a.b*`."""

    __slots__ = ("_elements", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._elements: list[str] = []
        """Those of the name; `*` is any one, `>` any number, none too."""
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
        """Whether it stands for a topic of that name, which is none for another wildcard."""
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
            elif many >= 0:  # let the last one that stands for many stand for one more
                taken += 1
                at, place = many + 1, taken
            else:
                return False
        return all(sign == ">" for sign in pattern[at:])

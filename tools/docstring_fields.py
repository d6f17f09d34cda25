"""Griffe extension for the API reference: render the fields of a docstring as a definition list.

The project's docstrings describe fields and parameters in lines such as

    timeout     seconds, > 0
    keep_alive  seconds between two pings, 0 = none. A ping without a response within
                `timeout` ends the connection

Markdown would join these lines to a paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import griffe

_FIELD: Final = re.compile(r"(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)")


class DocstringFields(griffe.Extension):
    """Rewrites the docstrings of all objects."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = "\n".join(with_definitions(obj.docstring.value.splitlines()))


def with_definitions(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a docstring with its fields as a Markdown definition list."""
    inside = False
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field:
            yield ""
            yield ", ".join(f"`{name}`" for name in field["names"].split(", "))
            yield f":   {field['text']}"
            inside = True
        elif inside and line.startswith("  "):
            yield f"    {line.strip()}"
        else:
            if inside and line:
                yield ""
            inside = False
            yield line

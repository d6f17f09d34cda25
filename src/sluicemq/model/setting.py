"""Declaration of settings, their lines in TOML files, and suggestions for mistyped names.

A field of a settings struct has one annotation, from which the configuration is parsed, checked and
documented.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

MAX_PARSED_BYTES: Final = 1024**2
"""Bytes parsed to find one setting; beyond, its line stays unknown."""


def about(
    meaning: str,
    unit: str = "",
    *,
    ge: float | None = None,
    le: float | None = None,
    only: Collection[str] = (),
) -> msgspec.Meta:
    """Return the annotation of a field of a settings struct.

    meaning  one or two sentences, for the reference of the configuration
    unit     of a number: ms, s, bytes or octal mode
    ge, le   bounds
    only     protocols of the listeners for which the setting has a meaning, or `tls`, or `unix`;
             empty = all
    """
    extra = {"unit": unit, "only": frozenset(only)}
    return msgspec.Meta(description=meaning, extra=extra, ge=ge, le=le)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word most similar to a mistyped one, or ""."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def suggestion(word: str, known: Collection[str]) -> str:
    """Return the end of an error message about an unknown word: the known word that is most
    similar, or else all known words."""
    guess = nearest(word, known)
    return f"did you mean {guess}?" if guess else f"there are {', '.join(known)}"


class TomlLines:
    """Line numbers of settings in a TOML file, which the standard library's parser does not give.

    The parser itself decides where a setting is: the first line that mentions its name and with
    which the text, parsed from the beginning, contains it. Comments, quoted names, inline tables
    and strings over several lines need no rules of their own. Only done for errors, as every look
    parses again.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def number(self, path: Sequence[str | int]) -> int:
        """Return the line of a setting, from 1; 0 if it is not found.

        `path` has the names of the tables and of the key, and indexes of arrays; it begins with a
        name.
        """
        import tomllib  # here: programs that only declare settings start without the parser

        if not path:
            return 0
        *tables, last = [name for name in path if isinstance(name, str)]
        budget = MAX_PARSED_BYTES
        for index, line in enumerate(self._lines):
            while tables and tables[0] in line:  # they come before the key, in this order
                tables.pop(0)
            if tables or last not in line:
                continue
            end = index
            while end < len(self._lines) and budget > 0:
                end += 1
                text = "\n".join(self._lines[:end])
                budget -= len(text)
                try:
                    tree = tomllib.loads(text)
                except ValueError:
                    continue  # the value continues in the next line
                if _contains(tree, path):
                    return index + 1
                break
        return 0


def _contains(tree: Any, path: Sequence[str | int]) -> bool:
    try:
        for name in path:
            tree = tree[name]
    except (KeyError, IndexError, TypeError):
        return False
    return True

"""Conversion of names to JMS identifiers and back.

A JMS property name is an identifier (JMS 1.1 section 3.8.1.1): a Java letter, `_` or `$`, then the
same or digits; the destination names that Open MQ's Java client accepts are identifiers that may
contain dots. Other protocols have no such rule for headers and queues. Characters that an
identifier cannot contain are escaped:

    -  _HYPHEN_      .  _DOT_      other characters  _xHHHH_, 4 to 6 upper-case hex digits

So `content-type` becomes `content_HYPHEN_type`. (Apache Camel uses the first two escapes as well.)
An underscore that would read as the start of an escape is written `_x005F_`: every name has an
identifier, no two names have the same, and `from_identifier` returns the name.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_PLAIN_DOTTED: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*\Z")
_ESCAPE_LIKE: Final = re.compile(r"_(?=HYPHEN|DOT|x[0-9A-F]{4})")
_WRITTEN: Final = re.compile(r"_(?:(HYPHEN)|(DOT)|x([0-9A-F]{4,6}))_")
JAVA_LETTERS: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
"""Unicode categories of Java's Character.isJavaIdentifierStart."""
_PART: Final = JAVA_LETTERS | {"Nd", "Mn", "Mc"}
_WORDS: Final = {"-": "_HYPHEN_", ".": "_DOT_"}
_LAST_CHARACTER: Final = 0x10FFFF


def to_identifier(name: str, dotted: bool = False) -> str:
    """Return the identifier of a name, which is the name itself if it is an identifier already.

    With `dotted`, a dot that is not at the start remains a dot. "" remains "".
    """
    escape_like = "_" in name and {match.start() for match in _ESCAPE_LIKE.finditer(name)}
    if not escape_like and (_PLAIN_DOTTED if dotted else _PLAIN).match(name):
        return name
    parts: list[str] = []
    for index, character in enumerate(name):
        kind = unicodedata.category(character)
        # Java classifies UTF-16 units, and a surrogate is not a letter
        fits = kind in (_PART if index else JAVA_LETTERS) and character <= "\uffff"
        if (fits and not (escape_like and index in escape_like)) or (
            dotted and index and character == "."
        ):
            parts.append(character)
        else:
            parts.append(_WORDS.get(character) or f"_x{ord(character):04X}_")
    return "".join(parts)


def from_identifier(identifier: str) -> str:
    """Return the name that `to_identifier` converts to this; the identifier itself if there is
    none.
    """
    return _WRITTEN.sub(_read, identifier) if "_" in identifier else identifier


def _read(match: re.Match[str]) -> str:
    if match[1]:
        return "-"
    if match[2]:
        return "."
    code = int(match[3], 16)
    return chr(code) if code <= _LAST_CHARACTER else match[0]
